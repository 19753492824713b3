"""An operation whose kernels are kept does everywhere what a plain run does, bit by bit.

`devices/cpu/launches.py` works a call out once: its kernels, with their arguments packed. From then
on its arrays lie elsewhere, hold other values, and its outputs and its workspace are full of
garbage. The function that starts the kernels is not called again, so whatever it computes itself
would be missing; that is a bug of one line (`pool.every_time()` is forgotten), and no single step
shows it. The table of samples is `tests/support/op_samples.py`, which has every operation.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.op_samples import SAMPLES
from support.quick import quick

from ooctrain.devices.cpu.launches import BoundOperation
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.step.op import Op
from ooctrain.testing.check_op import SCALARS, as_input, run_guarded, same_bits, spec_of

#: Whose functions look at values, or compute some: they are called in every step.
EVERY_TIME = {
    "ClassWeights", "Clear", "ClipFactor", "ClipValue", "LabelWeight", "MeanErrorGrad", "ScaleBy",
    "SoftmaxCrossEntropy", "SoftmaxCrossEntropyGrad", "TotalLoss", "WeightedCrossEntropy",
    "WeightedCrossEntropyGrad",
}  # fmt: skip


class CountingPool(ThreadPool):
    """Counts the kernels that were repeated."""

    repeated = 0

    def repeat(self, call, addresses):
        self.repeated += 1
        return super().repeat(call, addresses)


class Bound:
    """An operation that is bound once, and run at ever new places."""

    def __init__(self, op: Op, inputs: list[np.ndarray], pool: ThreadPool, in_place: bool):
        self.op, self.pool, self.in_place, self.held = op, pool, in_place, []
        ins = [spec_of(array) for array in inputs]
        self.outs = op.infer(*ins)
        self.space_bytes = CPU.workspace_bytes(op, ins, self.outs, pool.threads)
        self.bound = BoundOperation(pool, op, ins, self.outs, self.space_bytes)

    def run(self, inputs, scalars=SCALARS):
        def kept(ins, outs, workspace):
            arrays = *ins, *outs, workspace
            self.held.append(arrays)  # so that the next ones lie elsewhere
            self.bound(tuple(array.ctypes.data for array in arrays), scalars)

        return run_guarded(self.op, inputs, kept, self.space_bytes, self.in_place)

    def plain(self, inputs, scalars=SCALARS):
        def run(ins, outs, workspace):
            CPU.run(self.op, self.pool, ins, outs, workspace, scalars)

        return run_guarded(self.op, inputs, run, self.space_bytes, self.in_place)


def others(inputs):
    """Other values of the same kind: in another order, and floats are halved."""
    halves = [
        array * array.dtype.type(0.5) if array.dtype.kind == "f" else array for array in inputs
    ]
    return [array.ravel()[::-1].reshape(array.shape).copy() for array in halves]


@pytest.fixture(scope="module")
def pool():
    made = CountingPool(2)
    yield made
    made.close()


def check_kept(op: Op, arrays, pool: ThreadPool, in_place: bool = False) -> None:
    """Thrice, each time at other places; first its values change, then its scalars."""
    inputs = [as_input(array) for array in arrays]
    case, changed = Bound(op, inputs, pool, in_place), {**SCALARS, "step": 9, "lr": 0.125}
    for values, scalars in ((inputs, SCALARS), (others(inputs), SCALARS), (inputs, changed)):
        assert same_bits(case.run(values, scalars), case.plain(values, scalars)), op


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("op", "arrays"),
    quick(SAMPLES, *range(0, len(SAMPLES), 3), names=2),
    ids=lambda v: repr(v) if isinstance(v, Op) else "",
)
def test_a_kept_call_is_a_plain_run_anywhere(op, arrays, in_place, pool):
    if in_place and not op.reusable():
        pytest.skip("it writes to no input")
    check_kept(op, arrays, pool, in_place)


def test_what_is_called_every_time_is_known(pool):
    """Of every other operation at least one sample is kept."""
    kept = set()
    for op, arrays in SAMPLES:
        inputs = [as_input(array) for array in arrays]
        case, before = Bound(op, inputs, pool, False), pool.repeated
        case.run(inputs)
        if pool.repeated > before:
            kept.add(type(op).__name__)
    assert {type(op).__name__ for op, _ in SAMPLES} - kept == EVERY_TIME
