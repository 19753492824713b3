"""What operations cost: work, bytes and scratch are those that were counted once.

No result shows a wrong count, for a count only decides how long a call is thought to take and how
large an arena is. So the numbers of every sample of `support/op_samples.py` stand in a table.
Counts that have a definition are held to it in `test_kernels_conv.py` and `test_models.py`.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from support import known
from support.op_samples import SAMPLES

from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.op import Op, Spec

KINDS = {
    kind: [sample for _, sample in found]
    for kind, found in groupby(
        sorted(enumerate(SAMPLES), key=lambda pair: (type(pair[1][0]).__name__, pair[0])),
        key=lambda pair: type(pair[1][0]).__name__,
    )
}


def row_of(op: Op, arrays: tuple[np.ndarray, ...]) -> known.Row:
    ins = [Spec(np.shape(array), str(np.asarray(array).dtype)) for array in arrays]
    outs = op.infer(*ins)
    cpu, cuda = (table.workspace_bytes(op, ins, outs, 2) for table in (CPU, CUDA))
    shapes = " ".join("x".join(map(str, spec.shape)) for spec in outs)
    others = dict(op.reusable()), op.window(), op.pure, op.scalar_names, op.verb, op.out_names
    return (op, shapes, op.flops(ins, outs), op.bytes_moved(ins, outs), cpu, cuda,
            known.digest(others))  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_of_an_operation_is_known(kind):
    known.check("operations", kind, [row_of(op, arrays) for op, arrays in KINDS[kind]])


def test_every_row_is_of_an_operation():
    assert known.whose("operations") == set(KINDS)
