"""Values that move between host and session are there once: opening, closing, saving, testing.

Looked at whenever a value has left the host or come home, so that a peak that lasts for a moment is
seen. `tests/properties/test_memory_promise.py`
looks from outside.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn
from ooctrain.devices.cpu.host_vm import PAGE_BYTES, VirtualArena, why_no_virtual_memory
from ooctrain.devices.cpu.process_memory import held
from ooctrain.engine.eager import Storage
from ooctrain.engine.incore import named_tensors
from ooctrain.errors import DriverError
from ooctrain.execution import step_cache
from ooctrain.execution.executor import Session
from ooctrain.execution.seen import StepShape
from ooctrain.units import MIB

WIDTH, LAYERS = 512, 6
X = np.random.default_rng(0).standard_normal((2, 1, 16, 32), np.float32)
Y = np.array([0, 2])
needs_memfd = pytest.mark.skipif(
    bool(why_no_virtual_memory()) or held() is None, reason="no memfd or no smaps_rollup here"
)


def trainer_of(**options) -> oc.Trainer:
    """6 MiB of weights, as much of momentum, and next to no activations."""
    oc.manual_seed(1)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(WIDTH, 3))
    optimizer = oc.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return oc.Trainer(model, optimizer=optimizer, **{"threads": 1, **options})


def sizes_of(trainer: oc.Trainer) -> list[int]:
    """Bytes of all that persists."""
    tensors = named_tensors(trainer.model, trainer.optimizer).values()
    return [int(np.prod(each.shape)) * 4 for each in tensors]


@contextmanager
def seen_at_each_move(monkeypatch: pytest.MonkeyPatch, trainer: oc.Trainer) -> Iterator[list[int]]:
    """What arena and host held together whenever a value had moved."""
    seen: list[int] = []

    def looking(method):
        def moved(*given):
            result = method(*given)
            tensors = named_tensors(trainer.model, trainer.optimizer).values()
            at_home = sum(each.storage.leaving_bytes for each in tensors)
            seen.append(used_bytes(trainer) + at_home)
            return result

        return moved

    with monkeypatch.context() as patch:
        for name in ("take_back", "lend"):
            patch.setattr(Storage, name, looking(getattr(Storage, name)))
        yield seen


def used_bytes(trainer: oc.Trainer) -> int:
    return trainer._residence.open.device.memory.used_bytes()


def promise_holds_whenever_a_value_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(memory="64GiB")
    with seen_at_each_move(monkeypatch, trainer) as seen, trainer:
        trainer.step(X, Y)
        promise = trainer.prepared.promise
        assert used_bytes(trainer) >= promise.arena_bytes
        trainer.evaluate([(X, Y)])
        trainer.step(X, Y)
    assert len(seen) >= 4 * LAYERS
    assert max(seen) <= promise.arena_bytes + promise.values_bytes


@needs_memfd
def test_the_promise_holds_whenever_a_value_moves(monkeypatch):
    promise_holds_whenever_a_value_moves(monkeypatch)


@needs_memfd
def test_a_promise_sets_little_aside_for_values():
    """They were counted once more: 12 MiB here."""
    with trainer_of(memory="64GiB") as trainer:
        values = trainer.prepare(X.shape).promise.values_bytes
        assert values < sum(sizes_of(trainer)) // 3


@needs_memfd
def test_values_that_a_test_leaves_at_home_are_counted():
    """Momentum stays on the host while a session evaluates."""
    with trainer_of(memory="64GiB") as trainer:
        trainer.prepare(X.shape)
        tested = trainer._prepare_once(StepShape(X.shape, None, False, True))
        assert tested.promise.values_bytes >= sum(sizes_of(trainer)) // 2


def plans_where_no_arena_is(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, seen = step_cache.prepare, []

    def looking(*given):
        seen.append(trainer._residence.open is None)
        return prepare(*given)

    monkeypatch.setattr(step_cache, "prepare", looking)
    with trainer_of(memory="64GiB") as trainer:
        trainer.step(X, Y)
        trainer.evaluate([(X, Y)])
        trainer.step(X[:1], Y[:1])
        trainer.step(X, Y)
    assert seen == [True, True, True]


@pytest.mark.slow
@needs_memfd
def test_under_a_memory_budget_a_step_is_planned_where_no_arena_is(monkeypatch):
    """Planning takes memory, and the promise has none for it: a smaller last batch, or a test, was
    planned beside the whole arena."""
    plans_where_no_arena_is(monkeypatch)


@needs_memfd
@pytest.mark.parametrize("allocator", ["va", "best-fit"])
def test_an_arena_takes_memory_as_values_move_in(monkeypatch, allocator):
    write, used = Session.write, []

    def looking(session, variable, value):
        write(session, variable, value)
        used.append(session.device.memory.used_bytes())

    monkeypatch.setattr(Session, "write", looking)
    with trainer_of(allocator=allocator) as trainer:
        trainer.step(X, Y)
        sizes = sizes_of(trainer)
        assert used == sorted(used)
        assert used[len(used) // 2] < 0.6 * sum(sizes)
        assert used[-1] <= sum(sizes) + PAGE_BYTES * (len(sizes) + 1)
        assert used_bytes(trainer) >= trainer.prepared.budget_bytes


@needs_memfd
def test_where_the_rest_of_an_arena_is_refused_no_value_is_lost(monkeypatch):
    def refuse(arena):
        raise DriverError("refused by a test", call="posix_fallocate")

    trainer = trainer_of()
    before = {key: value.copy() for key, value in trainer.state_arrays().items()}
    with monkeypatch.context() as patch:
        patch.setattr(VirtualArena, "allocate", refuse)
        with pytest.raises(DriverError, match="refused by a test"):
            trainer.step(X, Y)
    with trainer:
        after = trainer.state_arrays()
        assert all(np.array_equal(after[key], value) for key, value in before.items())
        assert trainer.step(X, Y) > 0


def moves_one_by_one(
    trainer: oc.Trainer, move: Callable[[str], None], path: str, copied_bytes: int = 0
) -> None:
    """No more is allocated at a time than a few copies of the largest value, and of what is given
    one."""
    gc.collect()
    tracemalloc.start()
    try:
        move(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4 * max(sizes_of(trainer)) + MIB + copied_bytes


def test_values_are_saved_one_by_one(tmp_path):
    with trainer_of() as trainer:
        trainer.step(X, Y)
        moves_one_by_one(trainer, trainer.save, str(tmp_path / "kept.safetensors"))


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_values_are_restored_one_by_one(tmp_path, is_open):
    """Of those of an open session a copy was kept, to be taken back: 523 MiB of 420."""
    path = str(tmp_path / "kept.safetensors")
    with trainer_of() as trainer:
        trainer.step(X, Y)
        trainer.save(path)
        expected = trainer.state_arrays()
    with trainer_of() as trainer:
        if is_open:
            trainer.step(X, Y)
        moves_one_by_one(trainer, trainer.resume, path)
        found = trainer.state_arrays()
    assert all(np.array_equal(found[name], value) for name, value in expected.items())


def test_a_state_is_loaded_one_by_one():
    with trainer_of() as trainer:
        state = {name: array * 2 for name, array in trainer.model.state_dict().items()}
        trainer.step(X, Y)
        given_bytes = sum(array.nbytes for array in state.values())
        load = trainer.model.load_state_dict
        moves_one_by_one(trainer, lambda _: load(state), "", copied_bytes=given_bytes)
        found = trainer.model.state_dict()
        assert all(np.array_equal(found[name], value) for name, value in state.items())
        trainer.step(X, Y)
