"""Planted bugs of executor, allocators and streams: each is what a competent developer might write.

`BUGS` is {name: (owner, function, line as it is, line with the bug, law)}. Each changes one line of
the real source, and with each of them the hand-written lists of tests/unit/test_executor.py still
run when one instruction is finished before the next begins. Read next: `test_executor_bugs.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from zoo import planting

from ooctrain.alloc.holes import Holes
from ooctrain.alloc.mappings import MappingCache
from ooctrain.alloc.virtual import PartedBlock, VirtualAddressing
from ooctrain.execution import executor, placement, program
from ooctrain.execution.executor import Session
from ooctrain.execution.placement import Placement
from ooctrain.sched import budget

BUGS: dict[str, tuple[Any, str, str, str, str]] = {
    "an event is recorded before its work is done": (
        program._Numbering, "issue", "max(waits[lane], number)", "max(waits[lane], number - 1)",
        "delayed",
    ),
    "only the last thing to wait for is waited for": (
        program._Numbering, "issue", "waits[lane] = max(waits[lane], number)",
        "waits = [0] * len(waits); waits[lane] = number", "delayed",
    ),
    "a copy in does not wait for what is released before it": (
        Session, "_copy_in", "self._submit(self._streams.count - 1, step.waits,",
        "self._submit(self._streams.count - 1, (0,) * self._streams.count,", "delayed",
    ),
    "a copy out starts before its value is written": (
        Session, "_copy_out", "self._submit(OUT, step.waits,",
        "self._submit(OUT, (0,) * self._streams.count,", "delayed",
    ),
    "memory is poisoned while a copy still reads it": (
        Session, "_fill_freed", "self._submit(COMPUTE, waits, work)",
        "self._submit(COMPUTE, (0,) * self._streams.count, work)", "poisoned",
    ),
    "memory is claimed while it is being poisoned": (
        program._Numbering, "issue", "max(waits[0], self._last_fill)", "waits[0]", "poisoned",
    ),
    "a host slot is poisoned after its first copy in": (
        Session, "_copy_in", "step.host_last_bytes == size", "step.host_last_bytes >= 0",
        "poisoned",
    ),
    "a copy out of a part begins at the first byte": (
        Session, "_copy_out", "self.placement.address(step.var, step.index) + step.lo",
        "self.placement.address(step.var, step.index)", "parts",
    ),
    "the copies of the start are taken in the order of the slab": (
        executor, "start_ranges", "program.slots.start_offsets, strict",
        "sorted(program.slots.start_offsets), strict", "bytes",
    ),
    "the prologue brings parameters and forgets states": (
        Session, "__init__", "trace.variables[variable].persistent",
        'trace.variables[variable].kind == "param"', "bytes",
    ),
    "a copy in goes to the scratch output of the same variable": (
        Placement, "address", "block = self.blocks.get(variable)",
        "block = self.scratch.get(variable) or self.blocks.get(variable)", "bytes",
    ),
    "the end of a call forgets its scratch outputs": (
        Placement, "end", "for block in self.scratch.values():",
        "for block in [b for v, b in self.scratch.items() if v == WORKSPACE]:", "ledger",
    ),
    "an overwritten storage is counted twice": (
        Placement, "begin", "self._settle(step, out, self._forget(source))",
        "self._settle(step, out, self.blocks[source])", "ledger",
    ),
    "one step is replayed, as if persistent variables never moved": (
        placement, "_replay", "and not settling.worn", "and not played", "wandering",
    ),
    "both ends of a small carried value keep their places": (
        Placement, "carry", "there[old], there[new] = there[new], there[old]", "pass", "small",
    ),
    "a small value lies where its elements' number says": (
        budget, "region", "-(-variable.value_bytes // ALIGN_BYTES) * ALIGN_BYTES",
        "-(-len(variable.shape) // ALIGN_BYTES) * ALIGN_BYTES", "small",
    ),
    "holes melt with the hole behind only": (
        Holes, "joined", "if lo in self._start_of:", "if lo in ():", "allocator",
    ),
    "a hole is taken that is a byte too small": (
        Holes, "smallest", "bisect_left(self.by_size, (size_bytes, -1))",
        "bisect_left(self.by_size, (size_bytes - 512, 1))", "allocator",
    ),
    "a mapping is taken again although one of its chunks is held elsewhere": (
        MappingCache, "find", "all(map(free.is_free, mapping.runs))",
        "free.is_free(mapping.runs[0])", "stitched blocks",
    ),
    "a part takes the chunk that is mapped there, whoever holds it now": (
        PartedBlock, "keeps", " & ~free.held[there]", "", "parts of blocks",
    ),
    "a mapping is broken before its last use is over": (
        MappingCache, "wait", "event.wait()", "pass", "waiting mappings",
    ),
    "the mapping that was used last is let go": (
        MappingCache, "leave", "move_to_end(mapping)", "move_to_end(mapping, last=False)",
        "bounded mappings",
    ),
    "a mapping that could not be mapped keeps its addresses": (
        MappingCache, "make", "self._memory.release(address)", "pass", "refused calls",
    ),
    "a part that could not be mapped keeps its chunks": (
        VirtualAddressing, "_put_others", "self._free.give(kept)", "pass", "refused calls",
    ),
}  # fmt: skip


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    """Puts the line with the bug in place."""
    owner, name, line, wrong, _ = BUGS[bug]
    planting.plant(patch, owner, name, line, wrong)
