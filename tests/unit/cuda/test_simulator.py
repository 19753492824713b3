"""Four kernels in Numba's own simulator, which knows nothing of our emulator: the same bits.

The simulator runs each thread of a block as a thread of Python, with real barriers; what a kernel
means there is Numba's word, not ours. It is slow and checks neither races nor stray indices, so one
block of each kernel is enough. It is chosen by the environment when Numba is imported: this file
runs itself in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cuda import chunks, columns, layout
from ooctrain.layers.kernels.cuda.conv import conv2d
from ooctrain.layers.kernels.cuda.runtime import shim
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, part_of, prepare_arguments

SHAPE = ConvShape(n=1, c=3, h=4, w=5, k=2, r=3, s=3, stride=(1, 2), padding=(1, 1, 1, 0))


class SimulatedLauncher:
    """A `Launcher` on NumPy arrays, by Numba's simulator."""

    def launch(self, kernel: shim.Kernel, blocks: Any, *args: Any) -> None:
        ready = prepare_arguments(kernel, args, lambda array: array.reshape(-1))
        shim.cuda.jit(kernel.function)[blocks, kernel.threads](*ready)

    def part(self, workspace: Any, offset_bytes: int, count: int, dtype: str) -> Any:
        return part_of(workspace, offset_bytes, count, dtype)


class Inputs:
    """The same numbers in every process."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.matrix = rng.standard_normal((5, 7), np.float32)
        self.rows = rng.standard_normal((45, 5), np.float32)
        self.x = rng.standard_normal((SHAPE.n, SHAPE.h, SHAPE.w, SHAPE.c), np.float32)
        self.w = rng.standard_normal((SHAPE.k, SHAPE.r, SHAPE.s, SHAPE.c), np.float32)
        self.bias = rng.standard_normal(SHAPE.k, np.float32)


def run_all(launcher: Launcher) -> dict[str, np.ndarray]:
    """What the kernels make of the inputs."""
    inputs = Inputs()
    turned, sums = np.zeros((7, 5), np.float32), np.zeros(5, np.float32)
    layout.transpose(launcher, inputs.matrix, turned)
    one_chunk = chunks.columns(*inputs.rows.shape)
    columns.sum_chunks(launcher, one_chunk, inputs.rows, sums)
    found = {"turned": turned, "sums": sums}
    for algorithm in ("naive", "tiled"):
        y = np.zeros((SHAPE.n, SHAPE.oh, SHAPE.ow, SHAPE.k), np.float32)
        conv2d.forward(launcher, SHAPE, algorithm, inputs.x, inputs.w, inputs.bias, y, None)
        found[algorithm] = y
    return found


def convolved() -> np.ndarray:
    """The convolution by its definition, in float64."""
    inputs, (top, bottom, left, right) = Inputs(), SHAPE.padding
    x = np.pad(inputs.x.astype(float), ((0, 0), (top, bottom), (left, right), (0, 0)))
    fields = np.lib.stride_tricks.sliding_window_view(x, (SHAPE.r, SHAPE.s), (1, 2))
    fields = fields[:, :: SHAPE.stride[0], :: SHAPE.stride[1]]
    return np.einsum("npqcrs,krsc->npqk", fields, inputs.w) + inputs.bias


@pytest.mark.slow
def test_the_simulator_and_the_emulator_agree_to_the_bit(tmp_path):
    from ooctrain.testing.emulator import EmulatedLauncher

    path = tmp_path / "simulated.npz"
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, str(Path(__file__)), str(path)]
    subprocess.run(command, check=True, env=environment, timeout=240)
    simulated, emulated = dict(np.load(path)), run_all(EmulatedLauncher())
    assert simulated.keys() == emulated.keys()
    for name, values in emulated.items():
        assert simulated[name].tobytes() == values.tobytes(), name


@pytest.mark.slow
def test_and_both_are_right():
    from ooctrain.testing.emulator import EmulatedLauncher

    found, inputs = run_all(EmulatedLauncher(order=-1)), Inputs()
    assert (found["turned"] == inputs.matrix.T).all()
    np.testing.assert_allclose(found["sums"], inputs.rows.sum(0, dtype=float), rtol=1e-5, atol=1e-5)
    for name in ("naive", "tiled"):
        np.testing.assert_allclose(found[name], convolved(), rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    np.savez(sys.argv[1], **run_all(SimulatedLauncher()))
