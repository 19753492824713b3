"""Planted bugs of the slab on a disk: each is what a competent developer might write.

`BUGS` is {name: (owner, function, text as it is, text with the bug, law)}; the laws are those of
tests/unit/test_spill.py and tests/properties/test_spill_laws.py. With each of them a small file on
a good disk still works, piece after piece. Read next: `test_spill_bugs.py`.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from zoo import planting

from ooctrain.devices import spill
from ooctrain.devices.host_file import HostFile
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.step_cache import StepCache
from ooctrain.machine import disk_speed
from ooctrain.step import presets

BUGS: dict[str, tuple[Any, str, str, str, str]] = {
    "the last block is not reserved": (
        HostFile, "__init__", "-(-size_bytes // BLOCK_BYTES)", "size_bytes // BLOCK_BYTES", "ends",
    ),
    "a copy past the slab's end is let through": (
        HostFile, "copy", "if not 0 <= offset <= self.size_bytes - size_bytes:",
        "if not 0 <= offset <= self.size_bytes:", "outside",
    ),
    "a copy is taken for done when its last piece is": (
        HostFile, "_all",
        "try:\n        wait(asked)\n    finally:\n        wait(asked)\n    for piece in asked:",
        "for piece in asked[-1:]:",
        "done",
    ),
    "pieces come back from where the first one lies": (
        HostFile, "copy", "memory + lo - offset", "memory", "copies",
    ),
    "the first block of a part is not read before it is written": (
        HostFile, "_write", "if lo != first:", "if False:", "copies",
    ),
    "the last block of a part is not read before it is written": (
        HostFile, "_write", "if hi != end:", "if False:", "copies",
    ),
    "neighbours of one block write at once": (
        HostFile, "_write", "self._edges if part else nullcontext()", "nullcontext()", "neighbours",
    ),
    "memory that is not aligned is written as if it were": (
        HostFile, "_read", "lo - first : hi - first", ": hi - lo", "copies",
    ),
    "a short call is taken for a whole one": (
        HostFile, "_through", "done += gained", "done = size_bytes", "copies",
    ),
    "after a short call past the page cache the next begins inside a block": (
        HostFile, "_through", "(done + count) // self._unit * self._unit - done", "count", "copies",
    ),
    "an interrupted call ends the copy": (
        HostFile, "_through", "continue", "break", "copies",
    ),
    "a failed piece is taken for done": (
        HostFile, "_all", "piece.result()", "piece.exception()", "fails",
    ),
    "nobody asks whether the disk took what the cache was given": (
        HostFile, "copy", "self._calls.sync(self._file)", "pass", "late",
    ),
    "the page cache keeps what was written": (
        HostFile, "copy", "self._calls.forget(self._file, offset, size_bytes)", "pass", "cache",
    ),
    "a flag that the file system takes is taken for a bypass": (
        spill, "_passes_cache_by", "not calls.is_cached(file)", "True", "cache",
    ),
    "pages are told to go before they are clean": (
        HostFile, "copy", "if writes:\n", "if writes and size_bytes < 0:\n", "cache",
    ),
    "the file keeps its name": (
        spill.FileCalls, "make", "os.unlink(path)", "pass", "killed",
    ),
    "a folder in memory is taken for a disk": (
        spill, "open_file", "if kind in _MEMORY:", "if kind in _MEMORY and size_bytes < 0:",
        "memory",
    ),
    "a file is made longer and no space is taken": (
        spill.FileCalls, "reserve", "os.posix_fallocate(file, 0, size_bytes)",
        "os.ftruncate(file, size_bytes)", "reserved",
    ),
    "growth that is refused keeps what there was": (
        HostFile, "_grow", "self._calls.shrink(self._file, self.reserved_bytes)", "pass", "growth",
    ),
    "a disk is tried out again when it may be full": (
        StepCache, "_with_disk", "return replace(settings, spill=self._disk)", "return settings",
        "again",
    ),
    "the limit on the rate makes a slow disk faster": (
        presets, "on_disk", "min(disk.out_bytes_per_us, limit), min(disk.in_bytes_per_us, limit)",
        "(limit, limit) if limit < 1e9 else (disk.out_bytes_per_us, disk.in_bytes_per_us)", "rate",
    ),
    "both directions at once are thought to be free": (
        disk_speed, "link_of", "(in_turns_us + at_once_us) / 2", "2 * in_turns_us", "link",
    ),
    "inputs that wait on the disk are not counted as written": (
        PreparedStep, "host_written_bytes", "sum(fed) + sum(", "sum(", "written",
    ),
}  # fmt: skip


def plant(patch: pytest.MonkeyPatch, name: str) -> None:
    """Puts one bug into the library."""
    owner, function, piece, wrong, _ = BUGS[name]
    right = inspect.getattr_static(owner, function)
    if isinstance(right, property):
        patch.setattr(owner, function, planting.with_bug(right.fget, piece, wrong))
    elif isinstance(owner, type):
        planting.plant(patch, owner, function, piece, wrong)
    else:
        planting.plant_everywhere(patch, owner, function, piece, wrong)
