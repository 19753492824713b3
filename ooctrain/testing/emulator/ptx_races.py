"""Data races, found from the last accesses to each word, in whatever order the lanes run.

Accesses come as a vector of threads with a vector of words each, and a conflict raises `Race`.
Every word remembers its last writer and the first and last of its readers, each with the interval
between barriers. An access of another thread is ordered before this one only by a barrier of the
block between them, or by one of the warp if both threads are in it. Two accesses that are not
ordered, one of them a write, are a race. The interpreter's own order (all lanes at once) plays no
part. Read next: `ptx_memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ooctrain.testing.emulator.ptx_faults import NOBODY, Race

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
