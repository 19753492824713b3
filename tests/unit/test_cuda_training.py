"""Networks train on the cuda device, over the strict fake driver, out-of-core as in-core.

The whole way is the user's: trace, plan, allocator, device, executor; only the driver is the fake
and the kernels are the cpu's, run when the fake's streams get to them (the emulated kernels have
tests of their own in `tests/unit/cuda/`).
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from doubles.cpu_kernels import CpuKernels
from support.quick import quick
from support.same_bits import out_of_core

import ooctrain as oc
from ooctrain import nn
from ooctrain.cli import main
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.interface import Debug
from ooctrain.engine.incore import initial_values
from ooctrain.errors import ConfigError, DeviceUnavailable, OutOfDeviceMemory, PlanMismatch
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings
from ooctrain.testing.fake_driver import FakeDriver

MIB = 1 << 20
PAGE = 4096
SCALARS = {"lr": 0.05, "seed": 3}


class Fakes:
    """Every driver that is opened: the strict fake, with the order of its queues."""

    def __init__(self, monkeypatch):
        self.choose, self.total_bytes, self.maps = min, 256 * MIB, True
        self.opened: list[FakeDriver] = []
        monkeypatch.setattr(cuda_open, "open_cuda_driver", self.open)
        monkeypatch.setattr(cuda_open, "make_kernels", CpuKernels)
        monkeypatch.setattr(cuda_open, "require_compiler", lambda gpu: None)
        monkeypatch.setattr(cuda_open, "require_kernels", lambda trace, gpu: None)

    def open(self):
        driver = FakeDriver(self.total_bytes, PAGE, self.choose, maps=self.maps)
        self.opened.append(driver)
        return driver

    def check_nothing_is_held(self):
        for driver in self.opened:
            assert not any(driver.held().values()), driver.held()


@pytest.fixture
def fakes(monkeypatch):
    found = Fakes(monkeypatch)
    yield found
    found.check_nothing_is_held()


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = oc.functional.relu(self.bn1(self.conv1(x)))
        return oc.functional.relu(self.bn2(self.conv2(y)) + x)


def small_resnet():
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), Block(8), nn.MaxPool2d(2), Block(8), nn.Dropout(0.2),
        nn.Flatten(), nn.Linear(8 * 16, 10),
    )  # fmt: skip


def lenet():
    oc.manual_seed(0)
    return oc.models.build("lenet")


NETWORKS = {"lenet": (lenet, (4, 3, 32, 32)), "resnet": (small_resnet, (4, 3, 8, 8))}


class Workload:
    """A network, its step traced for the GPU, and two batches."""

    def __init__(self, name):
        build, self.shape = NETWORKS[name]
        self.trace = oc.trace(build(), self.shape, device="cuda", threads=1)
        self.start = initial_values(self.trace, build())
        self.found = None
        rng = np.random.default_rng(1)
        self.batches = [
            (rng.standard_normal(self.shape, np.float32), rng.integers(0, 10, self.shape[0]))
            for _ in range(2)
        ]

    def in_core(self):
        """What the steps leave with everything in memory; run once."""
        if self.found is None:
            self.found = self.train(None, "keep-all", "best-fit")[1]
        return self.found

    def train(self, budget, planner, allocator, debug=None):
        """(the prepared step, what two steps leave)."""
        how = Settings(
            budget=budget, planner=planner, allocator=allocator, device="cuda",
            debug=debug or Debug(), time_limit_s=None, machine="cpu-generic",
        )  # fmt: skip
        prepared = prepare(self.trace, how)
        return prepared, out_of_core(prepared, how, self.start, self.batches, SCALARS)


def same(one, other):
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)
        for a, b in zip(one, other, strict=True)
    )


def orders():
    return {"oldest": min, "newest": max, "any": random.Random(5).choice}


@pytest.fixture(scope="module")
def workloads():
    return {name: Workload(name) for name in NETWORKS}


def is_smaller(prepared):
    """Whether a step is planned to need less than in-core."""
    return prepared.plan.peak_bytes < prepared.in_core_peak_bytes


@pytest.mark.parametrize("order", orders())
def test_out_of_core_is_in_core_in_every_order_of_the_queues(workloads, fakes, order):
    expected = workloads["resnet"].in_core()
    fakes.choose = orders()[order]
    prepared, found = workloads["resnet"].train("25%", "window", "va:chunk=4KiB")
    assert same(found, expected)
    assert np.isfinite(found[-1]["loss"])
    assert is_smaller(prepared)


@pytest.mark.parametrize(
    ("planner", "allocator", "budget"),
    quick([
        ("belady", "best-fit", "60%"), ("naive", "first-fit", "25%"),
        ("lms", "passthrough", "50%"), ("window", "va-paper:chunk=4KiB", "25%"),
        ("dtr", "va:chunk=4KiB", "60%"), ("combined", "va", "25%"),
    ], 0, 3, 4, names=3),
)  # fmt: skip
def test_out_of_core_is_in_core_with_every_kind_of_planner(
    workloads, fakes, planner, allocator, budget
):
    expected = workloads["resnet"].in_core()
    fakes.choose = orders()["any"]
    prepared, found = workloads["resnet"].train(budget, planner, allocator)
    assert same(found, expected)
    assert is_smaller(prepared)


def test_lenet_too(workloads, fakes):
    expected = workloads["lenet"].in_core()
    fakes.choose = orders()["newest"]
    prepared, found = workloads["lenet"].train("25%", "window", "va:chunk=4KiB")
    assert same(found, expected)
    assert is_smaller(prepared)


@pytest.mark.parametrize(
    "debug",
    [Debug(poison=0xFF, check_ledger=True), Debug(poison=0x7F), Debug(synchronous=True)],
    ids=["fresh", "freed", "synchronous"],
)
def test_debug_modes_change_no_bit_of_a_network(workloads, fakes, debug):
    expected = workloads["resnet"].in_core()
    fakes.choose = max
    _, found = workloads["resnet"].train("25%", "window", "va", debug)
    assert same(found, expected)


def test_the_trainer_trains_evaluates_and_gives_everything_back(fakes):
    images, labels = np.ones((4, 3, 32, 32), np.float32), np.arange(4)
    losses = {}
    for budget in (None, "30%"):
        with oc.Trainer(
            lenet(), budget=budget, planner="window", device="cuda", machine="cpu-generic"
        ) as trainer:
            losses[budget] = [trainer.step(images, labels) for _ in range(3)]
            before = trainer.model.state_dict()
            assert trainer.evaluate([(images, labels)]).samples == 4
            assert trainer.predict(images).shape == (4, 10)
            assert all((before[k] == v).all() for k, v in trainer.model.state_dict().items())
            assert trainer.timeline.makespan_us > 0
    assert losses[None] == losses["30%"]
    assert losses[None][2] < losses[None][0]


def test_any_thread_trains_and_a_dropped_trainer_gives_everything_back(fakes):
    images, labels = np.ones((4, 3, 32, 32), np.float32), np.arange(4)
    made = [oc.Trainer(lenet(), device="cuda", machine="cpu-generic") for _ in range(2)]
    with ThreadPoolExecutor(1) as thread:
        found = [thread.submit(made[0].step, images, labels).result() for _ in range(2)]
    assert found == [made[1].step(images, labels) for _ in range(2)]
    values = made[0].model.state_dict()
    models = [trainer.model for trainer in made]
    made.clear()
    fakes.check_nothing_is_held()
    assert all((value == values[name]).all() for name, value in models[0].state_dict().items())


def test_one_step_by_execute(fakes):
    model = lenet()
    trace = oc.trace(model, (4, 3, 32, 32), device="cuda")
    batch = (np.ones((4, 3, 32, 32), np.float32), np.arange(4))
    runs = [
        oc.execute(oc.plan(trace, budget, planner=planner), model, batch, "cuda", "best-fit")
        for budget, planner in (("100%", "keep-all"), ("40%", "window"))
    ]
    assert runs[0].loss == runs[1].loss
    assert runs[0].gradients.keys() == runs[1].gradients.keys()
    assert all((g == runs[1].gradients[n]).all() for n, g in runs[0].gradients.items())


def test_the_command_line_trains_on_the_gpu_and_verifies_itself(fakes, tmp_path):
    path = tmp_path / "numbers.json"
    arguments = "train lenet --batch 4 --steps 2 --device cuda --budget 60% --planner window"
    assert main([*arguments.split(), "--verify", "--json", str(path)]) == 0
    numbers = json.loads(path.read_text(encoding="utf-8"))
    assert numbers["device"] == "cuda"
    assert numbers["identical_to_incore"] is True
    assert numbers["machine"] == "h200-pcie"


@pytest.mark.parametrize("options", [["--device", "cuda"], ["--device", "cuda", "--allow-tf32"]])
def test_a_step_on_the_gpu_is_planned_without_one(options, capsys):
    assert main(["plan", "lenet", "--budget", "50%", "--planner", "window", *options]) == 0
    assert "h200-pcie" in capsys.readouterr().out


# What is said before training.


def test_a_step_for_the_other_device_is_refused(fakes):
    trace = oc.trace(lenet(), (4, 3, 32, 32), device="cpu")
    with pytest.raises(PlanMismatch, match="traced for device 'cpu'") as caught:
        prepare(trace, Settings(device="cuda"))
    assert "device='cuda'" in caught.value.fix


def test_where_nothing_can_be_mapped_another_allocator_serves_and_says_so(workloads, fakes):
    fakes.maps = False
    prepared, found = workloads["lenet"].train("40%", "window", "va")
    assert prepared.allocator.name == "best-fit"
    assert "needs virtual memory" in prepared.notices[0]
    assert same(found, workloads["lenet"].in_core())


def test_more_than_the_gpu_has_free_is_refused_before_the_first_step(workloads, fakes):
    fakes.total_bytes = 64 * PAGE
    with pytest.raises(OutOfDeviceMemory, match="less free memory than the budget"):
        workloads["lenet"].train(None, "keep-all", "best-fit")


def test_without_a_driver_nothing_is_planned(monkeypatch):
    def missing():
        raise DeviceUnavailable("there is no CUDA driver", call="dlopen", fix="--device cpu")

    monkeypatch.setattr(cuda_open, "open_cuda_driver", missing)
    with pytest.raises(DeviceUnavailable, match="no CUDA driver"):
        oc.Trainer(lenet(), device="cuda").step(np.ones((4, 3, 32, 32), np.float32), np.arange(4))


def test_a_device_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        Settings(device="gpu")
