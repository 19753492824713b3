"""The laws of an operation's GPU kernels, checked where there is no GPU.

An operation is tried on given arrays, and an AssertionError says which law it breaks. The kernels
run in the emulator, which tolerates neither races nor stray indices. They must agree with the NumPy
definition in float64, write nothing outside their outputs and workspace, change no input, and give
the same bits whether blocks and threads run up or down, and in place where the operation says it
can. Read next: `emulator.py`, `testing/check_op.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ooctrain.engine.eager import make_pool, run_cpu
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.op import Op, Scalars, to_physical
from ooctrain.testing.check_op import (
    SCALARS,
    as_input,
    check_agreement,
    run_guarded,
    same_bits,
    spec_of,
)
from ooctrain.testing.emulator import EmulatedLauncher

UPWARDS, DOWNWARDS = EmulatedLauncher(1), EmulatedLauncher(-1)


def check_cuda(
    op: Op, *arrays: Any, scalars: Scalars = SCALARS, tolerance: float = 1e-5,
    launchers: Sequence[Launcher] = (UPWARDS, DOWNWARDS),
) -> list[np.ndarray]:  # fmt: skip
    """Checks all laws of one operation's GPU kernels on given inputs.

    Args:
        arrays: logical inputs; floats are taken as float32.
        scalars: step scalars.
        tolerance: tolerance of kernel against definition, relative to the largest value.
        launchers: that must give the same bits.

    Returns:
        The physical outputs, for checks of one's own.

    Raises:
        AssertionError: a law is broken.
    """
    inputs = [as_input(array) for array in arrays]
    first, *others = launchers
    outputs = run_cuda(op, inputs, scalars, first)
    check_agreement(op, inputs, outputs, scalars, tolerance)
    for other in others:
        again = run_cuda(op, inputs, scalars, other)
        assert same_bits(outputs, again), f"{op}: the order of blocks and threads changes the bits"
    if op.reusable():
        in_place = run_cuda(op, inputs, scalars, first, in_place=True)
        assert same_bits(outputs, in_place), f"{op}: in place"
    return outputs


def run_cuda(
    op: Op, inputs: Sequence[np.ndarray], scalars: Scalars = SCALARS,
    launcher: Launcher = UPWARDS, in_place: bool = False,
) -> list[np.ndarray]:  # fmt: skip
    """Physical outputs of an operation's GPU kernels on logical inputs, by the emulator or another
    launcher of arrays in this process."""
    specs = [spec_of(a) for a in inputs]
    space_bytes = CUDA.workspace_bytes(op, specs, op.infer(*specs), 1)
    run = partial(CUDA.run, op, launcher, scalars=scalars)
    return run_guarded(op, inputs, run, space_bytes, in_place)


def cpu_bits(op: Op, *arrays: np.ndarray, scalars: Scalars = SCALARS) -> list[np.ndarray]:
    """Physical outputs of the operation's cpu kernels on logical inputs, one thread at work."""
    outs = op.infer(*(spec_of(array) for array in arrays))
    pool = make_pool(1)
    try:
        return run_cpu(op, pool, [to_physical(array) for array in arrays], outs, scalars)
    finally:
        pool.close()
