"""Batches are read and laid out while the step before runs: same bits, same errors, no traces."""

from __future__ import annotations

import gc
import random
import threading
import time
from contextlib import closing, suppress
from hashlib import sha256

import numpy as np
import pytest
from support.quick import all_but
from unit.test_cuda_training import Fakes

import ooctrain as oc
from ooctrain import nn
from ooctrain.data import DataLoader, TensorDataset
from ooctrain.devices.cpu.process_memory import held
from ooctrain.devices.interface import HostBuffer
from ooctrain.errors import DriverError, OoctrainError, ShapeError
from ooctrain.execution import ahead, promise
from ooctrain.execution.executor import Session

PATIENCE_S = 10.0
SHAPE, CLASSES = (4, 2, 6, 6), 3
#: Orders of the fake's queues, by name; "cpu" is the cpu device.
WHERE = {"cpu": None, "oldest": min, "newest": max, "any": random.Random(3).choice}


def network():
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 36, CLASSES),
    )  # fmt: skip


def batches(count=5, sizes=(4,)):
    rng = np.random.default_rng(1)
    return [
        (rng.standard_normal((n, *SHAPE[1:]), np.float32), rng.integers(0, CLASSES, n))
        for n in (sizes[i % len(sizes)] for i in range(count))
    ]


def trainer_of(where):
    """A trainer whose inputs are swapped out where there is no room for them."""
    device = "cpu" if where == "cpu" else "cuda"
    return oc.Trainer(
        network(), budget=None, planner="keep-all", allocator="best-fit", device=device,
        threads=1, machine="cpu-generic",
    )  # fmt: skip


@pytest.fixture
def fakes(monkeypatch):
    found = Fakes(monkeypatch)
    yield found
    found.check_nothing_is_held()


def after(where, train):
    """(what `train` returns, the bits of all values that it leaves)."""
    with trainer_of(where) as trainer:
        return train(trainer), bits_of(trainer)


def bits_of(trainer):
    values = sorted(trainer.state_arrays().items())
    return sha256(b"".join(value.tobytes() for _, value in values)).hexdigest()


def one_by_one(trainer, given):
    return [trainer.step(x, y) for x, y in given]


def refilled(given):
    """The same two arrays each time, with other values."""
    x, y = np.empty_like(given[0][0]), np.empty_like(given[0][1])
    for images, labels in given:
        x[...], y[...] = images, labels
        yield x, y


def check_same_bits(where):
    given = batches()
    wanted = after(where, lambda trainer: one_by_one(trainer, given))
    assert after(where, lambda trainer: trainer.fit(given)) == wanted
    assert after(where, lambda trainer: trainer.fit(refilled(given))) == wanted
    assert after(where, lambda trainer: one_by_one(trainer, trainer.ahead(given))) == wanted


@pytest.mark.parametrize("where", all_but(WHERE, "oldest", "newest", "any"))
def test_the_bits_are_those_of_steps_one_by_one(where, fakes):
    fakes.choose = WHERE[where]
    check_same_bits(where)


def check_other_shapes_and_evaluations(where):
    given = batches(6, (4, 4, 2))

    def plain(trainer):
        said = []
        for x, y in given:
            said += [trainer.step(x, y), trainer.evaluate(given[:1]).loss]
        return said

    def fitted(trainer):
        said = []

        def look(step, loss):
            said.extend([loss, trainer.evaluate(given[:1]).loss])

        trainer.fit(given, on_step=look)
        return said

    assert after(where, fitted) == after(where, plain)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["cpu", "newest"])
def test_batches_of_other_shapes_and_an_evaluation_in_between_change_nothing(where, fakes):
    fakes.choose = WHERE[where]
    check_other_shapes_and_evaluations(where)


def check_that_the_next_batch_is_there(where, patch):
    """Each step but the last waits until the next batch is laid out: with nobody ahead, for ever.
    Its own batch is still what it was."""
    given, laid, lay, run_step = batches(4), threading.Semaphore(0), ahead._lay, Session.run_step
    wanted, steps = after(where, lambda trainer: one_by_one(trainer, given)), []

    def noted(*arguments):
        found = lay(*arguments)
        if threading.current_thread().name.startswith(ahead.THREAD_NAME):
            laid.release()  # by the reader: a step runs in a thread of its own, too
        return found

    def waiting(session, *arguments, **more):
        steps.append(session)
        there = len(steps) == len(given) or laid.acquire(timeout=PATIENCE_S)
        assert there, f"batch {len(steps) + 1} is not there during step {len(steps)}"
        return run_step(session, *arguments, **more)

    patch.setattr(ahead, "_lay", noted)
    patch.setattr(Session, "run_step", waiting)
    assert after(where, lambda trainer: trainer.fit(given)) == wanted
    assert len(steps) == len(given)


@pytest.mark.parametrize("where", ["cpu", "newest"])
def test_the_next_batch_is_laid_out_while_a_step_runs(where, fakes, monkeypatch):
    fakes.choose = WHERE[where]
    check_that_the_next_batch_is_there(where, monkeypatch)


def check_that_an_error_comes_in_its_turn():
    """The third batch cannot be read; the fourth one is none. The steps before have been done."""
    given = batches(3)

    def broken():
        yield from given[:2]
        raise OSError("the disk is gone")

    for source, kind in ((broken(), OSError), ([*given[:2], (given[0][0], None)], ShapeError)):
        with trainer_of("cpu") as trainer, trainer_of("cpu") as other:
            seen = []
            with pytest.raises(kind):
                trainer.fit(source, on_step=lambda step, loss, seen=seen: seen.append(step))
            assert seen == [1, 2]
            assert trainer.steps_done == 2
            one_by_one(other, given[:2])
            assert bits_of(trainer) == bits_of(other)
            trainer.step(*given[2])  # it can go on


def test_an_error_comes_in_its_turn():
    check_that_an_error_comes_in_its_turn()


def check_a_loader_counts_what_was_handed_out():
    images, labels = (np.concatenate(parts) for parts in zip(*batches(3), strict=True))
    plain, loader = (DataLoader(TensorDataset(images, labels), 4, shuffle=True) for _ in range(2))
    wanted, found = [], []
    with trainer_of("cpu") as trainer:
        for _ in range(2):
            for x, y in plain:
                trainer.step(x, y)
                wanted.append(plain.state_dict())
    with trainer_of("cpu") as trainer:
        trainer.fit(loader, 2, on_step=lambda *_: found.append(loader.state_dict()))
    assert found == wanted


def test_a_loader_counts_what_was_handed_out_and_not_what_was_read():
    check_a_loader_counts_what_was_handed_out()


def test_an_evaluation_counts_what_it_was_handed_out():
    images, labels = (np.concatenate(parts) for parts in zip(*batches(3), strict=True))
    plain, loader = (DataLoader(TensorDataset(images, labels), 4) for _ in range(2))
    wanted = [plain.state_dict() for _ in plain]
    assert [loader.state_dict() for _ in ahead.handed_out(loader)] == wanted


def check_what_the_user_changes():
    """Arrays are read-only; another array, or another order, is what is trained on."""
    given = batches(4)

    def doubled(trainer, source):
        return [trainer.step(x * 2, y) for x, y in source]

    def late(trainer, source):
        before, said = None, []
        for x, y in source:
            if before is not None:
                said.append(trainer.step(*before))
            before = x.copy(), y
        return said

    for train in (doubled, late):
        wanted = after("cpu", lambda trainer, train=train: train(trainer, given))
        found = after("cpu", lambda trainer, train=train: train(trainer, trainer.ahead(given)))
        assert found == wanted
    with trainer_of("cpu") as trainer, closing(trainer.ahead(given)) as source:
        x, _ = next(source)
        with pytest.raises(ValueError, match="read-only"):
            x *= 2


def test_what_the_user_changes_is_seen():
    check_what_the_user_changes()


def test_nobody_is_left_behind():
    """After its end, an error, a break, and a loop that is dropped, no thread reads any more."""
    given = batches(3)
    with trainer_of("cpu") as trainer:
        trainer.fit(given)
        with suppress(OoctrainError):
            trainer.fit([*given, (given[0][0], None)])
        for x, y in trainer.ahead(given):
            trainer.step(x, y)
            break
        dropped = trainer.ahead(given)
        next(dropped)
        del dropped
        gc.collect()
        until = time.monotonic() + PATIENCE_S
        while any(t.name.startswith(ahead.THREAD_NAME) for t in threading.enumerate()):
            assert time.monotonic() < until, "a thread still reads"
            time.sleep(0.01)


def test_a_batch_that_is_too_large_is_read_in_its_turn(monkeypatch):
    given, read = batches(3), []

    def source():
        for batch in given:
            read.append(len(read))
            yield batch

    wanted = after("cpu", lambda trainer: one_by_one(trainer, given))
    monkeypatch.setattr(ahead, "MOST_BYTES", given[0][0].nbytes)
    monkeypatch.setattr(ahead, "_lay", lambda *_: pytest.fail("it was laid out"))
    found, counts = [], []

    def note(step, loss):
        found.append(loss)
        counts.append(len(read))

    assert after("cpu", lambda trainer: trainer.fit(source(), on_step=note)) == wanted
    assert (found, counts) == (wanted[0], [1, 2, 3])


@pytest.mark.skipif(held() is None, reason="no smaps_rollup here")
@pytest.mark.parametrize(
    ("most", "counts"), [(1 << 25, [2, 3, 3]), pytest.param(100, [1, 2, 3], marks=pytest.mark.slow)]
)
def test_under_a_memory_budget_a_large_batch_is_read_in_its_turn(monkeypatch, most, counts):
    """Two batches less have to have room."""
    given, read, seen = batches(3), [], []

    def source():
        for batch in given:
            read.append(len(read))
            yield batch

    def note(step, loss):
        until = time.monotonic() + PATIENCE_S
        while len(read) < counts[len(seen)] and time.monotonic() < until:
            time.sleep(0.001)  # the thread reads when it comes to it
        seen.append(len(read))

    for room in (ahead, promise):
        monkeypatch.setattr(room, "MOST_AHEAD_BYTES", most)
    with oc.Trainer(network(), memory="64GiB", planner="keep-all", threads=1) as trainer:
        trainer.fit(source(), on_step=note)
        inputs = sum(part.nbytes for part in given[0])
        assert seen == counts
        assert trainer.prepared.promise.batch_bytes == inputs * (5 if counts[0] == 2 else 3)


class Noting(TensorDataset):
    """Samples that note how many batches have been taken of them."""

    taken = 0

    def take(self, indices):
        self.taken += 1
        return super().take(indices)


def check_that_nobody_reads_what_no_budget_knows_of(patch):
    """A `DataLoader` by itself reads three batches more, of which the promise knew nothing."""
    images, labels = (np.concatenate(parts) for parts in zip(*batches(8), strict=True))
    run_step, seen = Session.run_step, []

    def looking(session, *given, **more):
        time.sleep(0.03)  # who reads ahead has time to
        seen.append(samples.taken - len(seen) - 1)
        return run_step(session, *given, **more)

    patch.setattr(Session, "run_step", looking)
    for most, ahead_at_most in ((1 << 25, 1), (100, 0)):
        for room in (ahead, promise):
            patch.setattr(room, "MOST_AHEAD_BYTES", most)
        with oc.Trainer(network(), memory="64GiB", planner="keep-all", threads=1) as trainer:
            for use, at_most in ((trainer.fit, ahead_at_most), (trainer.evaluate, 0)):
                samples, seen = Noting(images, labels), []
                use(DataLoader(samples, 4))
                assert len(seen) == 8
                assert max(seen) <= at_most, f"batches ahead at each step: {seen}"


@pytest.mark.slow
@pytest.mark.skipif(held() is None, reason="no smaps_rollup here")
def test_under_a_memory_budget_nobody_reads_what_it_does_not_know_of(monkeypatch):
    check_that_nobody_reads_what_no_budget_knows_of(monkeypatch)


@pytest.mark.parametrize("lost", [False, True])
def test_where_there_is_no_pinned_memory_batches_are_read_in_their_turn(lost, monkeypatch):
    """A device that is lost is another matter: no step of it goes on."""
    refusal = DriverError("no memory", call="cuMemHostAlloc")
    refusal.lost = lost

    def none(*_):
        raise refusal

    given = batches(2)
    wanted = after("cpu", lambda trainer: one_by_one(trainer, given))
    monkeypatch.setattr(ahead, "lay_out", none)
    if lost:
        with pytest.raises(DriverError):
            after("cpu", lambda trainer: trainer.fit(given))
    else:
        assert after("cpu", lambda trainer: trainer.fit(given)) == wanted


def test_a_batch_in_a_room_is_not_copied_by_the_host(fakes, monkeypatch):
    """Over a GPU, a batch that was laid out is copied from where it lies."""
    from ooctrain.devices.cuda.feed import Feed

    pieces, by_pieces = [], Feed._write_by_pieces
    monkeypatch.setattr(
        Feed, "_write_by_pieces", lambda *given: pieces.append(given) or by_pieces(*given)
    )
    with trainer_of("oldest") as trainer:
        trainer.fit(batches(3))
    assert not pieces


def test_a_buffer_is_filled_and_holds_its_bytes_until_it_is_closed_once():
    memory, closed = np.zeros(96, np.uint8), []
    buffer = HostBuffer(memory[16:80], lambda: closed.append(1))
    inside = [n for n in range(95) if buffer.holds(memory[n : n + 1])]
    assert inside == list(range(16, 80))
    assert buffer.fill(lambda data: data.fill(7))
    buffer.close()
    buffer.close()
    assert closed == [1]
    assert not buffer.fill(lambda data: data.fill(9))
    assert not buffer.holds(memory[16:17])
    assert memory.tolist() == [0] * 16 + [7] * 64 + [0] * 16
