"""Where values are: seen through every name, in every thread, after drops, forks and exits.

Orders of trainers at random are in tests/properties/test_trainers_of_one_model.py.
"""

from __future__ import annotations

import copy
import gc
import os
import random
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain import nn
from ooctrain.devices.cpu.host_vm import PAGE_BYTES, why_no_virtual_memory
from ooctrain.engine.eager import Storage
from ooctrain.errors import AutogradError, InUse, OoctrainError
from ooctrain.execution.executor import Session
from ooctrain.execution.residence import OpenSession, one_at_a_time

needs_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc here")
X = np.random.default_rng(0).standard_normal((2, 1, 4, 4), np.float32)
Y = np.array([0, 2])
#: A step that takes longer hangs.
PATIENCE_S = 10


def network():
    oc.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )


def trainer_of(model, optimizer=None, **options):
    chosen = optimizer or oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return oc.Trainer(model, optimizer=chosen, **{"threads": 1, **options})


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def after(steps):
    """State of a network after some steps with the same batch."""
    with trainer_of(network()) as trainer:
        for _ in range(steps):
            trainer.step(X, Y)
        return trainer.state_arrays()


# One value, one place


def test_every_name_of_a_value_shows_the_true_one():
    model = network()
    twin = model[0].weight.detach()
    with trainer_of(model) as one, trainer_of(model) as two:
        for trainer in (one, two, one):
            trainer.step(X, Y)
            assert np.array_equal(twin.numpy(), model.state_dict()["0.weight"])
    assert np.array_equal(twin.numpy(), model.state_dict()["0.weight"])


def test_a_value_is_held_once():
    model = network()
    on_the_host = weakref.ref(model[0].weight.storage.physical)
    with trainer_of(model) as trainer:
        trainer.step(X, Y)
        assert on_the_host() is None


@pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no memfd here")
def test_values_are_brought_home_one_at_a_time_and_their_pages_given_back(monkeypatch):
    """Such as between a step and an evaluation: the host has no room for all of them twice."""
    oc.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4096), nn.Linear(4096, 3))
    trainer = trainer_of(model, allocator="best-fit")
    trainer.step(X, Y)
    memory = trainer._residence.open.device.memory
    take_back, give_back, held = Storage.take_back, OpenSession._give_back, []

    def one_more(storage, array, holder):
        held.append(memory.used_bytes())
        return take_back(storage, array, holder)

    def the_end(opened):
        held.append(memory.used_bytes())
        give_back(opened)

    monkeypatch.setattr(Storage, "take_back", one_more)
    monkeypatch.setattr(OpenSession, "_give_back", the_end)
    sizes = [value.nbytes for value in trainer.state_arrays().values()]
    trainer.close()
    given = held[0] - held[-1]
    assert sum(sizes) - 2 * PAGE_BYTES * len(sizes) <= given <= sum(sizes)
    assert len(set(held)) >= 4, "step by step"


@pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no memfd here")
@pytest.mark.parametrize("allocator", ["best-fit", "va"])
def test_values_that_wait_in_the_slab_come_home_when_the_arena_is_empty(monkeypatch, allocator):
    """The slab may be a disk; then a trainer that ended, or began a test, held arena and values."""
    layers = [nn.Linear(16, 512), *(nn.Linear(512, 512) for _ in range(5)), nn.Linear(512, 3)]
    model = nn.Sequential(nn.Flatten(), *layers)
    how = {"planner": "combined", "machine": "cpu-generic", "budget": "8MiB"}
    trainer = trainer_of(model, allocator=allocator, **how)
    trainer.step(X, Y)
    memory, trace = trainer._residence.open.device.memory, trainer.plan.trace
    start = [r for r in trainer.plan.schedule.start_host if trace.variables[r[0]].persistent]
    assert sum(hi - lo for _, lo, hi in start) > 3 << 20
    before = trainer.state_arrays()
    take_back, home, held = Storage.take_back, [], []

    def one_more(storage, array, holder):
        held.append(memory.used_bytes() + sum(home))
        home.append(array.nbytes)
        return take_back(storage, array, holder)

    monkeypatch.setattr(Storage, "take_back", one_more)
    arena_bytes = memory.used_bytes()
    trainer.close()
    assert max(held) <= max(arena_bytes, sum(home)) + 2 * PAGE_BYTES * len(home)
    assert same(trainer.state_arrays(), before)


def test_a_copy_of_a_model_is_one_of_its_values():
    model = network()
    unread = copy.deepcopy(model)
    with trainer_of(model) as trainer:
        trainer.step(X, Y)
        twin = copy.deepcopy(model)
        values = model.state_dict()
        trainer.step(X, Y)
        assert same(twin.state_dict(), values)
        assert not same(model.state_dict(), values)
    assert same(unread.state_dict(), network().state_dict())
    with trainer_of(twin) as trainer:
        trainer.step(X, Y)


def test_the_tape_sees_what_changed_and_not_what_moved():
    model = network().eval()
    with trainer_of(model) as one, trainer_of(model) as two:
        one.step(X, Y)
        loss = oc.functional.cross_entropy(model(oc.tensor(X)), oc.tensor(Y))
        one.evaluate([(X, Y)])
        two.evaluate([(X, Y)])
        two.close()
        one.predict(X)
        loss.backward()
        loss = oc.functional.cross_entropy(model(oc.tensor(X)), oc.tensor(Y))
        two.step(X, Y)
        one.close()
        with pytest.raises(AutogradError, match="changed in place") as caught:
            loss.backward()
        assert "a trainer's step" in str(caught.value)


@pytest.mark.parametrize("place", [0, 3])
def test_a_value_that_changes_while_it_is_fetched_stays_where_it_is(place, monkeypatch):
    """As by another thread's trainer, which opens, steps and closes while this one fetches."""
    model = network()
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    slow, fast = trainer_of(model, optimizer), trainer_of(model, optimizer)
    write, written = Session.write, []

    def meanwhile(session, variable, value):
        write(session, variable, value)
        written.append(variable)
        if len(written) == place + 1:
            monkeypatch.setattr(Session, "write", write)
            fast.step(X, Y)
            fast.close()

    monkeypatch.setattr(Session, "write", meanwhile)
    with pytest.raises(InUse):
        slow.step(X, Y)
    assert same(slow.state_arrays(), after(1))
    slow.step(X, Y)
    slow.close()
    assert same(slow.state_arrays(), after(2))


# Threads


def test_each_step_may_be_another_threads():
    trainer = trainer_of(network(), budget="60%", planner="window")
    trainer.step(X, Y)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        try:
            for thread in (one, two, one):
                thread.submit(trainer.step, X, Y).result(PATIENCE_S)
        except TimeoutError:  # the walker is not the thread that waits: let this one walk
            streams = trainer._residence.open.device.streams
            streams.attach()
            streams.abandon(OoctrainError("it hangs"))
            raise AssertionError("a step in another thread hangs") from None
    assert same(trainer.state_arrays(), after(4))
    trainer.close()


def test_a_second_thread_is_refused_and_nothing_is_broken():
    """Whatever it asks for, while the first one is within an evaluation."""
    model = network()
    trainer = trainer_of(model)
    trainer.step(X, Y)
    before = trainer.state_arrays()
    begun, go_on = threading.Event(), threading.Event()

    def batches():
        try:
            yield X, Y
            trainer.predict(X)  # the same thread may
        finally:
            begun.set()
        go_on.wait()
        yield X, Y

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(trainer.evaluate, batches())
        begun.wait()
        try:
            for refused in (
                lambda: trainer.step(X, Y), lambda: trainer.evaluate([(X, Y)]),
                lambda: trainer.predict(X), trainer.state_arrays, lambda: trainer.save("here"),
                lambda: trainer.resume("here"), trainer.close,
                lambda: trainer_of(model).step(X, Y), model.state_dict,
                lambda: model[4].bias.copy_(np.zeros(3)),
            ):  # fmt: skip
                with pytest.raises(InUse) as caught:
                    refused()
                assert caught.value.code == "OOC-162"
        finally:
            go_on.set()
        assert first.result().samples == 4
    assert same(trainer.state_arrays(), before)
    trainer.step(X, Y)
    assert same(trainer.state_arrays(), after(2))
    trainer.close()


@pytest.mark.parametrize("several", [False, True])
def test_threads_that_get_in_each_others_way_lose_no_step(several):
    """All steps take the same batch, so that their order is none: those that were not refused
    count, with one trainer or with one for each thread."""
    model = network()
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainers = [trainer_of(model, optimizer) for _ in range(3 if several else 1)]
    done = [0, 0, 0]

    def work(number):
        rng, trainer = random.Random(number), trainers[number % len(trainers)]
        for _ in range(12):
            try:
                trainer.step(X, Y)
                done[number] += 1
                if rng.random() < 0.3:
                    trainer.close()
                if rng.random() < 0.3:
                    model.state_dict()
            except InUse:
                pass

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(3)))
    assert same(trainers[0].state_arrays(), after(sum(done)))
    for trainer in trainers:
        trainer.close()
    assert same(trainers[0].state_arrays(), after(sum(done)))


def test_a_method_that_one_thread_at_a_time_may_be_in_is_what_it_was_and_waits_its_turn():
    seen = []

    class Owner:
        @contextmanager
        def work(self):
            seen.append("in")
            yield
            seen.append("out")

        @property
        def _residence(self):
            return self

        @one_at_a_time
        def twice(self, number, *, plus=0):
            """Doubles."""
            seen.append(number)
            return 2 * number + plus

    assert Owner().twice(3, plus=1) == 7
    assert seen == ["in", 3, "out"]
    assert (Owner.twice.__name__, Owner.twice.__doc__) == ("twice", "Doubles.")


def test_an_operation_that_looks_at_a_value_in_a_step_is_refused(monkeypatch):
    model = network()
    looked = []

    def launch(self, addresses, scalars):
        looked.append(model[0].weight.numpy())

    with trainer_of(model) as trainer:
        monkeypatch.setattr("ooctrain.devices.cpu.launches.BoundOperation.__call__", launch)
        with pytest.raises(InUse, match="a step is under way"):
            trainer.step(X, Y)
    assert not looked


# Trainers that nobody closes


def things():
    """Threads, files and mappings of this process."""
    lists = {what: os.listdir(f"/proc/self/{what}") for what in ("task", "fd")}
    return {what: len(found) for what, found in lists.items()} | {
        "maps": len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())
    }


@needs_proc
@pytest.mark.parametrize(
    ("model", "cycle"),
    quick([(network(), False), (None, True)], names=2),
    ids=["one model", "in cycles"],
)
def test_forty_dropped_trainers_leave_nothing(model, cycle, monkeypatch):
    """The C library keeps a few stacks of threads that have ended, as mappings."""
    planned = trainer_of(network(), budget="60%", planner="window", threads=2).prepare(X.shape)
    monkeypatch.setattr("ooctrain.execution.step_cache.prepare", lambda *_: planned)

    def drop():
        trainer = trainer_of(model or network(), threads=2)
        trainer.step(X, Y)
        if cycle:
            trainer.itself = trainer
        return trainer

    drop().close()
    gc.collect()
    before = things()
    for _ in range(40):
        drop()
    gc.collect()
    after = things()
    assert after["task"] <= before["task"]
    assert after["fd"] <= before["fd"]
    assert after["maps"] < before["maps"] + 40


def test_a_dropped_trainer_loses_no_value():
    model = network()
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        trainer_of(model, optimizer).step(X, Y)
    found = trainer_of(model, optimizer).state_arrays()
    assert same(found, after(3))


def test_a_trainer_may_be_dropped_in_the_midst_of_a_look_at_its_values(monkeypatch):
    """As by the garbage collector: it ends when the look is over."""
    model = network()
    trainer = trainer_of(model)
    trainer.step(X, Y)
    session = trainer._residence.open.session
    read, dropped = session.read_physical, []

    def look(variable):
        if not dropped:
            dropped.append(trainer.close)
            trainer._residence._turns.end(trainer._residence.open.close)
        return read(variable)

    monkeypatch.setattr(session, "read_physical", look)
    seen = model[0].weight.numpy()
    assert trainer._residence.open.closed
    assert np.array_equal(seen, after(1)["0.weight"])
    assert same(trainer.state_arrays(), after(1))
    assert isinstance(model[0].weight.storage, Storage)


# Other processes


def test_a_fork_touches_nothing_of_its_parents(monkeypatch):
    trainer = trainer_of(network())
    trainer.step(X, Y)
    opened = trainer._residence.open
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        for refused in (lambda: trainer.step(X, Y), trainer.state_arrays):
            with pytest.raises(InUse) as caught:
                refused()
            assert caught.value.code == "OOC-163"
        trainer.close()
        assert trainer._residence.open is None  # the session is the parent's
        with pytest.raises(InUse):  # and so are the values, until others are written
            trainer.state_arrays()
        opened.close()
    assert not opened.closed
    opened.close()
    assert same(trainer.state_arrays(), after(1))


def test_a_fork_in_the_midst_of_an_evaluation_is_refused(monkeypatch):
    """As of a loader whose processes are forked: the thread that works is there, the device not."""
    trainer = trainer_of(network())
    trainer.step(X, Y)
    codes = []

    def batches():
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            for refused in (lambda: trainer.predict(X), trainer.model.state_dict):
                with pytest.raises(InUse) as caught:
                    refused()
                codes.append(caught.value.code)
        yield X, Y

    assert trainer.evaluate(batches()).samples == 2
    assert codes == ["OOC-163"] * 2
    trainer.close()


BEGIN = """
import atexit, os, sys, threading
from unit.test_residence import InUse, X, Y, after, network, oc, same, trainer_of
model = network()
trainer = trainer_of(model, threads=2)
trainer.step(X, Y)
"""
FORK = """
child = os.fork()
if child == 0:
    for refused in (
        lambda: trainer.step(X, Y), lambda: trainer.evaluate([(X, Y)]), lambda: trainer.predict(X),
        trainer.state_arrays, model.state_dict, lambda: model(oc.tensor(X)),
        lambda: (trainer.close(), trainer.step(X, Y)), lambda: trainer_of(model).step(X, Y),
    ):
        try:
            refused()
            sys.exit("not refused")
        except InUse as error:
            assert error.code == "OOC-163", error
    values = after(2)
    for name, tensor in trainer._tensors().items():
        tensor.copy_(values[name])
    trainer.step(X, Y)
    assert same(trainer.state_arrays(), after(3))
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
trainer.step(X, Y)
assert same(trainer.state_arrays(), after(2))

def step_on():
    while len(children) < 5:
        trainer.step(X, Y)
children = []
worker = threading.Thread(target=step_on)
worker.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        try:
            trainer.step(X, Y)
        except InUse:
            os._exit(7)
        os._exit(1)
    children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
worker.join()
assert children == [7] * 5, children
assert same(trainer.state_arrays(), after(trainer.steps_done))
"""
EXIT = """
atexit.register(model.state_dict)
trainer.itself = trainer
other = trainer_of(model)
other.step(X, Y)
at_work = trainer_of(network())
def step_on():
    while True:
        at_work.step(X, Y)
        begun.set()
begun = threading.Event()
threading.Thread(target=step_on, daemon=True).start()
begun.wait()
"""


def run(script):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script], env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_is_refused_and_the_process_goes_on():
    """Between steps and, from another thread, in the midst of one."""
    run(FORK)


@pytest.mark.slow
def test_the_interpreter_ends_cleanly_with_open_trainers():
    """One is in a cycle, one is read later, one is at work."""
    run(EXIT)


def test_a_first_value_that_is_drawn_late_replaces_nothing():
    """While one thread draws the first value another one draws it too, trains with it, and brings
    it home; the draw of the first thread is out of date then."""
    trained = np.full(2, 7.0, np.float32)

    class Holding:
        changes = 1

    def draw():
        draws.append(1)
        if len(draws) == 1:  # what the other thread does, from its beginning to its end
            assert not storage.read().any()
            holder = Holding()
            assert storage.lend(holder, None, storage.version)
            assert storage.take_back(trained, holder)
        return np.zeros(2, np.float32)

    draws = []
    storage = Storage(shape=(2,), initial=draw)
    np.testing.assert_array_equal(storage.read(), trained)
    np.testing.assert_array_equal(storage.read(), trained)
