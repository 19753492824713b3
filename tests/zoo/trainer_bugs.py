"""Planted bugs of trainers: the place of values, the order of turns, and what is left behind.

`BUGS` is {name: (law, (owner, function, piece as it is, piece with the bug), ...)}. With each of
them one trainer of one model, in one thread, trains as it should. Read next:
`test_trainer_bugs.py`.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from zoo import planting

from ooctrain.devices.cpu.device import CpuDevice
from ooctrain.engine.eager import Storage
from ooctrain.engine.tensor import Tensor
from ooctrain.execution import residence
from ooctrain.execution.executor import Session
from ooctrain.execution.residence import OpenSession, Residence, Turns

BUGS: dict[str, tuple[Any, ...]] = {
    "a trainer that closes writes values that another one has": (
        "any order",
        (OpenSession, "_here", "if place.storage.holder is place", ""),
        (Storage, "take_back", "if self.holder is not holder:", "if False:"),
    ),
    "a trainer fetches what is on the host, and not what another one has": (
        "any order",
        (OpenSession, "take_over", "holder is not place", "holder is None"),
    ),
    "a trainer goes on from its own values": (
        "any order", (Residence, "session", "current.take_over()", "pass"),
    ),
    "each trainer gives the tensors storages of its own, which end in each other": (
        "any order",
        (Residence, "_open", "self._tensors[variables[v].name].storage for",
         "own_storage(self._tensors[variables[v].name]) for"),
    ),
    "a value is fetched although it has changed meanwhile": (
        "changes while it is fetched", (Storage, "lend", " or self.version != version", ""),
    ),
    "an evaluation counts as a change": (
        "the tape", (OpenSession, "__init__", "s, v in changing", "s, True"),
    ),
    "a step is no change": ("the tape", (Session, "run_step", "self.steps += 1", "pass")),
    "the walker is the thread that opened the device": (
        "a device's threads", (CpuDevice, "attach", "self.streams.attach()", "pass"),
    ),
    "a step does not say whose it is": (
        "a session's threads", (Session, "_expect_sound", "self.device.attach()", "pass"),
    ),
    "who looks does not ask whose turn it is": (
        "a second thread",
        (Turns, "take", "self._enter(me)", "working and self._enter(me)"),
    ),
    "any thread may come in while one works": (
        "a second thread",
        # A turn is its thread's; here it is any thread's while one works.
        (Turns, "take", "_worker == me:\n        yield", "_worker is not None:\n        yield"),
    ),
    "an operation may look into the midst of a step": (
        "an operation", (Session, "expect_idle", "if self._walking:", "if False:"),
    ),
    "a dropped trainer stays open": (
        "dropped", (Residence, "_open", "weakref.finalize(self,", "weakref.finalize(Residence,"),
    ),
    "a dropped trainer gives the device back and forgets the values": (
        "dropped with values",
        (Residence, "_open", "self._turns.end, current.close", "self._turns.end, current.abandon"),
    ),
    "a device's threads keep it": (
        "a dropped device",
        (CpuDevice, "__init__", "self, _give_back,", "self.streams, _give_back,"),
    ),
    "who looks last does not end the trainer": (
        "dropped in a look", (Turns, "_leave", "self._end()", "pass"),
    ),
    "an arena keeps its pages until all values are home": (
        "home", (OpenSession, "close", "self.session.forget(place.variable)", "pass"),
    ),
    "an arena keeps its pages while values come from the slab": (
        "home from the slab", (OpenSession, "close", "self.session.forget_device()", "pass"),
    ),
    "values come from the slab before those of the arena": (
        "home from the slab", (OpenSession, "close", "if place.variable in on_device]", "]"),
    ),
    "a fork closes its parent's device": (
        "a fork", (OpenSession, "close", "self.closed or self.turns.forked", "self.closed"),
    ),
    "a fork reads its parent's addresses": (
        "a fork", (Turns, "take", "if self.forked:", "if False:"),
    ),
    "a fork in the midst of an evaluation goes on with it": (
        "a fork within",
        (Turns, "take", "if self.forked:", "if self.forked and self._worker is None:"),
    ),
    "a fork closes its trainer and takes its parent's values for its own": (
        "a fork",
        (Residence, "_close_session", "self._turns = Turns(self.finisher)", "pass"),
    ),
}  # fmt: skip


def own_storage(tensor: Tensor) -> Storage:
    """A new storage for a tensor, with the value that it has now."""
    tensor.storage = copy.copy(tensor.storage)
    return tensor.storage


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    """Puts the lines with the bug in place."""
    patch.setattr(residence, "own_storage", own_storage, raising=False)
    for piece in BUGS[bug][1:]:
        planting.plant(patch, *piece)
