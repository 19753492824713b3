"""What is looked at before a GPU is used, and what is said of each thing that can be wrong."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.refusing_driver import RefusingDriver

import ooctrain as oc
from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.driver import open_cuda_driver
from ooctrain.devices.cuda.open import (
    Gpu,
    look_at_gpu,
    pip_command,
    require_compiler,
    require_kernels,
)
from ooctrain.devices.interface import Debug
from ooctrain.errors import ConfigError, DeviceUnavailable
from ooctrain.layers.relu import ReLU
from ooctrain.step.op import Spec

GPU = Gpu("fake", 13000, (9, 0), 2 << 20, 1 << 30, 2 << 30)
WHEELS = {"numba-cuda": "0.30.4", "nvidia-cuda-nvrtc": "13.3.1"}


@pytest.fixture
def driver(monkeypatch):
    opened = RefusingDriver(64 << 20, 2 << 20)
    monkeypatch.setattr(cuda_open, "open_cuda_driver", lambda: opened)
    return opened


@pytest.fixture
def compiler(monkeypatch):
    """The trial compilation; a test lets it fail."""
    problems: list[Exception] = []

    def trial():
        if problems:
            raise problems[0]

    monkeypatch.setattr(cuda_open, "_try_compiler", trial)
    return problems


def test_a_look_tells_what_planning_needs_and_leaves_nothing_open(driver):
    assert look_at_gpu() == Gpu("fake", 13000, (9, 0), 2 << 20, 64 << 20, 64 << 20, "")
    assert not any(driver.held().values())
    with pytest.raises(oc.OoctrainError, match="DEINITIALIZED"):
        driver.memory_info()


def test_refused_virtual_memory_is_told_with_the_step_and_the_answer(driver):
    driver.fail(0, 800, ("cuMemCreate",))
    problem = look_at_gpu().mapping_problem
    assert "step create" in problem
    assert "NOT_PERMITTED" in problem


def test_a_device_that_maps_nothing_still_has_a_granularity(monkeypatch):
    monkeypatch.setattr(cuda_open, "open_cuda_driver", lambda: RefusingDriver(1 << 20, maps=False))
    gpu = look_at_gpu()
    assert "none" in gpu.mapping_problem
    assert gpu.granularity_bytes == 2 << 20


@pytest.mark.parametrize(
    ("version", "extra"), [(12000, "cu12"), (12090, "cu12"), (13000, "cu13"), (13020, "cu13")]
)
def test_the_pip_command_is_the_one_for_the_driver(version, extra):
    command = f'pip install "numba-cuda[{extra}]>=0.30.4"'
    assert pip_command(version) == command


def test_the_pip_command_asks_for_what_the_extras_do():
    """Else a user who follows it gets a NumPy beside which the compiler does not work."""
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for version, extra in ((12000, "cu12"), (13000, "cu13")):
        wanted = [requirement.split(";")[0] for requirement in extras[extra]]
        assert pip_command(version) == "pip install " + " ".join(f'"{w}"' for w in wanted)


def test_without_numba_cuda_the_command_is_said(compiler, monkeypatch):
    require_compiler(GPU, {}.get)  # Numba's own compiler serves
    compiler.append(ImportError("no cuda.bindings"))
    monkeypatch.setattr(cuda_open, "why_it_failed", lambda *_: ("", ""))
    with pytest.raises(DeviceUnavailable, match="numba-cuda is not installed") as caught:
        require_compiler(replace(GPU, version=12080), {}.get)
    assert caught.value.code == "OOC-153"
    assert 'pip install "numba-cuda[cu12]>=0.30.4"' in caught.value.fix


def test_a_compiler_newer_than_the_driver_is_said_with_both(compiler):
    with pytest.raises(DeviceUnavailable, match=r"code for CUDA 13, and the driver serves 12\.8"):
        require_compiler(replace(GPU, version=12080), WHEELS.get)
    require_compiler(GPU, WHEELS.get)
    both = {**WHEELS, "nvidia-cuda-nvrtc-cu12": "12.8.1"}
    require_compiler(replace(GPU, version=12080), both.get)
    require_compiler(
        replace(GPU, version=13000), {"numba-cuda": "1", "nvidia-cuda-nvrtc-cu12": "1"}.get
    )


def test_a_toolkit_that_is_missing_shows_when_a_kernel_is_tried(monkeypatch):
    def fail():
        raise OSError("libnvvm is not found\nlong text")

    monkeypatch.setattr(cuda_open, "_try_compiler", fail)
    with pytest.raises(DeviceUnavailable) as caught:
        require_compiler(GPU, WHEELS.get)
    assert caught.value.numbers == "libnvvm is not found"
    assert "numba-cuda[cu13]" in caught.value.fix


class Twice(oc.Op):
    """A user's operation."""

    def shape(self, x):
        return x

    def forward(self, x):
        return 2 * x

    def backward(self, dy):
        return 2 * dy


class WithTwice(oc.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = oc.nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(Twice()(x))


def test_a_users_operation_is_named_before_anything_runs():
    trace = oc.trace(WithTwice(), (2, 4), device="cuda")
    with pytest.raises(ConfigError, match=r"twice.*no kernel for the GPU") as caught:
        require_kernels(trace, GPU)
    assert caught.value.code == "OOC-116"
    assert "--device cpu" in caught.value.fix


def test_tf32_wants_a_gpu_that_has_it():
    class Convolution(oc.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = oc.nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x)

    trace = oc.trace(
        Convolution(), (1, 3, 8, 8), loss=None, training=False, device="cuda", allow_tf32=True
    )
    require_kernels(trace, replace(GPU, capability=(8, 0)))
    with pytest.raises(ConfigError, match="no tensor cores for TF32") as caught:
        require_kernels(trace, replace(GPU, capability=(7, 5)))
    assert "--allow-tf32" in caught.value.fix


def test_after_a_fork_opening_a_gpu_says_what_to_do():
    """The driver's answer in a fork of a process that uses CUDA is NOT_INITIALIZED."""

    class Forked:
        def __getattr__(self, symbol):
            class Function:
                def __call__(self, *arguments):
                    if symbol == "cuDriverGetVersion":
                        arguments[0]._obj.value = 13000
                        return 0
                    return abi.NOT_INITIALIZED if symbol == "cuInit" else 0

            return Function()

    with pytest.raises(DeviceUnavailable, match="cannot be used here") as caught:
        open_cuda_driver(load=lambda _: Forked())
    assert "start workers by spawn" in caught.value.fix


@pytest.mark.gpu
def test_the_gpu_of_this_machine_can_be_used():
    gpu = look_at_gpu()
    assert gpu.capability >= (7, 5)
    assert gpu.mapping_problem == ""
    require_compiler(gpu)


@pytest.mark.gpu
def test_values_reach_the_gpu_of_this_machine_and_come_back():
    device = cuda_open.open_device(
        64 << 20, 1 << 20, piece_bytes=None, link="duplex", debug=Debug()
    )
    data = np.random.default_rng(os.getpid()).integers(0, 256, 9 << 20, np.uint8)
    address = device.memory.linear()
    device.write(address + 512, data)
    assert (device.read(address + 512, data.size) == data).all()
    device.close()


@pytest.mark.gpu
def test_kernels_run_on_our_memory_and_our_stream_and_are_seen_by_our_copies():
    device = cuda_open.open_device(
        64 << 20, 1 << 20, piece_bytes=None, link="duplex", debug=Debug()
    )
    x = np.random.default_rng(0).standard_normal((3, 5, 7, 8)).astype(np.float32)
    address = device.memory.linear()
    device.write(address, x.reshape(-1).view(np.uint8))
    shape, found = Spec((3, 8, 5, 7)), {}
    launch = device.bind(ReLU(), [shape], [shape], 0)

    def work():
        launch((address, address + x.nbytes, 0), {})
        found["y"] = device.capture(address + x.nbytes, x.nbytes)

    device.streams.submit(0, (0, 0, 0), work)
    device.streams.synchronize()
    assert (found["y"].view(np.float32).reshape(x.shape) == np.maximum(x, 0)).all()
    (span,) = device.streams.restart()
    assert 0 < span.end_ns - span.start_ns < 10**9
    device.close()
