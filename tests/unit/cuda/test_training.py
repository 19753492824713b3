"""The whole of it without a GPU: real device code, real device, only the driver is the fake.

A small network's kernels run in the emulator, queued on the fake's streams, out-of-core and
in-core: the same bits; and near what the cpu device computes.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.same_bits import out_of_core

import ooctrain as oc
from ooctrain import nn
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings
from ooctrain.testing.emulator import EmulatedLauncher
from ooctrain.testing.fake_driver import FakeDriver
from ooctrain.testing.fake_gpu import EmulatedKernels

PAGE = 4096
SCALARS = {"lr": 0.1, "seed": 5}
SHAPE = (2, 3, 8, 8)


def network():
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 5),
    )  # fmt: skip


@pytest.fixture
def emulated(monkeypatch):
    """Opens the fake, runs kernels in the emulator; the order of queues and threads is drawn."""
    drawn = random.Random(3)

    def open_driver():
        return FakeDriver(64 << 20, PAGE, drawn.choice)

    def make_kernels(driver, stream):
        return EmulatedKernels(driver, stream, EmulatedLauncher(drawn.choice([1, -1])))

    monkeypatch.setattr(cuda_open, "open_cuda_driver", open_driver)
    monkeypatch.setattr(cuda_open, "make_kernels", make_kernels)
    monkeypatch.setattr(cuda_open, "require_compiler", lambda gpu: None)


@pytest.mark.slow
def test_device_code_trains_out_of_core_as_in_core_and_near_the_cpu_device(emulated):
    rng = np.random.default_rng(0)
    batches = [
        (rng.standard_normal(SHAPE, np.float32), rng.integers(0, 5, SHAPE[0])) for _ in range(2)
    ]
    gpu = oc.trace(network(), SHAPE, device="cuda")
    start = initial_values(gpu, network())
    found = {}
    for budget, planner, allocator in (
        (None, "keep-all", "best-fit"), ("25%", "window", "va:chunk=4KiB"),
        ("50%", "window", "best-fit"),
    ):  # fmt: skip
        how = Settings(
            budget=budget, planner=planner, allocator=allocator, device="cuda",
            machine="cpu-generic",
        )  # fmt: skip
        found[budget] = out_of_core(prepare(gpu, how), how, start, batches, SCALARS)
    for steps in found.values():
        for one, other in zip(steps, found[None], strict=True):
            assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    cpu = oc.trace(network(), SHAPE, device="cpu", threads=1)
    values = {**start, "input": batches[0][0], "target": batches[0][1]}
    exact = run_trace(cpu, values, scalars={**SCALARS, "step": 0}, mode="reference")
    loss = float(exact["loss"])
    assert abs(float(found[None][0]["loss"]) - loss) < 1e-5 * abs(loss)
