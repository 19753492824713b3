"""Trainers of one model, in any order: its values are always those of plain sequential training.

Two networks share a body, as the players of a GAN do, and up to three trainers train, evaluate,
are closed or dropped, while the values are read, assigned, loaded and trained eagerly in between.
After each of these, parameters, buffers and optimizer slots have the bits of a reference that keeps
every value in an array of its own and computes one step after the other in memory.
"""

from __future__ import annotations

import gc
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import ooctrain as oc
from ooctrain import nn
from ooctrain.engine.incore import run_trace
from ooctrain.execution import step_cache
from ooctrain.functional import cross_entropy

LR, MOST_TRAINERS = 0.1, 3
#: How a trainer runs: in-core, and with all that can move moving.
WAYS = ({"budget": None}, {"budget": "0%", "planner": "naive"})
THREADS = [ThreadPoolExecutor(1), ThreadPoolExecutor(1)]
MAKING = {"optimizer": st.integers(0, 3), "way": st.sampled_from(WAYS)}
BATCHES = {"samples": st.sampled_from([2, 3]), "seed": st.integers(0, 9)}
#: Whose turn it is, and in which thread; 0 is the test's own.
TURNS = {"which": st.integers(0, 2), "thread": st.integers(0, 2)}


class Networks:
    """Two networks with one body, and for each two optimizers, one that its trainers may share."""

    def __init__(self):
        oc.manual_seed(1)
        body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
        self.models = [nn.Sequential(body, nn.Flatten(), nn.Linear(8, 3)) for _ in range(2)]
        self.optimizers = [sgd(model) for model in self.models for _ in range(2)]
        #: for each optimizer what persists of it and its network, by the names that a trace gives
        self.named = [persistent(self.models[o // 2], self.optimizers[o]) for o in range(4)]
        every = {t: f"{o}.{name}" for o in range(4) for name, t in self.named[o].items()}
        self.tensors = {name: tensor for tensor, name in every.items()}

    def values(self):
        """Copies of them all."""
        return {name: np.array(tensor.numpy()) for name, tensor in self.tensors.items()}

    def train_eagerly(self, o, x, y):
        """A step of the eager engine."""
        loss = cross_entropy(self.models[o // 2](oc.tensor(x)), oc.tensor(y))
        loss.backward()
        self.optimizers[o].step()
        self.optimizers[o].zero_grad()
        return loss.item()


def sgd(model):
    return oc.optim.SGD(model.parameters(), lr=LR, momentum=0.9)


def persistent(model, optimizer):
    """What persists from step to step, by the names that a trace gives it."""
    found = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, parameter in model.named_parameters():
        for slot, tensor in optimizer.slots(parameter).items():
            found[f"{name}.{slot}"] = tensor
    return found


class Reference(Networks):
    """The same networks without any trainer: a step is computed call by call, in arrays."""

    def run(self, o, x, y=None, *, training=False):
        """One step in memory; what it carries to the next one is written back. Its outputs."""
        trace = the_trace(x.shape, y is not None, training)
        mine = self.named[o]
        first = [trace.variables[v].name for v in trace.initial if trace.variables[v].persistent]
        values = {name: mine[name].numpy() for name in first} | {"input": x}
        if y is not None:
            values["target"] = y
        found = run_trace(trace, values, {"lr": LR, "step": 0, "seed": 0})
        for name in first:
            if name in found:
                mine[name].copy_(found[name])
        return found


@cache
def the_trace(shape, with_loss, training):
    template = Networks()
    loss = "cross_entropy" if with_loss else None
    optimizer = template.optimizers[0] if training else None
    return oc.trace(template.models[0], shape, loss, optimizer, threads=1, training=training)


def within(thread, call, *args):
    """What a call returns or raises in one of the threads; five minutes is never."""
    return call(*args) if thread == 0 else THREADS[thread - 1].submit(call, *args).result(300)


def batch(samples, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((samples, 1, 4, 4), np.float32), rng.integers(0, 3, samples)


class Trainers(RuleBasedStateMachine):
    """Everything that may happen to two networks, and their reference beside them."""

    def __init__(self):
        super().__init__()
        self.real, self.plain = Networks(), Reference()
        self.trainers = []  # (number of its optimizer, trainer)
        self.saved = []  # (path, number of its network, values by the trace's names)
        self.kept = None  # the values of a network
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self):
        for _, trainer in self.trainers:
            trainer.close()
        self.folder.cleanup()
        self.values_are_the_references()

    @invariant()
    def values_are_the_references(self):
        found, wanted = self.real.values(), self.plain.values()
        wrong = [name for name in wanted if not np.array_equal(found[name], wanted[name])]
        assert not wrong, f"{len(wrong)} of {len(wanted)} arrays are not the reference's: {wrong}"

    # Trainers

    @initialize(trainers=st.lists(st.tuples(*MAKING.values()), min_size=2, max_size=3))
    def make_some(self, trainers):
        for optimizer, way in trainers:
            self.make(optimizer, way)

    @precondition(lambda self: len(self.trainers) < MOST_TRAINERS)
    @rule(**MAKING)
    def make_another(self, optimizer, way):
        self.make(optimizer, way)

    def make(self, optimizer, way):
        model = self.real.models[optimizer // 2]
        chosen = self.real.optimizers[optimizer]
        trainer = oc.Trainer(model, optimizer=chosen, threads=1, allocator="best-fit", **way)
        self.trainers.append((optimizer, trainer))

    @precondition(lambda self: self.trainers)
    @rule(**TURNS, **BATCHES)
    def step(self, which, thread, samples, seed):
        optimizer, trainer = self.chosen(which)
        x, y = batch(samples, seed)
        wanted = self.plain.run(optimizer, x, y, training=True)
        assert within(thread, trainer.step, x, y) == wanted["loss"]

    @precondition(lambda self: self.trainers)
    @rule(**TURNS, **BATCHES, with_loss=st.booleans())
    def evaluate_or_predict(self, which, thread, samples, seed, with_loss):
        optimizer, trainer = self.chosen(which)
        x, y = batch(samples, seed)
        wanted = self.plain.run(optimizer, x, y if with_loss else None)
        if with_loss:
            assert within(thread, trainer.evaluate, [(x, y)]).loss == wanted["loss"]
        else:
            assert np.array_equal(within(thread, trainer.predict, x), wanted["output"])

    @precondition(lambda self: self.trainers)
    @rule(**TURNS, close=st.booleans())
    def close_or_drop(self, which, thread, close):
        if close:
            within(thread, self.chosen(which)[1].close)
        else:
            self.trainers.pop(which % len(self.trainers))
            gc.collect()

    @precondition(lambda self: self.trainers and len(self.saved) < 2)
    @rule(which=st.integers(0, 2))
    def save(self, which):
        optimizer, trainer = self.chosen(which)
        path = Path(self.folder.name) / f"{len(self.saved)}.safetensors"
        trainer.save(str(path))
        mine = self.plain.named[optimizer]
        self.saved.append((path, {name: np.array(value) for name, value in mine.items()}))

    @precondition(lambda self: self.trainers and self.saved)
    @rule(which=st.integers(0, 2), number=st.integers(0, 9))
    def resume(self, which, number):
        optimizer, trainer = self.chosen(which)
        path, values = self.saved[number % len(self.saved)]
        trainer.resume(str(path))
        for name, tensor in self.plain.named[optimizer].items():
            tensor.copy_(values[name])

    # The model and the eager engine

    @rule(number=st.integers(0, 100), seed=st.integers(0, 9), load=st.booleans())
    def assign_or_load(self, number, seed, load):
        """One tensor takes other values, or a network those that one had the first time."""
        name = sorted(self.plain.tensors)[number % len(self.plain.tensors)]
        self.kept = self.kept or self.plain.models[0].state_dict()
        for networks in (self.real, self.plain):
            tensor, rng = networks.tensors[name], np.random.default_rng(seed)
            if load:
                networks.models[number % 2].load_state_dict(self.kept)
            else:
                tensor.copy_(rng.integers(1, 5, tensor.shape).astype(tensor.dtype))

    @rule(optimizer=st.integers(0, 3), **BATCHES)
    def train_eagerly(self, optimizer, samples, seed):
        x, y = batch(samples, seed)
        losses = [n.train_eagerly(optimizer, x, y) for n in (self.real, self.plain)]
        assert losses[0] == losses[1]

    def chosen(self, which):
        return self.trainers[which % len(self.trainers)]


@contextmanager
def quickly():
    """Plans each step once for all trainers, and lets the collector look at new objects only."""
    patch, planned, prepare = pytest.MonkeyPatch(), {}, step_cache.prepare

    def once(trace, how, *given):
        key = trace.fingerprint, how
        if key not in planned:
            planned[key] = prepare(trace, how, *given)
        return planned[key]

    patch.setattr(step_cache, "prepare", once)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        patch.undo()


@pytest.mark.slow
def test_the_values_are_those_of_one_step_after_the_other():
    with quickly():
        run_state_machine_as_test(
            Trainers, settings=settings(max_examples=20, stateful_step_count=20)
        )


# Orders that a search may take long to come upon: (optimizers and ways of the trainers, events).

TWICE = [(0, WAYS[0]), (0, WAYS[0])]
MOVED = [(0, WAYS[1]), (1, WAYS[1])]
SHARED_BODY = [(0, WAYS[0]), (2, WAYS[1])]


def steps(*trainers):
    """A step of each, with another batch each."""
    return [("step", which, 0, 2, seed) for seed, which in enumerate(trainers)]


def close(which):
    return ("close_or_drop", which, 0, True)


def drop(which):
    return ("close_or_drop", which, 0, False)


SCRIPTS = {
    "by turns": [*steps(0, 1, 0, 1, 1, 0)],
    "one closes": [*steps(1, 0), close(1), *steps(0), close(0)],
    "both close": [*steps(0, 1), close(0), close(1), *steps(0, 1), close(1), close(0)],
    "one is dropped": [*steps(0, 1, 0), drop(1), *steps(0, 0)],
    "one evaluates": [
        *steps(0), ("evaluate_or_predict", 1, 0, 3, 1, True), *steps(0), close(1), *steps(0, 1),
        ("evaluate_or_predict", 0, 0, 2, 1, False), close(0),
    ],
    "assigned between": [
        *steps(0, 1), ("assign_or_load", 0, 1, False), *steps(0), ("assign_or_load", 1, 1, True),
        *steps(1, 0), close(1), ("assign_or_load", 3, 2, False), close(0),
    ],
    "eager between": [*steps(0, 1), ("train_eagerly", 0, 2, 5), *steps(0, 1), close(1), close(0)],
    "saved and resumed": [
        *steps(0, 1), ("save", 0), *steps(1, 0), ("resume", 1, 0), *steps(0, 1), close(0),
        ("save", 1), *steps(1), ("resume", 0, 1), close(1),
    ],
    "in other threads": [("step", 0, 1, 2, 1), ("step", 1, 2, 3, 2), ("step", 0, 2, 2, 3)],
}  # fmt: skip


def play(trainers, events):
    """One order of events; after each the values are the reference's."""
    machine = Trainers()
    try:
        for made in trainers:
            machine.make(*made)
        for name, *arguments in events:
            getattr(machine, name)(*arguments)
            machine.values_are_the_references()
    finally:
        for _, trainer in machine.trainers:
            trainer.close()
        machine.folder.cleanup()
    machine.values_are_the_references()


def check_orders():
    """Every script, with trainers of one optimizer, of two, and of two networks with one body."""
    for events in SCRIPTS.values():
        for trainers in (TWICE, MOVED, SHARED_BODY):
            play(trainers, events)


@pytest.mark.slow
def test_the_values_are_so_in_orders_that_were_thought_of():
    with quickly():
        check_orders()
