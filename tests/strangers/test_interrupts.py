"""An interrupt loses nothing: afterwards the model has the values of a whole step, bit for bit.

A training is interrupted once, at a place that is drawn: before an instruction of the list, inside
an operation of the user's own, at a line of Python of the calling thread, or by a signal whose
handler raises. Then it goes on. Its losses and all that persists are those of a training that was
never interrupted, in-core and within budgets, spilled, in bands, accumulated, clipped.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.directed import always
from support.quick import every, quick

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn, optim
from ooctrain.devices.interface import FRESH_POISON, Debug
from ooctrain.step.op import to_logical
from ooctrain.testing.thread_ranks import on_ranks

STEPS = 4
PACKAGE = str(Path(oc.__file__).parent)
#: {name: options of the trainer}; "spill" gets a folder.
FORMS = {
    "in-core": {},
    "window": {"budget": "40%", "planner": "window"},
    "belady": {"budget": "10%", "planner": "belady"},
    "recompute": {"budget": "40%", "planner": "dtr"},
    "plain": {"budget": "60%", "planner": "window", "rewrites": (), "allocator": "best-fit"},
    "spill": {"budget": "30%", "planner": "lru", "spill": ""},
    "accumulated": {"budget": "50%", "planner": "window", "accumulate": 2},
    "clipped": {"clip": 0.5},
    "bands": {"budget": "330KB", "planner": "banded"},  # of `Plain`, which needs 402 without
}
OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: optim.Adam(p, lr=0.01),
}


class Stop(BaseException):
    """What interrupts; as KeyboardInterrupt it is no Exception."""


class Touchy(oc.Op):
    """The identity. Raises once, at the call that is counted down to; a trainer looks at no queue,
    so it sees no change."""

    fuse: ClassVar[SimpleQueue] = SimpleQueue()

    def shape(self, x):
        return x

    def forward(self, x):
        self.count()
        return x * 1

    def backward(self, dy):
        self.count()
        return dy * 1

    def count(self):
        if not self.fuse.empty():
            self.fuse.get()
            if self.fuse.empty():
                raise Stop("in an operation")


def light(calls):
    """The next `calls`-th call of `Touchy` raises; 0: none does."""
    while not Touchy.fuse.empty():
        Touchy.fuse.get()
    for _ in range(calls):
        Touchy.fuse.put(None)


class Network(nn.Module):
    """Own operations before the first parameter, between all of them, and after the last one."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=None)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(8 * 64, 3)

    def forward(self, x):
        own = self.own  # of `made`
        x = own(F.relu(self.norm1(self.conv1(x))))
        x = own(self.drop(F.relu(self.norm2(self.conv2(x)))))
        return own(self.head(x.flatten(1)))


class Plain(nn.Module):
    """Operations of the library alone."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 3),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


def batch(number, form=""):
    rng = np.random.default_rng(number)
    size = 32 if form == "bands" else 8
    return rng.standard_normal((4, 2, size, size), np.float32), rng.integers(0, 3, 4)


def made(optimizer, form, folder=None, own=None, **more):
    """A model and its trainer, always with the same first values.

    Args:
        own: its operation in the place of `Touchy`.
    """
    oc.manual_seed(4)
    light(0)
    model, options = (Plain if form == "bands" else Network)(), dict(FORMS[form])
    model.own = own or Touchy()
    if "spill" in options:
        options["spill"] = str(folder)
    chosen = OPTIMIZERS[optimizer](model.parameters())
    return model, oc.Trainer(model, optimizer=chosen, threads=1, seed=3, **options, **more)


def hashes(trainer):
    return {name: sha256(value).hexdigest() for name, value in trainer.state_arrays().items()}


@dataclass
class Undisturbed:
    """A training without an interrupt: its losses, what persists after 0, 1, ... steps; and how
    many lines and seconds all steps but the first one take."""

    losses: list[float]
    states: list[dict[str, str]]
    lines: int = 0
    seconds: float = 0.0


KNOWN: dict[tuple[str, str], Undisturbed] = {}


def undisturbed(optimizer, form, folder):
    if (optimizer, form) not in KNOWN:
        _, trainer = made(optimizer, form, folder)
        with trainer:
            found = KNOWN[optimizer, form] = Undisturbed([], [hashes(trainer)])
            for number in range(STEPS):
                begin = time.perf_counter()
                found.losses.append(trainer.step(*batch(number, form)))
                found.seconds += time.perf_counter() - begin if number else 0
                found.states.append(hashes(trainer))
        _, trainer = made(optimizer, form, folder)
        with trainer:
            trainer.step(*batch(0, form))
            with raising_at_line(0) as left:
                train_on(trainer, {}, form)
            found.lines = -left[0]
    return KNOWN[optimizer, form]


@contextmanager
def raising_at_line(number, within=PACKAGE):
    """Raises `Stop` at the number-th line of the package, or of a folder of it, that this thread
    comes to."""
    left = [number]

    def trace(frame, event, _argument):
        if not frame.f_code.co_filename.startswith(within):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                raise Stop(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield left
    finally:
        sys.settrace(before)


@contextmanager
def raising_after(seconds):
    """Has a signal's handler raise `Stop` then."""

    def stop(*_):
        raise Stop("a signal")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-4))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def train_on(trainer, losses, form):
    """Steps from where it stands to the end; losses by step."""
    while trainer.steps_done < STEPS:
        number = trainer.steps_done
        losses[number] = trainer.step(*batch(number, form))


def check(kind, place, optimizer, form, folder):
    """Interrupts a training and goes on with it.

    Args:
        kind: "instruction", "operation", "line" or "signal".
        place: from 0 to 1, of all places of that kind.
    """
    right = undisturbed(optimizer, form, folder)
    armed = [-1]

    def hook(_program, _position):
        armed[0] -= 1
        if armed[0] == 0:
            raise Stop("before an instruction")

    debug = Debug(poison=FRESH_POISON, before=hook) if kind == "instruction" else None
    _, trainer = made(optimizer, form, folder, debug=debug)
    with trainer:
        losses: dict[int, float] = {}
        losses[0] = trainer.step(*batch(0, form))
        interrupted = [False]
        try:
            if kind == "instruction":
                armed[0] = 1 + int(place * 3 * len(trainer.plan.schedule.instructions))
                train_on(trainer, losses, form)
            elif kind == "operation":
                light(1 + int(place * 18))
                train_on(trainer, losses, form)
            elif kind == "line":
                with raising_at_line(1 + int(place * right.lines)):
                    train_on(trainer, losses, form)
            else:
                with raising_after(place * right.seconds):
                    train_on(trainer, losses, form)
        except Stop:
            interrupted[0] = True
        armed[0] = -1
        light(0)
        assert hashes(trainer) == right.states[trainer.steps_done]
        trainer.predict(batch(9, form)[0])
        train_on(trainer, losses, form)
        assert hashes(trainer) == right.states[STEPS]
        assert all(losses[n] == right.losses[n] for n in losses)
        return interrupted[0]


#: Places that were found wanting when this law was written.
PLACES = [
    ("instruction", 0.2, "sgd", "window"), ("instruction", 0.9, "adam", "belady"),
    ("operation", 0.1, "adam", "in-core"), ("operation", 0.3, "sgd", "spill"),
    ("operation", 0.3, "sgd", "plain"), ("line", 0.2, "sgd", "in-core"),
    ("signal", 0.5, "sgd", "recompute"),
]  # fmt: skip


@settings(max_examples=30)
@given(
    kind=st.sampled_from(["instruction", "operation", "line", "signal"]),
    place=st.floats(0, 0.999),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    form=st.sampled_from(sorted(FORMS.keys() - {"bands"})),  # it takes seconds to plan
)
@always(PLACES)
def test_an_interrupted_training_goes_on_as_if_nothing_had_been(
    tmp_path_factory, kind, place, optimizer, form
):
    check(kind, place, optimizer, form, tmp_path_factory.getbasetemp())


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["instruction", "operation", "line", "signal"])
def test_interrupts_everywhere(tmp_path, form, kind):
    if (kind, form) == ("operation", "bands"):
        pytest.skip("no operation of one's own is cut into bands")
    drawn = random.Random(f"{form}{kind}")
    places = [drawn.random() for _ in range(40)]
    met = [check(kind, place, "sgd", form, tmp_path) for place in places]
    least = 5 if kind == "signal" else 20  # a signal may come when all is done
    assert sum(met) >= least, "hardly anything was interrupted"


@pytest.fixture
def no_callbacks():
    """Python prints, and forgets, what is raised in a callback of its garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def heard():
    """A shell has its jobs in the background ignore Ctrl-C, and so would this process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("no_callbacks", "heard")
@pytest.mark.parametrize("use", ["fit", "predict", "evaluate"])
def test_a_ctrl_c_at_any_time_leaves_a_model_that_works(use, tmp_path):
    model, trainer = made("sgd", "window")
    x, y = batch(0)
    uses = {
        "fit": lambda: trainer.fit([(x, y)] * 100_000),
        "predict": lambda: [trainer.predict(x) for _ in range(100_000)],
        "evaluate": lambda: trainer.evaluate([(x, y)] * 100_000),
    }
    trainer.step(x, y)
    for number in range(4):
        done, before = trainer.steps_done, hashes(trainer)
        threading.Timer(0.03 + 0.011 * number, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            uses[use]()
        assert time.perf_counter() - begin < 5
        if use != "fit":
            assert (trainer.steps_done, hashes(trainer)) == (done, before)
        trainer.predict(x)
        model.state_dict()
        trainer.save(str(tmp_path / "kept.safetensors"))
        assert np.isfinite(trainer.step(x, y))
    trainer.close()


class Slow(Touchy):
    """Takes a while, in which one may become impatient."""

    def count(self):
        time.sleep(0.05)


#: {name: what is done right after a second interrupt, while the step goes on}
IMPATIENT = {
    "arrays": lambda trainer, _: trainer.state_arrays(),
    "state": lambda trainer, _: trainer.model.state_dict(),
    "save": lambda trainer, folder: trainer.save(str(folder / "kept.safetensors")),
    "predict": lambda trainer, _: trainer.predict(batch(9)[0]),
    "step": lambda trainer, _: trainer.step(*batch(2)),
    "close": lambda trainer, _: trainer.close(),
    "steps": lambda trainer, _: trainer.steps_done,
}


@pytest.mark.usefixtures("no_callbacks")
@pytest.mark.parametrize("form", ["in-core", "window"])
@pytest.mark.parametrize("use", every(IMPATIENT, 2))
def test_what_is_asked_after_a_second_interrupt_comes_after_the_step(use, form, tmp_path):
    """It was refused: a step is under way."""
    right = undisturbed("sgd", form, tmp_path)
    _, trainer = made("sgd", form, own=Slow())
    left = [2]

    def stop(*_):
        left[0] -= 1
        if not left[0]:
            signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stop("a signal")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        trainer.step(*batch(0))
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        with pytest.raises(Stop):
            trainer.step(*batch(1))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    IMPATIENT[use](trainer, tmp_path)
    steps = 3 if use == "step" else 2
    assert (left[0], trainer.steps_done) == (0, steps)
    assert hashes(trainer) == right.states[steps]
    trainer.close()


def train_on_ranks(ranks, form, interrupt):
    """A training of one rank, ended by an interrupt of rank 1; what it raised, and has then."""
    _, trainer = made("sgd", form)
    trainer.ranks = ranks
    mine = ranks.part_of(4)
    try:
        batches = [tuple(part[mine] for part in batch(number)) for number in range(STEPS)]
        trainer.fit(batches, on_step=lambda done, _: interrupt(ranks.rank, done))
    except BaseException as error:
        return error, trainer.steps_done, hashes(trainer)
    return None, trainer.steps_done, hashes(trainer)


@pytest.mark.parametrize("form", ["in-core", "window"])
def test_where_one_rank_is_interrupted_the_others_end_with_the_same_values(form):
    def interrupt(rank, done):
        if rank == 1 and done == 2:
            raise Stop("between two steps")

    found = on_ranks(2, partial(train_on_ranks, form=form, interrupt=interrupt))
    raised, steps, values = zip(*found, strict=True)
    assert isinstance(raised[0], oc.errors.RanksDiffer)
    assert raised[0].where == "between two steps"
    assert isinstance(raised[1], Stop)
    assert steps == (2, 2)
    assert values[0] == values[1]


@pytest.mark.parametrize("call", [4, 6, 8, 9])
def test_where_an_operation_of_one_rank_raises_all_keep_the_step_before(call):
    """Three calls a step: twice forwards, and once backwards between two updates."""

    def run(ranks):
        oc.manual_seed(4)
        calls = iter(range(1, 100))

        class Once(Touchy):
            def count(self):
                if next(calls) == call and ranks.rank == 1:
                    raise Stop("in an operation")

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = nn.Linear(128, 8), nn.Linear(8, 3)

            def forward(self, x):
                return self.last(Once()(self.first(Once()(x).flatten(1))))

        net = Net()
        optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        states, trainer = [], oc.Trainer(net, optimizer=optimizer, threads=1, ranks=ranks)
        mine = ranks.part_of(4)
        try:
            for number in range(STEPS):
                states.append(hashes(trainer))
                trainer.step(*(part[mine] for part in batch(number)))
        except BaseException as error:
            return error, hashes(trainer) == states[-1], trainer.steps_done
        return None, True, trainer.steps_done

    (others, other_kept, other_steps), (own, own_kept, own_steps) = on_ranks(2, run)
    assert isinstance(own, Stop)
    assert isinstance(others, oc.errors.TrainingStopped)
    assert own_kept
    assert other_kept
    assert own_steps == other_steps


def test_a_rank_that_leaves_last_does_not_wait_for_ever():
    """The other one has come to its end, and meets it no more."""

    def run(ranks):
        begin = time.perf_counter()
        if ranks.rank:
            ranks.leave("an interrupt", patience_s=0.2)
        return time.perf_counter() - begin

    assert max(on_ranks(2, run)) < 5


#: {name: what is done with a trainer that has taken one step}
USES = {
    "predict": lambda trainer, _: trainer.predict(batch(9)[0]),
    "evaluate": lambda trainer, _: trainer.evaluate([batch(9), batch(10)]),
    "save": lambda trainer, folder: trainer.save(str(folder / "run.safetensors")),
    "close": lambda trainer, _: trainer.close(),
    "state": lambda trainer, _: trainer.model.state_dict(),
    "another batch": lambda trainer, _: trainer.prepare((2, 2, 8, 8)),
}


def check_use(use, place, form, folder):
    """Interrupts a use of a trainer that changes nothing; afterwards training goes on."""
    right = undisturbed("sgd", form, folder)
    _, trainer = made("sgd", form, folder)
    with trainer:
        losses = {0: trainer.step(*batch(0))}
        with raising_at_line(0) as counted:
            USES[use](trainer, folder)
        with suppress(Stop), raising_at_line(1 + int(place * -counted[0])):
            USES[use](trainer, folder)
        assert hashes(trainer) == right.states[1]
        train_on(trainer, losses, form)
        assert hashes(trainer) == right.states[STEPS]


@settings(max_examples=24)
@given(
    use=st.sampled_from(sorted(USES)),
    place=st.floats(0, 0.999),
    form=st.sampled_from(["in-core", "window", "spill"]),
)
def test_an_interrupted_use_changes_nothing(tmp_path_factory, use, place, form):
    check_use(use, place, form, tmp_path_factory.getbasetemp())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["in-core", "window", "spill"])
def test_an_interrupt_of_the_first_step_changes_nothing(tmp_path, form):
    """While it is traced, planned and compiled, too."""
    right = undisturbed("sgd", form, tmp_path)
    _, trainer = made("sgd", form, tmp_path)
    with trainer, raising_at_line(0) as counted:
        trainer.step(*batch(0))
    drawn = random.Random(form)
    for _ in range(20):
        _, trainer = made("sgd", form, tmp_path)
        with trainer:
            place = 1 + int(drawn.random() * -counted[0])
            with suppress(Stop), raising_at_line(place):
                trainer.step(*batch(0))
            assert hashes(trainer) == right.states[trainer.steps_done]
            train_on(trainer, {}, form)
            assert hashes(trainer) == right.states[STEPS]


# --- a step and its schedule are one thing

#: {name: makes the schedule of an optimizer}
SCHEDULES = {
    "once a step": lambda chosen: optim.OneCycleLR(chosen, 0.1, total_steps=STEPS),
    "once an epoch": lambda chosen: optim.StepLR(chosen, 1, 0.5),
    "a row": lambda chosen: optim.SequentialLR(
        chosen, [optim.StepLR(chosen, 1, 0.5), optim.StepLR(chosen, 1, 0.1)], [1]),
    "by the loss": lambda chosen: optim.ReduceLROnPlateau(chosen, patience=0, threshold=1.0),
}  # fmt: skip


def batches_of(kind):
    x, y = (np.concatenate(parts) for parts in zip(batch(0), batch(1), strict=True))
    whole = oc.data.TensorDataset(x, y)
    if kind == "a loader":
        return oc.data.DataLoader(whole, 4)
    found = [batch(0), batch(1)]
    return tuple(found) if kind == "a tuple" else found


def fitted(schedule, kind, place, within=PACKAGE):
    """Steps, and the rate and the schedule's epoch after them, of a training of two epochs that is
    interrupted at a line; 0: at none. And how many lines there are."""
    _, trainer = made("sgd", "in-core")
    with trainer:
        made_of = SCHEDULES[schedule](trainer.optimizer)

        def now():
            return trainer.optimizer.param_groups[0]["lr"], made_of.last_epoch

        trainer.prepare((4, 2, 8, 8))
        with suppress(Stop), raising_at_line(place, within) as left:
            trainer.fit(batches_of(kind), 2, schedule=made_of)
        return (trainer.steps_done, now()), -left[0]


def by_hand(schedule):
    """The same after each number of steps, of steps and a schedule that nobody interrupts."""
    _, trainer = made("sgd", "in-core")
    with trainer:
        made_of = SCHEDULES[schedule](trainer.optimizer)
        found, losses = [(trainer.optimizer.param_groups[0]["lr"], made_of.last_epoch)], []
        for number in range(STEPS):
            losses.append(trainer.step(*batch(number % 2)))
            if schedule == "once a step":
                made_of.step()
            elif number % 2:
                made_of.step(*[np.mean(losses[-2:])] * (schedule == "by the loss"))
            found.append((trainer.optimizer.param_groups[0]["lr"], made_of.last_epoch))
        return found


PAIRS = [(s, kind) for s in SCHEDULES for kind in ("a list", "a loader", "a tuple")]


@pytest.mark.parametrize("pair", quick(PAIRS, 0, 4))
def test_an_interrupt_parts_no_step_from_its_schedule(pair):
    schedule, kind = pair
    right, (whole, lines) = by_hand(schedule), fitted(schedule, kind, 0)
    assert whole == (STEPS, right[STEPS])
    assert len({rate for rate, _ in right}) > 1
    drawn, met = random.Random(f"{schedule}{kind}"), 0
    for _ in range(8):
        (steps, found), _ = fitted(schedule, kind, 1 + drawn.randrange(lines))
        assert found == right[steps]
        met += steps < STEPS
    assert met > 1, "hardly anything was interrupted"


def test_no_interrupt_comes_between_a_step_and_its_schedule():
    """At a schedule's own lines: they belong to the step, and this thread does not come to them."""
    right, within = by_hand("once a step"), os.path.join(PACKAGE, "optim", "schedules")
    for place in range(1, 12):
        (steps, found), _ = fitted("once a step", "a list", place, within)
        assert (steps, found) in ((STEPS, right[STEPS]), (0, right[0]))


# --- eager steps, and states that are loaded: all of it, or nothing


def eager(optimizer="adam"):
    """A model with gradients, and its optimizer after one step."""
    oc.manual_seed(4)
    light(0)
    model = Plain()
    chosen = OPTIMIZERS[optimizer](model.parameters())
    for number in range(2):
        chosen.zero_grad()
        x, y = batch(number)
        F.cross_entropy(model(oc.tensor(x)), oc.tensor(y)).backward()
        if not number:
            chosen.step()
    return model, chosen


def all_of(model, chosen):
    """All that persists, told so that it can be compared."""
    state = chosen.state_dict()
    return (
        {name: value.tobytes() for name, value in model.state_dict().items()},
        {n: {k: np.asarray(v).tobytes() for k, v in each.items()}
         for n, each in state["state"].items()},
        state["steps_done"], repr(state["param_groups"]), list(chosen.steps.values()),
    )  # fmt: skip


def another_state(optimizer):
    """States of a model and an optimizer that were trained otherwise."""
    model, chosen = eager(optimizer)
    chosen.param_groups[0]["lr"] = 0.125
    for _ in range(3):
        chosen.step()
    return model.state_dict(), chosen.state_dict()


#: {what is done with a model and an optimizer, and another state of them}
WHOLE = {
    "a step": lambda model, chosen, states: chosen.step(),
    "a model's state": lambda model, chosen, states: model.load_state_dict(states[0]),
    "an optimizer's state": lambda model, chosen, states: chosen.load_state_dict(states[1]),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("what", WHOLE)
def test_an_eager_step_and_a_state_are_taken_whole_or_not_at_all(what, optimizer):
    states = another_state(optimizer)
    model, chosen = eager(optimizer)
    before = all_of(model, chosen)
    with raising_at_line(0) as counted:
        WHOLE[what](model, chosen, states)
    after, lines = all_of(model, chosen), -counted[0]
    assert after != before
    drawn, found = random.Random(f"{what}{optimizer}"), []
    for place in [1, lines, *(1 + drawn.randrange(lines) for _ in range(12))]:
        model, chosen = eager(optimizer)
        with suppress(Stop), raising_at_line(place):
            WHOLE[what](model, chosen, states)
        found.append(all_of(model, chosen))
        assert found[-1] in (before, after)
        WHOLE["a model's state"](model, chosen, states)
        WHOLE["an optimizer's state"](model, chosen, states)
        chosen.step()
    assert before in found


@pytest.mark.parametrize("form", ["in-core", "window", "spill"])
def test_a_state_is_taken_whole_or_not_at_all_by_an_open_trainer(form, tmp_path):
    right = undisturbed("sgd", form, tmp_path)
    _, trainer = made("sgd", form, tmp_path)
    with trainer:
        trainer.step(*batch(0))
        trainer.save(str(tmp_path / "one.safetensors"))
        trainer.step(*batch(1))
        model = {name: np.array(p.numpy()) for name, p in trainer.model.named_parameters()}
        model |= {name: np.array(b.numpy()) for name, b in trainer.model.named_buffers()}
        uses = {
            "resume": lambda: trainer.resume(str(tmp_path / "one.safetensors")),
            "model": lambda: trainer.model.load_state_dict(
                {name: value * 0 for name, value in model.items()}),
        }  # fmt: skip
        drawn = random.Random(form)
        for name, use in uses.items():
            with raising_at_line(0) as counted:
                use()
            done = hashes(trainer), trainer.steps_done
            trainer.resume(str(tmp_path / "one.safetensors"))
            trainer.step(*batch(1))
            was = hashes(trainer), trainer.steps_done
            assert was == (right.states[2], 2)
            for _ in range(6):
                with suppress(Stop), raising_at_line(1 + drawn.randrange(-counted[0])):
                    use()
                assert (hashes(trainer), trainer.steps_done) in (was, done), name
                trainer.resume(str(tmp_path / "one.safetensors"))
                trainer.step(*batch(1))


class Holding:
    """Holds a value as a trainer does that has fetched it again meanwhile."""

    changes = 0

    def __init__(self, storage):
        self.value = np.array(storage.physical)

    def read(self):
        return self.value

    def write(self, array):
        to_logical(self.value)[...] = array
        return True

    def leave(self):
        pass


class Full(Holding):
    """It takes no other value: its device has failed."""

    def write(self, array):
        raise oc.errors.DriverError("the device is full", call="write")


@pytest.mark.parametrize("what", [w for w in WHOLE if w != "an optimizer's state"])
@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("others", ["here", "held"])
def test_an_error_half_way_leaves_all_values_as_they_were(what, number, others):
    states = another_state("adam")
    model, chosen = eager()
    parameters = list(model.parameters())
    full = parameters[number]
    for parameter in parameters:
        if parameter is full or others == "held":
            holder = (Full if parameter is full else Holding)(parameter.storage)
            assert parameter.storage.lend(holder, None, parameter.storage.version)
    before = all_of(model, chosen)
    for _ in range(2):
        with pytest.raises(oc.errors.DriverError):
            WHOLE[what](model, chosen, states)
        assert all_of(model, chosen) == before


class Breaking(optim.SGD):
    """An update that cannot be computed, for one parameter of several."""

    def update_op(self, group, lr):
        if self.param_groups.index(group):
            raise ZeroDivisionError
        return super().update_op(group, lr)


def test_an_update_that_raises_leaves_those_before_it_undone():
    model = Plain()
    first, *others = model.parameters()
    chosen = Breaking([{"params": [first]}, {"params": others}], 0.1, momentum=0.9)
    x, y = batch(0)
    F.cross_entropy(model(oc.tensor(x)), oc.tensor(y)).backward()
    values = [p.numpy().copy() for p in model.parameters()]
    with pytest.raises(ZeroDivisionError):
        chosen.step()
    assert all(np.array_equal(p.numpy(), v)
               for p, v in zip(model.parameters(), values, strict=True))  # fmt: skip
    assert chosen.steps_done == 0
    assert not any(chosen.steps.values())


def test_weights_that_nobody_has_read_are_not_drawn_to_be_overwritten():
    """What a state replaces at once costs no drawing, as of a large model that is resumed."""
    drawn = []

    def draw():
        drawn.append(1)
        return np.zeros((2, 2), np.float32)

    model = nn.Linear(2, 2)
    model.weight = nn.Parameter((2, 2), initial=draw)
    model.load_state_dict({"weight": np.ones((2, 2)), "bias": np.ones(2)})
    assert not drawn
    assert model.weight.numpy().sum() == 4
