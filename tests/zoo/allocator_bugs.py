"""Planted bugs of allocators and of the memory below them: what competent developers wrote.

Each `Bug` in `BUGS` changes a line or two of the real source. A test that allocates, writes, frees
and allocates again, all in order and nothing refused, passes with every one of them except those in
`LOUD`, and a law kills it. The twelve names in capitals are the bugs by which the first version of
these laws was measured; the threads named with a bug are where users met it. Read next:
`test_allocator_bugs.py`. The source of paper 000's own allocator, nnabla's, has these defects:

(a) chunks are mapped anew while their old range may be in use: "nnabla (a)".
(b) what is requested is not updated where memory is used again: STALE_REQUESTED.
(c) cached memory is never counted: "nnabla (c)".
(d) a range that lies elsewhere than hoped for is leaked: as "nnabla (d)"; no allocator here asks
    for addresses by hint, so it is the range whose mapping is refused.
(e) a handle that was never created is released: "nnabla (e)".
(f) a mapping is destroyed without waiting for its event: STREAM_WAIT_NOT_HOST_SYNC. Its missing
    retry does not apply: nothing is obtained from the driver at the second attempt that was not
    held at the first.
(g) one busy range keeps all later ones waiting: does not apply to va, which waits for the range it
    breaks only; va-paper waits for the oldest first, by intention (its docstring says so), and
    "nnabla (g)" is its worst form, a request refused though memory only waits.
(h) one unmap over many handles: "nnabla (h)".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from zoo import planting

from ooctrain.alloc import buddy, first_fit, static
from ooctrain.alloc.base import Books
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.best_fit_caching import CachingBestFit
from ooctrain.alloc.buddy import Buddy
from ooctrain.alloc.bump import Bump
from ooctrain.alloc.first_fit import FirstFit, FirstFitBySize
from ooctrain.alloc.gmlake import Gmlake
from ooctrain.alloc.holes import Holes
from ooctrain.alloc.mappings import MappingCache
from ooctrain.alloc.passthrough import Passthrough
from ooctrain.alloc.stalloc import Stalloc
from ooctrain.alloc.va_nnabla import NnablaVirtualAddressing
from ooctrain.alloc.va_paper import PaperVirtualAddressing
from ooctrain.alloc.virtual import PartedBlock, VirtualAddressing
from ooctrain.alloc.wrappers import Limited, ThreadSafe
from ooctrain.devices.cuda.driver_memory import DriverMemory

PAGE = 4096
Make = Callable[[Any], Any]


def va(memory: Any) -> VirtualAddressing:
    """Virtual addressing with chunks of a page."""
    return VirtualAddressing(memory, PAGE)


def va_paper(memory: Any) -> PaperVirtualAddressing:
    """Paper 000's, with chunks of a page."""
    return PaperVirtualAddressing(memory, PAGE)


def va_nnabla(memory: Any) -> NnablaVirtualAddressing:
    """The authors' code, with chunks of a page."""
    return NnablaVirtualAddressing(memory, PAGE, 2)


def stitching(memory: Any) -> Gmlake:
    """GMLake's, with chunks of a page."""
    return Gmlake(memory, PAGE)


def caching(memory: Any) -> CachingBestFit:
    """Segments of a page for requests up to a page."""
    return CachingBestFit(memory, small=PAGE, chunk=PAGE)


def passthrough(memory: Any) -> Passthrough:
    """Whole pages, one mapping for each block."""
    return Passthrough(memory, PAGE)


def limited(memory: Any) -> Limited:
    """Nine of twelve pages."""
    return Limited(va(memory), 9 * PAGE)


class Bug(NamedTuple):
    """One mistake.

    Args:
        make: the allocator that shows it.
        owner, function: where it is.
        right, wrong: the text as it is, and with the bug.
        laws: that may kill it; which one does depends on what is tried first.
        backend: on which it is found.
    """

    make: Make
    owner: Any
    function: str
    right: str
    wrong: str
    laws: str
    backend: str = "strict"


_FREE_ONCE = """\
    if block.id not in self._books.live:
        return
    self._books.retire(block)"""
_OPEN_FIRST = """\
    block = self._books.open(0, size, 0, tag)
    self._expect_room(slots, size, tag)
    self._books.retire(block)"""
_UNWIND = """\
        self._unmap(base, first, last)
        raise"""

BUGS: dict[str, Bug] = {
    # Waiting.
    "NO_EVENT_WAIT: chunks are mapped over a range in use (TensorRT-LLM 11641)": Bug(
        va, MappingCache, "put", "if ((lo <= slots) & (slots < hi)).any()", "if False", "P5 P4",
    ),
    "STREAM_WAIT_NOT_HOST_SYNC: a range goes while the host has not seen its end (openvm 362)": Bug(
        va, MappingCache, "drop", "self.wait([", "([", "P5",
    ),
    "the same in va-paper, which lets every range go": Bug(
        va_paper, MappingCache, "wait", "event.wait()", "pass", "P5",
    ),
    "IGNORE_RECORD_USE: only the writer of a block is waited for (vllm 43020)": Bug(
        va, VirtualAddressing, "free", "slots, after)", "slots, after[-1:])", "P5",
    ),
    "only the first reader of a part is waited for": Bug(
        va, VirtualAddressing, "unmap_range", "+ 1, after)", "+ 1, after[:1])", "P5 P4",
    ),
    "va-paper waits for one reader": Bug(
        va_paper, PaperVirtualAddressing, "free", "(block, after)", "(block, after[:1])", "P5",
    ),
    # Parts.
    "a chunk that has moved within its block is taken for both slots (ours)": Bug(
        va, PartedBlock, "keeps", "return own & once", "return own", "P16 P1",
    ),
    "a block in parts gets a mapping that another one uses": Bug(
        va, MappingCache, "find_begun", "if mapping.live:", "if False:", "P16 P1 P4 P10 V3",
    ),
    # Aliases.
    "nnabla (a): a range is used again while some of its chunks are in use elsewhere": Bug(
        va, MappingCache, "find", "all(map(free.is_free, mapping.runs))",
        "mapping.mapped() <= free.count", "V3 P16 P4 P9 P10 P1",
    ),
    "a part takes the chunk that is mapped there, whoever holds it now": Bug(
        va, PartedBlock, "keeps", " & ~free.held[there]", "", "V3 P16 P4 P9 P10",
    ),
    # Mapping.
    "NO_SET_ACCESS: a mapping is used without access": Bug(
        va, DriverMemory, "map", "self._driver.set_access(address, size_bytes)", "pass", "P5",
    ),
    "PARTIAL_MAP_BULK_UNMAP: what is half mapped is unmapped as a whole (pytorch 188008)": Bug(
        va, DriverMemory, "map", _UNWIND,
        "        self._driver.unmap(address, size_bytes)\n        raise", "P5",
    ),
    "PARTIAL_MAP_NO_UNWIND: what is half mapped stays so (surogate 117)": Bug(
        va, DriverMemory, "map", _UNWIND, "        raise", "P8",
    ),
    "chunks are mapped over mappings, as Linux does": Bug(
        va, DriverMemory, "map", "    self._unmap(base, first, last)\n    table", "    table", "P5",
    ),
    "nnabla (d): a range that cannot be mapped keeps its addresses": Bug(
        va, MappingCache, "make", "self._memory.release(address)", "pass", "P8",
    ),
    "nnabla (e): a handle that was never created is released": Bug(
        va, DriverMemory, "__init__", "self._handles.append(driver.create(self._handle_bytes))",
        "self._handles.append(0); self._handles[-1] = driver.create(self._handle_bytes)", "P5",
    ),
    "nnabla (h): one unmap over many handles (ROCR-Runtime 285)": Bug(
        va, DriverMemory, "_unmap", "step = hi - lo if self._driver.parts else 1",
        "step = hi - lo", "P5",
    ),
    "the last handle is forgotten": Bug(
        va, DriverMemory, "close", "while self._handles:", "while self._handles[1:]:", "P11",
    ),
    "a part that could not be mapped keeps its chunks": Bug(
        va, VirtualAddressing, "_put_others", "self._free.give(kept)", "pass", "P8 P16",
    ),
    "everything is mapped anew each time": Bug(
        va, MappingCache, "find", "return mapping", "return None", "V4 P13",
    ),
    "va-paper leaves a range mapped that it gives up": Bug(
        va_paper, DriverMemory, "release", "self._unmap(address, 0, slots)", "pass", "P5",
    ),
    "passthrough has no guard": Bug(
        passthrough, Passthrough, "allocate", "make(count + 1, runs)", "make(count, runs)", "P16",
    ),
    # Books.
    "ROUND_DOWN: whole chunks only are counted": Bug(
        va, VirtualAddressing, "_slots", "-(-nbytes // self._chunk)",
        "max(1, nbytes // self._chunk)", "P2 P9 P16 P10",
    ),
    "STALE_REQUESTED, nnabla (b): memory used again counts as it was": Bug(
        BestFit, BestFit, "allocate", "self._books.move(nbytes, size, growth)",
        "self._books.move(nbytes if growth else size, size, growth)", "P7",
    ),
    "nnabla (c): what is free in between is not counted": Bug(
        BestFit, Books, "stats", "cached_bytes=self.reserved - self.granted - self.pending",
        "cached_bytes=0", "P7",
    ),
    "BUDGET_OFF_BY_ONE: a sector beyond the arena": Bug(
        BestFit, BestFit, "allocate", "self._top + size <= self.budget_bytes",
        "self._top + size <= self.budget_bytes + ROUND_BYTES", "P5 P6 P9 P16",
    ),
    "a chunk more than is free": Bug(
        va, VirtualAddressing, "_expect_room", "if chunks > free:", "if chunks > free + 1:",
        "P9 P6 P16",
    ),
    "LEAK_ON_OOM: a refused block stays in the books": Bug(
        va, VirtualAddressing, "allocate", "    self._expect_room(slots, size, tag)", _OPEN_FIRST,
        "P8",
    ),
    "DOUBLE_FREE_OK: a second free is ignored": Bug(
        BestFit, BestFit, "free", "    self._books.retire(block)", _FREE_ONCE, "P10",
    ),
    "TRIM_FORGETS_COUNT: a range that goes stays in the count": Bug(
        va, MappingCache, "_release", "self._count(mapping, -1)", "pass", "P16",
    ),
    "the peak is taken before the change": Bug(
        BestFit, Books, "move", "self.requested += requested",
        "self.requested += min(0, requested)", "P7 P16",
    ),
    "nnabla (g): memory that only waits is refused": Bug(
        va_paper, PaperVirtualAddressing, "allocate", "while len(self._free) < count:",
        "if len(self._free) < count:", "P9",
    ),
    "va-paper forgets what waits": Bug(
        va_paper, PaperVirtualAddressing, "free", "pending=granted", "pending=0", "P16 P7",
    ),
    "close() names nobody": Bug(
        va, Books, "close", "leaked = [self.live[key] for key in sorted(self.live)]",
        "leaked = []", "P11", backend="memfd",
    ),
    # Places.
    "holes melt with the hole behind only": Bug(
        BestFit, Holes, "joined", "if lo in self._start_of:", "if lo in ():", "P16 B2",
    ),
    "a hole of the very size is passed over": Bug(
        BestFit, Holes, "smallest", "(size_bytes, -1)", "(size_bytes, 1 << 40)", "B3 P9",
    ),
    "a small remainder is given away with the block, and lost": Bug(
        BestFit, Holes, "cut", "if hole > size_bytes:", "if hole > size_bytes + 512:", "P16 B1",
    ),
    # Segments.
    "pieces of two segments are taken for neighbours": Bug(
        caching, CachingBestFit, "free", "segment.holes.joined(offset, offset + piece)",
        "(offset, offset + piece)", "P16",
    ),
    "a segment that a block still uses goes back": Bug(
        caching, CachingBestFit, "_new_segment", "if s.unused", "if s.size_bytes",
        "P1 P4 P5 P11 P16",
    ),
    "a segment goes back before its last use is over": Bug(
        caching, CachingBestFit, "free", "piece, after)", "piece, ())", "P5",
    ),
    "unused segments are never given back": Bug(
        caching, CachingBestFit, "_room", "if not segment.unused", "", "P9 P12 P16",
    ),
    "a refused mapping loses the unused segments": Bug(
        caching, CachingBestFit, "_new_segment", "free.take(segment.mapping.runs)", "pass",
        "P8 P16",
    ),
    "what the driver still has is not counted": Bug(
        caching, CachingBestFit, "_largest", "max(in_small, self._room(), *large, 0)",
        "max(in_small, *large, 0)", "P9 P8 P12",
    ),
    # Ranges that are kept.
    "a kept range of about the size serves": Bug(
        va_nnabla, NnablaVirtualAddressing, "_exact", "self._kept[place][0] != count", "False",
        "P2 P7 P16 P1 V1",
    ),
    "the rest of a range that gave chunks is lost": Bug(
        va_nnabla, NnablaVirtualAddressing, "_made",
        "self._loose.extend(sources.left)", "pass", "P16",
    ),
    "a range that gave its chunks is kept as well": Bug(
        va_nnabla, NnablaVirtualAddressing, "_made", "not in sources.ranges",
        "is not None", "P16 V3",
    ),
    "loose chunks are given twice": Bug(
        va_nnabla, NnablaVirtualAddressing, "_made", "self._loose.popleft()", "pass", "P16 V3",
    ),
    "a waiting range goes before its last use is over": Bug(
        va_nnabla, NnablaVirtualAddressing, "free", "(block, after)", "(block, ())", "P5",
    ),
    # Primitive blocks, and a plan with an allocator for the rest.
    "the rest of a split block is lost": Bug(
        stitching, Gmlake, "_stitched", "self._primitives.append(split[missing:])", "pass", "P16",
    ),
    "a block that lends a part stays whole": Bug(
        stitching, Gmlake, "_stitched", "del split[missing:]", "pass", "P16",
    ),
    "a stitched range goes before its last use is over": Bug(
        stitching, Gmlake, "free", "(block, after)", "(block, ())", "P5",
    ),
    "a request in time takes a place whose block is there": Bug(
        Stalloc, Stalloc, "_planned", "end <= offset or offset + size <= start", "True",
        "S1 P16 P1 P4 S5",
    ),
    "what was not foreseen lies in the plan": Bug(
        Stalloc, Stalloc, "load_plan", "self._top = packing.extent_bytes", "pass", "S5 S1 P16 P4",
    ),
    "buddies are joined once only": Bug(
        Buddy, Buddy, "free", "while self._remove(offset ^ length, length):",
        "if self._remove(offset ^ length, length):", "P16",
    ),
    "a power of two gets the next one": Bug(
        Buddy, buddy, "_place_bytes", "(size_bytes - 1).bit_length()", "size_bytes.bit_length()",
        "P16 P9",
    ),
    "the pointer falls by one block only": Bug(
        Bump, Bump, "free", "while self._ends and", "if self._ends and", "P16 P7",
    ),
    "a limit that stats() does not know": Bug(
        limited, Limited, "stats", "min(stats.largest_bytes, free)", "stats.largest_bytes", "P9",
    ),
    # Static placement.
    "a block that begins later is not a neighbour": Bug(
        FirstFitBySize, static, "_place", "(begin[:filled] < hi)", "(begin[:filled] <= lo)",
        "S1 P4 S5",
    ),
    "a block that ends as another begins is a neighbour": Bug(
        FirstFit, static, "_place", "(end[:filled] > lo)", "(end[:filled] >= lo)", "S4",
    ),
    "pools lie upon each other": Bug(
        FirstFit, first_fit, "pack", "offsets[i] = offset + sum(extents)", "offsets[i] = offset",
        "S1 P4 S5",
    ),
    "sizes are packed without rounding": Bug(
        FirstFit, first_fit, "pack", "[granule.granted(life.nbytes) for life in lifetimes]",
        "[life.nbytes for life in lifetimes]", "S1 P16 P4 S5 S2",
    ),
    "any block of the foreseen size will do": Bug(
        FirstFit, FirstFit, "_planned_offset", "(life.tag, life.nbytes) != (tag, nbytes)",
        "life.nbytes != nbytes", "S5",
    ),
    "a gap of the very size is passed over": Bug(
        FirstFit, first_fit, "lowest_gap", "start - offset >= size_bytes",
        "start - offset > size_bytes", "P9",
    ),
}  # fmt: skip

#: Seen by any test at all over the strict fake; a real driver keeps quiet about the second.
LOUD = (
    "NO_SET_ACCESS: a mapping is used without access",
    "nnabla (h): one unmap over many handles (ROCR-Runtime 285)",
    "va-paper leaves a range mapped that it gives up",
)

#: Killed by law P17's own test: it needs a memory that calls back.
LOST_FREE = Bug(
    lambda memory: ThreadSafe(va(memory)), ThreadSafe, "free",
    "self._deferred.append((block, after))", "pass", "P17",
)  # fmt: skip


def plant(patch: pytest.MonkeyPatch, bug: Bug) -> None:
    """Puts the line with the bug in place."""
    planting.plant(patch, bug.owner, bug.function, bug.right, bug.wrong)
