"""Planted bugs of batches that are read ahead.

`BUGS` is {name: (law, owner, function, piece as it is, piece with the bug)}. With each of them a
single step of one batch is still right. Read next: `test_ahead_bugs.py`.
"""

from __future__ import annotations

from ooctrain.data import DataLoader
from ooctrain.devices.cpu.device import CpuDevice
from ooctrain.devices.cuda.feed import Feed
from ooctrain.execution import ahead
from ooctrain.execution.ahead import Ahead, ReadBatch

BUGS = {
    "nobody reads ahead": (
        "there", Ahead, "begin",
        "reader.begin(StagedBatch(trace, device.host_buffer(_buffer_bytes(trace))))",
        "pass",
    ),
    "a GPU has one host buffer, which is filled before its copy is done": (
        "there on a GPU", Feed, "host_buffer", "len(self._buffers) < 2", "not self._buffers",
    ),
    "the cpu has one host buffer": (
        "there", CpuDevice, "host_buffer", "len(self._buffers) < 2", "not self._buffers",
    ),
    "any arrays are taken for those that were laid out": (
        "changes", ReadBatch, "serves", "same and place", "place",
    ),
    "arrays that were laid out may be changed": (
        "changes", ahead, "_still", "seen.flags.writeable = False", "pass",
    ),
    "a step waits for the next batch, and ends with its error": (
        "errors", Ahead, "begin",
        "reader.begin(StagedBatch(trace, device.host_buffer(_buffer_bytes(trace))))",
        "reader.begin(); reader._next.result()",
    ),
    "under a memory budget a loader reads ahead by itself": (
        "no more", ahead, "_reading",
        "ahead=not manner.alone", "ahead=True",
    ),
    "a loader counts what was read": (
        "a loader", DataLoader, "reading", 'yield batch, partial(setattr, self, "_state", state)',
        "self._state = state; yield batch, list",
    ),
}  # fmt: skip
