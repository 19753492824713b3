"""The memories of a launch, where each access that a GPU leaves undefined is a fault.

An access takes a vector of addresses, one for each active thread, and gives values, or a fault that
names the first thread concerned. An address of global memory is an address of this process, seen
through one view of the whole address space; regions list the parts that a kernel may access, so the
same code serves NumPy arrays and a stub driver's raw memory. Shared memory has a row for each
block, with gaps between its variables, and records for each word whether it was written.

Races are found from the last accesses to each word, in whatever order the lanes run. Every word
remembers its last writer and the first and last of its readers, each with the interval between
barriers. An access of another thread is ordered before this one only by a barrier of the block
between them, or by one of the warp if both threads are in it. Two accesses that are not ordered,
one of them a write, are a race. Read next: `ptx_lanes.py`, `ptx_machine.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple, NoReturn

import numpy as np
from doubles.ptx_text import PtxVariable

from ooctrain.errors import OoctrainError

# Faults. The code that detects one knows the thread; the machine adds kernel, line of PTX and block
# (`where`).

NOBODY = -1


class PtxFault(OoctrainError, AssertionError):
    """Base of all faults.

    Args:
        what: one sentence.
        thread: number of the thread in its launch (`ptx_lanes.Lanes.who`); NOBODY: none in
            particular.
        numbers: the address or word concerned.
    """

    def __init__(self, what: str, *, thread: int = NOBODY, numbers: str = ""):
        super().__init__(what, numbers=numbers)
        self.thread = int(thread)


class UnknownInstruction(PtxFault):
    """The interpreter has no meaning for an instruction, or for one of its suffixes."""


class OutOfBounds(PtxFault):
    """An address that belongs to no array, or to one that may only be read."""


class Misaligned(PtxFault):
    """An access whose address is no multiple of its size."""


class ReadOfUnwritten(PtxFault):
    """Shared or local memory is read before it was written, or before its copy was waited for."""


class NotForAll(PtxFault):
    """Some lanes of a block miss a barrier, or some of a warp an exchange."""


class Race(PtxFault):
    """Two threads meet at a word, one of them writes, and nothing orders them."""


class Endless(PtxFault):
    """A kernel that takes far more steps than any here."""


# Races

WARP = 32
NEVER = -1


@dataclass(frozen=True, slots=True)
class Who:
    """Threads at work, each by its number in the launch.

    Threads of a block are numbered in a row, beginning at a multiple of `stride`, itself a
    multiple of WARP.

    Args:
        thread: numbers of the threads.
        interval: barriers of the block that each has passed.
        warp_interval: barriers of its warp that each has passed.
        stride: numbers of a block.
    """

    thread: np.ndarray
    interval: np.ndarray
    warp_interval: np.ndarray
    stride: int

    def repeated(self, times: int) -> Who:
        """Each thread `times` times in a row."""
        if times == 1:
            return self
        return self[np.repeat(np.arange(len(self.thread)), times)]

    def __getitem__(self, chosen: np.ndarray | slice) -> Who:
        return Who(
            self.thread[chosen], self.interval[chosen], self.warp_interval[chosen], self.stride
        )


class _Past(NamedTuple):
    """What was done before to each of some words: by which thread, in which two intervals."""

    thread: np.ndarray
    intervals: np.ndarray
    did: str


class AccessLog:
    """The memory of a number of words.

    Args:
        words: how many there are.
        describe: says which word that is.
    """

    def __init__(self, words: int, describe: Callable[[int], str]):
        self._describe = describe
        self._writer = np.full(words, NOBODY)
        self._written = np.full((2, words), NEVER)  # the writer's two intervals
        self._first = np.full(words, NOBODY)  # the least and the greatest of the readers
        self._last = np.full(words, NOBODY)
        self._read = np.full((2, words), NEVER)

    def read(self, who: Who, words: np.ndarray) -> None:
        """Threads read a word each.

        Raises:
            Race: another thread wrote it, and nothing orders the two.
        """
        writer = self._writer[words]
        others = (writer != who.thread) & (writer != NOBODY)
        if others.any():
            past = _Past(writer, self._written[:, words], "wrote")
            self._check(others, past, who, words, "reads")
        self._forget_ordered_readers(who, words)
        np.minimum.at(self._first, words, who.thread)
        np.maximum.at(self._last, words, who.thread)
        self._read[0, words], self._read[1, words] = who.interval, who.warp_interval

    def write(
        self, who: Who, words: np.ndarray, kept: np.ndarray | bool = False,
        agreed: np.ndarray | bool = False,
    ) -> None:  # fmt: skip
        """Threads write a word each.

        Args:
            kept: who writes what stood there: as good as a write by the thread that wrote it first.
            agreed: who found there afterwards what it wrote.

        Raises:
            Race: another thread read or wrote it, or writes it now, and nothing orders the two.
        """
        writer = self._writer[words]
        others = (writer != who.thread) & (writer != NOBODY) & np.logical_not(kept)
        if others.any():
            past = _Past(writer, self._written[:, words], "wrote")
            self._check(others, past, who, words, "writes")
        for reader in (self._first[words], self._last[words]):
            others = (reader != who.thread) & (reader != NOBODY)
            if others.any():
                past = _Past(reader, self._read[:, words], "read")
                self._check(others, past, who, words, "writes")
        self._writer[words] = who.thread
        last = self._writer[words]
        twice = (last != who.thread) & np.logical_not(agreed)
        if twice.any():
            now = _Past(last, self._written[:, words], "writes")
            self._fail(int(np.argmax(twice)), now, who, words, "writes")
        self._written[0, words], self._written[1, words] = who.interval, who.warp_interval

    def _check(
        self, others: np.ndarray, past: _Past, who: Who, words: np.ndarray, does: str
    ) -> None:
        bad = others & ~_ordered(past.thread, past.intervals, who)
        if bad.any():
            self._fail(int(np.argmax(bad)), past, who, words, does)

    def _fail(self, at: int, past: _Past, who: Who, words: np.ndarray, does: str) -> None:
        thread, near = int(who.thread[at]), int(past.thread[at])
        block, lane = divmod(near, who.stride)
        raise Race(
            f"race: a thread {does} what another {past.did}, and no barrier is between them",
            thread=thread,
            numbers=f"{self._describe(int(words[at]))}; the other is thread {lane} of block"
            f" number {block}",
        )

    def _forget_ordered_readers(self, who: Who, words: np.ndarray) -> None:
        """Readers that a barrier orders before all that come now need no memory any more."""
        first, last = self._first[words], self._last[words]
        then = self._read[:, words]
        done = (first != NOBODY) & _ordered(first, then, who) & _ordered(last, then, who)
        done |= first == NOBODY
        stale = words[done]
        self._first[stale], self._last[stale] = np.iinfo(np.int64).max, NOBODY


def _ordered(other: np.ndarray, then: np.ndarray, who: Who) -> np.ndarray:
    """Whether a barrier stands between what `other` did `then` and what `who` does now."""
    same_block = other // who.stride == who.thread // who.stride
    same_warp = other // WARP == who.thread // WARP
    return (same_block & (then[0] < who.interval)) | (same_warp & (then[1] < who.warp_interval))


# Memories

#: What a word of shared memory is.
GAP, EMPTY, WRITTEN, PENDING = range(4)
WORD_BYTES, LINE_BYTES, GAP_BYTES = 4, 128, 256
_FIRST_ADDRESS, _END_OF_MEMORY = 4096, 1 << 47
_NOWHERE = np.iinfo(np.int64).min


@cache
def _process(kind: np.dtype) -> np.ndarray:
    """All memory of this process, from _FIRST_ADDRESS on, as numbers of a type."""

    count = (_END_OF_MEMORY - _FIRST_ADDRESS) // kind.itemsize
    view = {"data": (_FIRST_ADDRESS, False), "typestr": kind.str, "shape": (count,), "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=view))


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """Addresses that a kernel may touch.

    Args:
        start: first address.
        size_bytes: how many.
        granule_bytes: of one element.
        writable: whether the kernel may write there.
        name: for messages.
    """

    start: int
    size_bytes: int
    granule_bytes: int = 1
    writable: bool = True
    name: str = "global memory"

    @property
    def end(self) -> int:
        """One past the last address."""
        return self.start + self.size_bytes

    def describe(self, element: int) -> str:
        """Which element that is, for messages."""
        return f"element {element} of {self.name}"


class GlobalMemory:
    """Global memory.

    Args:
        regions: that may be touched; of two that overlap the union.
        watched: look for races between threads too, in these regions alone; costs some 60 bytes
            for each element.
        kept: arrays that must live as long as their addresses are in use.
        look_up: asked for a region with an address that lies in none; None: there is none.
    """

    def __init__(
        self, regions: Iterable[MemoryRange], watched: bool = False, kept: Sequence = (),
        look_up: Callable[[int], MemoryRange | None] | None = None,
    ):  # fmt: skip
        self._known = list(regions)
        self._watched, self._kept, self._look_up = watched, kept, look_up
        self.begin_launch()

    @classmethod
    def of_arrays(cls, arrays: Sequence[np.ndarray], watched: bool = True) -> GlobalMemory:
        """Contiguous arrays, at the addresses where they lie (`array.ctypes.data`)."""
        regions = [
            MemoryRange(a.ctypes.data, a.nbytes, a.itemsize, a.flags.writeable, f"array {i}")
            for i, a in enumerate(arrays)
        ]
        return cls(regions, watched, arrays)

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int]]) -> GlobalMemory:
        """Raw (address, size in bytes) of this process, as a stub driver knows them."""
        return cls([MemoryRange(start, size_bytes) for start, size_bytes in ranges])

    def begin_launch(self) -> None:
        """Forgets who touched what, since launches on one stream follow each other, and what was
        looked up, since memory comes and goes between them."""
        self._hold(self._known)

    def _hold(self, regions: Iterable[MemoryRange]) -> None:
        self._regions = _without_overlap(regions)
        self._starts = [region.start for region in self._regions]
        self._logs = [
            AccessLog(-(-r.size_bytes // r.granule_bytes), r.describe) if self._watched else None
            for r in self._regions
        ]

    def load(self, who: Who, addresses: np.ndarray, kind: np.dtype, count: int) -> np.ndarray:
        """`count` numbers in a row from each address: an array (threads, count)."""
        for number, chosen in self._find(who, addresses, kind.itemsize * count):
            log = self._logs[number]
            if log is not None:
                words, times = self._words(number, addresses[chosen], kind.itemsize * count)
                log.read(who[chosen].repeated(times), words)
        return _process(kind)[_elements(addresses - _FIRST_ADDRESS, kind, count)]

    def store(self, who: Who, addresses: np.ndarray, values: np.ndarray) -> None:
        """values[i] in a row at each address.

        That several threads write the same bits to one place is no race: one of them wins, and it
        does not matter which.
        """
        kind, count = values.dtype, values.shape[1]
        found = self._find(who, addresses, kind.itemsize * count)
        for number, _ in found:
            if not self._regions[number].writable:
                self._fail(0, number, who, addresses, "where a kernel may only read")
        memory, places = _process(kind), _elements(addresses - _FIRST_ADDRESS, kind, count)
        before = memory[places] if self._watched else values
        memory[places] = values
        for number, chosen in found:
            log = self._logs[number]
            if log is not None:
                words, times = self._words(number, addresses[chosen], kind.itemsize * count)
                kept, agreed = (
                    np.repeat(_same_bits(there, values)[chosen], times)
                    for there in (before, memory[places])
                )
                log.write(who[chosen].repeated(times), words, kept, agreed)

    def _find(
        self, who: Who, addresses: np.ndarray, size_bytes: int
    ) -> list[tuple[int, np.ndarray | slice]]:
        """(number of a region, which addresses lie in it), for all that are asked for.

        Raises:
            Misaligned, OutOfBounds: of an address that cannot be accessed so.
        """
        if not len(addresses):
            return []
        check_alignment(who, addresses, size_bytes)
        number = bisect_right(self._starts, int(addresses.min())) - 1
        if number >= 0 and int(addresses.max()) + size_bytes <= self._regions[number].end:
            return [(number, slice(None))]  # nearly always
        numbers = np.searchsorted(self._starts, addresses, "right") - 1
        ends = np.array([_NOWHERE, *(region.end for region in self._regions)])
        outside = addresses + size_bytes > ends[numbers + 1]
        if outside.any():
            at = int(np.argmax(outside))
            found = self._look_up(int(addresses[at])) if self._look_up else None
            if found is None or int(addresses[at]) + size_bytes > found.end:
                self._fail(at, int(numbers[at]), who, addresses, f"{size_bytes} bytes")
            self._hold([*self._regions, found])
            return self._find(who, addresses, size_bytes)
        return [(int(number), numbers == number) for number in np.unique(numbers)]

    def _words(self, number: int, addresses: np.ndarray, size_bytes: int) -> tuple[np.ndarray, int]:
        """The words of a region's log that accesses touch, and how many each."""
        region = self._regions[number]
        times = max(1, size_bytes // region.granule_bytes)
        first = (addresses - region.start) // region.granule_bytes
        return (first[:, None] + np.arange(times)).reshape(-1), times

    def _fail(self, at: int, number: int, who: Who, addresses: np.ndarray, what: str) -> NoReturn:
        address = int(addresses[at])
        place = f"{address:#x}"
        if number >= 0:
            region = self._regions[number]
            past = f"{address - region.start} bytes after the start of {region.name}"
            place = f"{place}: {past}, which has {region.size_bytes}"
        raise OutOfBounds(f"out of bounds: {what}", thread=who.thread[at], numbers=place)


class OwnMemory:
    """Shared memory, a row for each block; or local memory, a row for each thread.

    Args:
        name: of it.
        variables: that lie in it.
        dynamic_bytes: size of the variable that has none of its own.
        rows: how many.
    """

    def __init__(self, name: str, variables: Sequence[PtxVariable], dynamic_bytes: int, rows: int):
        self._name = name
        self.offsets, row_bytes = _with_gaps(variables, dynamic_bytes)
        self.row_bytes = row_bytes
        self._data = np.full(rows * row_bytes, 0xFF, np.uint8)
        self.states = np.full(rows * row_bytes // WORD_BYTES, GAP, np.int8)
        by_row = self.states.reshape(rows, -1)
        for variable in variables:
            start = self.offsets[variable.name]
            size = dynamic_bytes if variable.is_dynamic else variable.size_bytes
            by_row[:, start // WORD_BYTES : -(-(start + size) // WORD_BYTES)] = EMPTY
        self.log = AccessLog(len(self.states), lambda word: self._near(word * WORD_BYTES))

    def load(
        self, who: Who, rows: np.ndarray, addresses: np.ndarray, kind: np.dtype, count: int
    ) -> np.ndarray:
        """`count` numbers in a row from each address of each row: an array (threads, count)."""
        places, words = self._places(who, rows, addresses, kind.itemsize * count)
        states = self.states[words]
        if not (states == WRITTEN).all():
            self._explain(states, who, words, reads=True)
        self.log.read(who.repeated(words.shape[1]), words.reshape(-1))
        return self._data.view(kind)[_elements(places, kind, count)]

    def store(
        self, who: Who, rows: np.ndarray, addresses: np.ndarray, values: np.ndarray,
        state: int = WRITTEN,
    ) -> np.ndarray:  # fmt: skip
        """values[i] in a row at each address of each row; the words of it, (threads, words).

        Args:
            state: what the words are now.
        """
        kind, count = values.dtype, values.shape[1]
        places, words = self._places(who, rows, addresses, kind.itemsize * count)
        states = self.states[words]
        if not ((states == WRITTEN) | (states == EMPTY)).all():
            self._explain(states, who, words, reads=False)
        self.log.write(who.repeated(words.shape[1]), words.reshape(-1))
        self.states[words] = state
        self._data.view(kind)[_elements(places, kind, count)] = values
        return words

    def _places(
        self, who: Who, rows: np.ndarray, addresses: np.ndarray, size_bytes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the bytes lie in all rows, and the words that they touch."""
        check_alignment(who, addresses, size_bytes)
        at = addresses.astype(np.int64)
        outside = (at < 0) | (at + size_bytes > self.row_bytes)
        if outside.any():
            first = int(np.argmax(outside))
            self._out_of_bounds(who, first, f"address {at[first]}")
        places = rows * self.row_bytes + at
        count = max(1, size_bytes // WORD_BYTES)
        return places, places[:, None] // WORD_BYTES + np.arange(count)

    def _explain(self, states: np.ndarray, who: Who, words: np.ndarray, *, reads: bool) -> None:
        """Raises what a word of a wrong state means."""
        wrong = (states == GAP) | (states == PENDING) | ((states == EMPTY) & reads)
        at, column = (int(place) for place in np.argwhere(wrong)[0])
        state = states[at, column]
        word = int(words[at, column])
        if state == GAP:
            self._out_of_bounds(who, at, self._near(word * WORD_BYTES))
        before = "the copy was waited for" if state == PENDING else "it was written"
        verb = "read" if reads else "written"
        raise ReadOfUnwritten(
            f"{self._name} memory is {verb} before {before}", thread=who.thread[at],
            numbers=self._near(word * WORD_BYTES),
        )  # fmt: skip

    def _out_of_bounds(self, who: Who, at: int, numbers: str) -> NoReturn:
        what = f"an address outside of every variable in {self._name} memory"
        raise OutOfBounds(what, thread=who.thread[at], numbers=numbers)

    def _near(self, place: int) -> str:
        """Which variable of its row a byte of all rows lies in or behind."""
        address = place % self.row_bytes
        start, name = max((o, name) for name, o in self.offsets.items() if o <= address)
        return f"{address - start} bytes after the start of {name}"


def check_alignment(who: Who, addresses: np.ndarray, size_bytes: int) -> None:
    """Raises Misaligned unless all addresses are multiples of the size."""
    wrong = (addresses & addresses.dtype.type(size_bytes - 1)) != 0
    if wrong.any():
        at = int(np.argmax(wrong))
        raise Misaligned(
            f"an access of {size_bytes} bytes at no multiple of {size_bytes}",
            thread=who.thread[at], numbers=f"address {int(addresses[at]):#x}",
        )  # fmt: skip


def _elements(places: np.ndarray, kind: np.dtype, count: int) -> np.ndarray:
    """(places, count) indices of numbers in a row."""
    return places[:, None] // kind.itemsize + np.arange(count)


def _same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which rows are equal to the last bit."""
    bits = f"u{a.itemsize}"
    return (a.view(bits) == b.view(bits)).all(axis=1)


def _with_gaps(variables: Sequence[PtxVariable], dynamic_bytes: int) -> tuple[dict[str, int], int]:
    """Where each variable lies, and how long a row is.

    Between two of them lies nothing, so that an index too far is seen; but each has the remainder
    modulo LINE_BYTES that it has when they lie in a row, so that a wide access that is misaligned
    there is so here.
    """
    found: dict[str, int] = {}
    end = in_a_row = 0
    for variable in sorted(variables, key=lambda v: v.is_dynamic):
        size = dynamic_bytes if variable.is_dynamic else variable.size_bytes
        in_a_row = -(-in_a_row // variable.align_bytes) * variable.align_bytes
        start = end + (in_a_row - end) % LINE_BYTES
        found[variable.name] = start
        end, in_a_row = start + size + GAP_BYTES, in_a_row + size
    return found, -(-end // LINE_BYTES) * LINE_BYTES


def _without_overlap(regions: Iterable[MemoryRange]) -> list[MemoryRange]:
    """Regions by address; those that overlap as one, with the smallest granule of all."""
    found: list[MemoryRange] = []
    for region in sorted(regions, key=lambda r: r.start):
        if not region.size_bytes:
            continue
        if found and region.start < found[-1].end:
            last = found.pop()
            region = MemoryRange(
                last.start, max(last.end, region.end) - last.start,
                min(last.granule_bytes, region.granule_bytes),
                last.writable or region.writable, last.name,
            )  # fmt: skip
        found.append(region)
    return found
