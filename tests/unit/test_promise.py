"""The parts of a memory budget that are neither arena nor slab."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.devices.cpu.process_memory import ProcessMemory
from ooctrain.errors import Infeasible
from ooctrain.execution import promise, step_cache
from ooctrain.execution.promise import LIST_BYTES_AN_INSTRUCTION as EACH
from ooctrain.execution.promise import (
    OWN_STEP_BYTES,
    THREAD_BYTES,
    OwnShare,
    list_bytes,
    parts_of,
    running_bytes,
)
from ooctrain.step.trace import Trace
from ooctrain.units import MIB


def test_each_thread_costs_as_much_as_a_thread():
    step = oc.chain([8] * 3, [8] * 3, [1] * 2, [1] * 2, [0] * 2, [0] * 2)
    parts = [parts_of(step, 1 << 40, None, threads) for threads in (1, 2, 7)]
    assert parts[0].stacks_bytes - parts[1].stacks_bytes == -THREAD_BYTES
    assert parts[0].left_bytes - parts[2].left_bytes == 6 * THREAD_BYTES


def test_what_a_process_holds_by_itself_is_rounded_up_and_its_values_do_not_count(monkeypatch):
    step = oc.chain([8] * 3, [8] * 3, [1] * 2, [1] * 2, [0] * 2, [0] * 2)
    values = list(oc.nn.Linear(1024, 1024).parameters())
    sizes = [value.numpy().nbytes for value in values]
    large = max(sizes)
    holds = ProcessMemory(large + 3 * OWN_STEP_BYTES - 1, 0, 0, 0, 0)
    monkeypatch.setattr(promise, "held", lambda: holds)
    own = promise.own_share(step, (), values, searches=False)
    assert own == OwnShare(3 * OWN_STEP_BYTES, sum(sizes))


def test_a_list_is_counted_by_its_length_where_that_is_more_than_usual():
    """A step in bands may have a hundred times the instructions of its calls."""
    step = oc.chain([8] * 3, [8] * 3, [1] * 2, [1] * 2, [0] * 2, [0] * 2)
    longer = oc.chain([8] * 4, [8] * 4, [1] * 3, [1] * 3, [0] * 3, [0] * 3)
    parts = parts_of(step, 0, None, 1)
    usual = parts_of(longer, 0, None, 1).list_bytes - parts.list_bytes
    assert usual % EACH == 0
    assert usual // EACH == 4 * (len(longer.calls) - len(step.calls))
    assert list_bytes(4 * len(step.calls) + 7) == parts.list_bytes + 7 * EACH


def test_a_list_runs_beside_what_planning_has_left():
    """A promise has at least as much for lists as planning has left."""
    step = oc.chain([8] * 3, [8] * 3, [1] * 2, [1] * 2, [0] * 2, [0] * 2)
    own = OwnShare(0, 0, left_bytes=1 << 30)
    parts = parts_of(step, 0, own, 1)
    assert parts.list_bytes == 1 << 30
    assert parts_of(step, 0, None, 1).list_bytes < 1 << 30
    assert running_bytes(parts.list_bytes, 0) == parts.list_bytes < running_bytes(1 << 30, 1)


def test_values_that_move_are_there_twice_and_a_piece_of_them_again():
    """By the largest of them: they move one by one."""
    model = oc.nn.Sequential(oc.nn.Flatten(), oc.nn.Linear(1024, 1024), oc.nn.Linear(1024, 3000))
    step = oc.trace(model, (2, 1, 32, 32), threads=1)
    largest = 4 * 1024 * 3000
    values = parts_of(step, 0, None, 1).values_bytes
    assert largest + (8 << 20) <= values < largest + (9 << 20)


def test_what_an_evaluation_hands_out_is_counted():
    """It lies on the host as it lay on the device, and in logical layout; a map of 20 classes is
    far larger than the images. A training step hands out its loss alone."""
    model = oc.nn.Conv2d(3, 20, 3, padding=1)
    plain, handing = (
        parts_of(oc.trace(model, (2, 3, 16, 16), threads=1, training=training), 0, None, 1)
        for training in (True, False)
    )
    assert handing.batch_bytes - plain.batch_bytes >= 3 * 4 * 2 * 20 * 16 * 16


def traces_alive():
    gc.collect()
    return [found for found in gc.get_objects() if type(found) is Trace]


@pytest.mark.parametrize("how", quick([{"memory": "16GiB"}, {"budget": "60%"}], 0))
def test_no_step_stays_that_planning_has_tried(how):
    """Steps in bands of 4244 to 10244 calls stayed with planners' tables: 40 MiB beside a
    ResNet-18, of which no promise knew."""
    before = traces_alive()
    model = oc.nn.Sequential(oc.nn.Conv2d(1, 4, 3, padding=1), oc.nn.ReLU(), oc.nn.Flatten(),
                             oc.nn.Linear(4 * 8 * 8, 10))  # fmt: skip
    x, y = np.zeros((4, 1, 8, 8), np.float32), np.zeros(4, np.int64)
    with oc.Trainer(model, **how) as trainer:
        trainer.step(x, y)
        trainer.predict(np.concatenate([x, x]))
        steps = trainer._cache._steps.values()
        known = {id(found) for each in steps for found in (each.original, each.plan.trace)}
        new = {id(found) for found in traces_alive()} - {id(found) for found in before}
        assert new <= known
        assert len(steps) == 2


def small_trainer(**how):
    oc.manual_seed(0)
    model = oc.nn.Sequential(oc.nn.Conv2d(1, 4, 3, padding=1), oc.nn.ReLU(), oc.nn.Flatten(),
                             oc.nn.Linear(4 * 8 * 8, 10))  # fmt: skip
    return oc.Trainer(model, threads=1, **how)


def batch(samples, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((samples, 1, 8, 8), np.float32), rng.integers(0, 10, samples)


class Leaving:
    """A process that holds more after each plan, by numbers of MiB; none are left afterwards."""

    def __init__(self, monkeypatch, *left_mib):
        self.left, self.held, self.planned = list(left_mib), 0, 0
        self._prepare = step_cache.prepare
        monkeypatch.setattr(step_cache, "held_here", lambda: self.held)
        monkeypatch.setattr(step_cache, "prepare", self.prepare)

    def prepare(self, *question):
        self.planned += 1
        self.held += self.left.pop(0) * MIB if self.left else 0
        return self._prepare(*question)


def test_what_planning_leaves_is_in_the_promise_or_there_is_another_plan(monkeypatch):
    """A test in bands left 72 MiB, and its promise had 41 for them."""
    leaving = Leaving(monkeypatch, 100, 3)
    with small_trainer(memory="16GiB") as trainer:
        trainer.step(*batch(4))
        assert trainer.prepared.promise.list_bytes >= 100 * MIB
        assert leaving.planned == 2


def test_a_usual_list_is_planned_once(monkeypatch):
    leaving = Leaving(monkeypatch, 8)
    with small_trainer(memory="16GiB") as trainer:
        trainer.step(*batch(4))
        trainer.predict(batch(4)[0])
        trainer.step(*batch(4))
        assert leaving.planned == 2


def test_a_step_whose_promise_knows_too_little_of_later_plans_is_new(monkeypatch):
    """32 plans were remembered, and each promise counted its own list alone."""
    leaving = Leaving(monkeypatch, 1, 50)
    with small_trainer(memory="16GiB") as trainer, small_trainer() as plain:
        losses = [trainer.step(*batch(4))]
        first = trainer.prepared
        trainer.predict(batch(9)[0])
        losses += [trainer.step(*batch(4, 1)), trainer.step(*batch(4, 2))]
        assert trainer.prepared is not first
        assert first.promise.list_bytes < 50 * MIB <= trainer.prepared.promise.list_bytes
        assert leaving.planned == 4  # the test twice
        assert losses == [plain.step(*batch(4, seed)) for seed in range(3)]


def test_a_plan_that_was_refused_leaves_memory_too(monkeypatch):
    """And none of the steps that were tried: each refusal kept the frames it was raised in."""
    Leaving(monkeypatch, 1, 50)
    with small_trainer(memory="16GiB") as trainer:
        trainer.step(*batch(4))
        before = traces_alive()
        trainer.settings = dataclasses.replace(trainer.settings, memory="1MiB")
        with pytest.raises(Infeasible):
            trainer.predict(batch(9)[0])
        assert not trainer._cache._steps
        assert len(traces_alive()) <= len(before)


def test_a_refusal_names_a_memory_with_room_for_what_planning_leaves(monkeypatch):
    """The least in bands was named without the gaps that looking for it had left: 406 MiB of
    402."""
    named = []
    for left in (1, 100):
        Leaving(monkeypatch, left)
        with small_trainer(memory="1MiB") as trainer, pytest.raises(Infeasible) as refused:
            trainer.step(*batch(4))
        named.append(refused.value.minimum_bytes)
    assert named[1] - named[0] >= 80 * MIB


@pytest.mark.slow
def test_slots_of_another_optimizer_are_counted(monkeypatch):
    """A test had room for what persisted when the first step was planned: 955 MiB of 900."""
    with small_trainer(memory="16GiB", optimizer=None) as trainer:
        weights = sum(p.numpy().nbytes for p in trainer.model.parameters())
        found = []
        for optimizer in (oc.optim.SGD, oc.optim.Adam):
            trainer.optimizer = optimizer(trainer.model.parameters(), lr=1e-3)
            trainer.step(*batch(4))
            trainer.predict(batch(5)[0])
            found.append(trainer._residence.open.prepared.promise.values_bytes)
        assert found[1] - found[0] == 2 * weights
