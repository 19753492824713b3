"""Planted bugs of batches that are read ahead.

In: nothing. Out: `BUGS`, {name: (law, owner, function, piece as it is, piece with the bug)}. The
one idea: a step of one batch, alone, is right with each of them.
"""

from __future__ import annotations

from ooctrain.data import DataLoader
from ooctrain.devices.cpu.device import CpuDevice
from ooctrain.devices.cuda.feed import Feed
from ooctrain.execution import ahead
from ooctrain.execution.ahead import Ahead, ReadBatch

BUGS = {
    "nobody reads ahead": (
        "there", Ahead, "begin", "reader.begin(Berth(trace, device.room(_room_bytes(trace))))",
        "pass",
    ),
    "a GPU has one room, which is filled before its copy is done": (
        "there on a GPU", Feed, "room", "len(self._rooms) < 2", "not self._rooms",
    ),
    "the cpu has one room": (
        "there", CpuDevice, "room", "len(self._rooms) < 2", "not self._rooms",
    ),
    "any arrays are taken for those that were laid out": (
        "changes", ReadBatch, "serves", "same and place", "place",
    ),
    "arrays that were laid out may be changed": (
        "changes", ahead, "_still", "seen.flags.writeable = False", "pass",
    ),
    "a step waits for the next batch, and ends with its error": (
        "errors", Ahead, "begin", "reader.begin(Berth(trace, device.room(_room_bytes(trace))))",
        "reader.begin(); reader._next.result()",
    ),
    "a loader counts what was read": (
        "a loader", DataLoader, "reading", 'yield batch, partial(setattr, self, "_state", state)',
        "self._state = state; yield batch, list",
    ),
}  # fmt: skip
