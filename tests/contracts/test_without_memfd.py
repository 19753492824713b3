"""Without memfd (macOS, Windows) everything still runs: the cpu device has a plain arena then."""

from __future__ import annotations

import os

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.cli import main


@pytest.fixture
def hidden_memfd(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")


def train(allocator: str, budget: str | None) -> tuple[list[float], dict, object]:
    oc.manual_seed(0)
    model = oc.models.build("lenet")
    images = np.random.default_rng(0).standard_normal((16, 3, 32, 32), np.float32)
    labels = np.arange(16) % 10
    with oc.Trainer(
        model, budget=budget, planner="window", allocator=allocator, threads=1
    ) as trainer:
        losses = [trainer.step(images, labels) for _ in range(3)]
        return losses, trainer.state_arrays(), trainer.prepared


@pytest.mark.usefixtures("hidden_memfd")
def test_training_runs_in_a_plain_arena_with_the_same_bits(monkeypatch):
    losses, arrays, prepared = train("va", "70%")
    assert prepared.allocator.name == "best-fit"
    assert any("virtual memory" in notice for notice in prepared.notices)
    monkeypatch.undo()
    with_memfd, expected, _ = train("va", None)
    assert losses == with_memfd
    assert all(arrays[name].tobytes() == expected[name].tobytes() for name in expected)


@pytest.mark.usefixtures("hidden_memfd")
def test_planning_and_proving_need_no_memfd():
    trace = oc.trace(oc.models.build("lenet"), (8, 3, 32, 32))
    plan = oc.plan(trace, "50%", planner="window", machine="v100-pcie")
    oc.verify(plan, trace, "50%", "v100-pcie")
    timeline = oc.simulate(plan.schedule, plan.trace, oc.machine("v100-pcie"))
    assert timeline.peak_bytes == plan.peak_bytes


@pytest.mark.usefixtures("hidden_memfd")
def test_the_doctor_says_what_is_missing_and_what_to_do(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "--allocator best-fit" in out
