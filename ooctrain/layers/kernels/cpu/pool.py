"""One pool of threads that runs range kernels in chunks.

In: a kernel `f(args..., lo, hi, thread)` and a number of items. Out: all items done, the caller
having worked too. The one idea: starting and joining must cost microseconds, so both happen in
compiled code (`fork_join.py`); Python only packs the kernel's arguments (`entry.py`). Which thread
runs a chunk never matters for the result: chunk borders depend on the shapes alone, and partial
results are stored by chunk, not by thread. Workers are kept off the caller's processor: on some
systems a woken thread is put where its waker runs and stays there for milliseconds, so two threads
would take turns on one core while the other idles (measured: no speed-up at all). A pool serves one
caller at a time; whoever comes meanwhile, or in a forked child that has no workers, works alone.
Read next: `fork_join.py`; for the simplest kernels, `elementwise.py`.
"""

from __future__ import annotations

import math
import os
import random
import struct
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from types import ModuleType

#: How long an idle worker watches for the next kernel before it sleeps; a kernel follows another
#: after some tens of microseconds, and to wake a sleeper takes as long.
SPIN_US = 60
#: The record of a job, as `fork_join.run_job` lists it.
_RECORD = struct.Struct("<8q")


class ThreadPool:
    """`threads` workers, the caller counted among them.

    Args:
        threads: 1 or more; with 1 nothing is started.
        shuffle_seed: if given, chunks are drawn in a random order (a test of order independence).
    """

    def __init__(self, threads: int = 1, *, shuffle_seed: int | None = None):
        self.threads = threads
        self._shuffle = random.Random(shuffle_seed) if shuffle_seed is not None else None
        self._team = Team(threads) if os.name == "posix" else None

    def run(self, function: Callable, items: int, chunk: int, *args: object) -> None:
        """Calls `function(*args, lo, hi, thread)` for [0, items) in chunks of `chunk` items.

        Raises: whatever a kernel raised, after all threads have stopped.
        """
        chunks = -(-items // chunk)
        if chunks == 1:
            function(*args, 0, items, 0)
            return
        order = self._order(chunks)
        if self._team is not None and self._team.run(function, items, chunk, order, args):
            return
        for place in range(chunks) if order is None else order.tolist():
            function(*args, place * chunk, min(items, (place + 1) * chunk), 0)

    def close(self) -> None:
        """Ends the workers; what is run afterwards, the caller does alone."""
        if self._team is not None:
            self._team.close()
            self._team = None

    def _order(self, chunks: int) -> np.ndarray | None:
        if self._shuffle is None:
            return None
        order = list(range(chunks))
        self._shuffle.shuffle(order)
        return np.array(order, np.int64)


class Team:
    """The threads of a pool, and the memory by which they speak to each other.

    Args:
        threads: 1 or more; one of them is the caller.
    """

    def __init__(self, threads: int):
        from ooctrain.layers.kernels.cpu import entry, fork_join

        self._fork_join, self._entry = fork_join, entry
        self._size, self._lock = threads, threading.Lock()
        self._words = _aligned_words(fork_join.words_of(threads))
        self._view = self._words.data  # read and written from Python faster than an array
        self._record = self._view[fork_join.JOB : fork_join.SPINS + 1].cast("B")
        self._block = entry.Block(64)  # for the kernel's arguments; grows
        self._processors = _processors()
        self._avoided = -1
        self._spins = _spins(fork_join, self._words) if threads <= len(self._processors) else 0
        self._workers = [
            threading.Thread(
                target=fork_join.serve,
                args=(self._words, thread, self._spins),
                daemon=True,
                name=f"ooctrain-worker-{thread}",
            )
            for thread in range(1, threads)
        ]
        for worker in self._workers:
            worker.start()
        # A pool that nobody closed must not leave threads behind.
        self._stop = weakref.finalize(self, fork_join.stop, self._words, threads)

    def run(
        self, function: Callable, items: int, chunk: int, order: np.ndarray | None, args: tuple
    ) -> bool:
        """Runs all chunks; False where this team cannot, and nothing was run."""
        entry = self._entry.entry_of(function)
        if entry is None or not self._lock.acquire(False):
            return False
        try:
            if entry.words > self._block.words:
                self._block = self._entry.Block(2 * entry.words)
            entry.pack(self._block, args)
            members = min(self._size, -(-items // chunk))
            where = 0 if order is None else order.ctypes.data
            _RECORD.pack_into(
                self._record, 0, entry.code, entry.function, self._block.address,
                items, chunk, where, members, self._spins,
            )  # fmt: skip
            here = self._fork_join.run_job(self._words)
            failed = self._view[self._fork_join.FAILED] - 1
            if here != self._avoided:
                self._keep_off(here)
        finally:
            self._lock.release()
        if failed >= 0:
            # Run once more, from Python, where it can raise.
            function(*args, failed * chunk, min(items, (failed + 1) * chunk), 0)
        return True

    def close(self) -> None:
        """Ends the workers."""
        self._stop()
        for worker in self._workers:
            worker.join()

    def _keep_off(self, processor: int) -> None:
        """Lets the workers run on every processor but the one that the caller runs on now."""
        self._avoided = processor
        others = self._processors - {processor}
        try:
            for worker in self._workers if others else []:
                if worker.is_alive() and worker.native_id is not None:
                    os.sched_setaffinity(worker.native_id, others)
        except OSError:  # these processors were taken from the process meanwhile: let it be
            self._processors = set()


def _processors() -> set[int]:
    """Numbers of the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _aligned_words(count: int) -> np.ndarray:
    """int64 zeros that start on a cache line."""
    space = np.zeros(count + 8, np.int64)
    first = -space.ctypes.data % 64 // 8
    return space[first : first + count]


def _spins(fork_join: ModuleType, words: np.ndarray, trial: int = 1000) -> int:
    """Rounds of idle waiting that take SPIN_US; timed a few times, for anybody may interrupt."""
    shortest_us = math.inf
    for _ in range(4):
        start = perf_counter()
        fork_join.spin(words, trial)
        shortest_us = min(shortest_us, (perf_counter() - start) * 1e6)
    return int(trial * SPIN_US / max(shortest_us, 1.0))
