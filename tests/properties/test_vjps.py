"""The backward calls that an operation records are its gradient: for every kind of operation, by
central differences of its definition."""

from __future__ import annotations

import pytest
from support.op_samples import SAMPLES

from ooctrain.engine.tensor import current_tape
from ooctrain.layers.instance_norm import InstanceNormApply
from ooctrain.step.op import Op
from ooctrain.testing.check_op import check_gradient

MOST = 130


def floats(arrays):
    return sum(array.size for array in arrays if array.dtype.kind == "f")


def small_samples():
    """Of each kind of operation with a gradient the two samples with the fewest values, if these
    are few (`test_gradients.py` has the others).

    `InstanceNormApply` records that of the whole norm, whose statistics depend on its input.
    """
    kinds = {}
    few = [(op, arrays) for op, arrays in SAMPLES if 0 < floats(arrays) <= MOST]
    for op, arrays in sorted(few, key=lambda sample: floats(sample[1])):
        kind = type(op), getattr(op, "function", None), getattr(op, "mode", None)
        if type(op).vjp is not Op.vjp and not isinstance(op, InstanceNormApply):
            kinds.setdefault(kind, []).append((op, arrays))
    return {kind: found[:2] for kind, found in kinds.items()}


@pytest.mark.parametrize(
    "samples", [pytest.param(s, id=type(s[0][0]).__name__) for s in small_samples().values()]
)
def test_what_an_operation_records_is_its_gradient(samples):
    for op, arrays in samples:
        check_gradient(lambda *ins, op=op: current_tape().call(op, ins), *arrays)
