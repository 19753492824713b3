"""One pool of threads that runs range kernels in chunks.

A call takes a kernel `f(args..., lo, hi, thread)` and a number of items; the caller works too, and
returns when all items are done. Starting and joining must cost less than a microsecond, so both
happen in compiled code, which unpacks the arguments too (`call.py`). The result never depends on
which thread runs a chunk: chunk borders depend on the shapes alone, and partial results are stored
by chunk, not by thread. Workers are kept off the caller's processor. On some systems a woken thread
is put where its waker runs and stays there for milliseconds, so two threads would take turns on one
core while the other idles (measured: no speed-up at all). A pool serves one caller at a time.
Meanwhile a second caller, or one in a forked child, which has no workers, runs all its chunks
itself. Read next: `call.py`; for the simplest kernels, `layers/kernels/cpu/elementwise.py`.
"""

from __future__ import annotations

import math
import os
import random
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from ooctrain.layers.kernels.cpu.chunks import flat
from ooctrain.layers.kernels.cpu.runtime.entry import (
    DONE,
    MOVED,
    REFUSED,
    flat_arguments,
    recipe_address,
)

if TYPE_CHECKING:
    from types import ModuleType

    from ooctrain.layers.kernels.cpu.runtime.kept import KernelCall

#: How long an idle worker watches for the next kernel before it sleeps; a kernel follows another
#: after some tens of microseconds, and to wake a sleeper takes as long.
SPIN_US = 60


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
        self._words_at = 0 if self._team is None else self._team.words_at

    def run(self, function: Callable, items: int, chunk: int, *args: object) -> None:
        """Calls `function(*args, lo, hi, thread)` for [0, items) in chunks of `chunk` items.

        What the kernel takes as a flat array may have any number of dimensions.

        Raises: whatever a kernel raised, after all threads have stopped.
        """
        order = None if self._shuffle is None else shuffled(-(-items // chunk), self._shuffle)
        where = 0 if order is None else order.ctypes.data
        if self._team is None:  # its recipe would compile the kernel for loops that no team runs
            run_in_python(function, items, chunk, order, args)
            return
        start, recipe = self._team.starter.start, recipe_address(function)
        outcome = start(recipe, self._words_at, items, chunk, where, args)
        if outcome == DONE:
            return
        if outcome == REFUSED:
            run_in_python(function, items, chunk, order, args)
        elif outcome < DONE:
            # A kernel raised in chunk -1 - outcome. Run that chunk again from Python, which raises.
            run_in_python(function, items, chunk, np.array([-1 - outcome]), args)
        elif outcome == MOVED:
            self._team.keep_off_caller()

    def every_time(self) -> None:
        """Says that the function which calls it looks at values, or computes some itself: repeating
        its kernels alone would not do the same, so it must be called in every step."""

    def pack(self, recipe: np.ndarray, block: np.ndarray, args: tuple) -> int:
        """Writes a kernel's arguments to a block; returns how many words they take, -1 where they
        cannot be packed."""
        if self._team is None:
            return -1
        return self._team.starter.pack(recipe.ctypes.data, block.ctypes.data, args)

    def repeat(self, call: KernelCall, addresses: tuple[int, ...]) -> int | None:
        """Runs a kernel that a `KernelRecorder` has kept; the pool must be open.

        Args:
            addresses: where the arrays of the operation lie now.

        Returns:
            The number of a chunk whose kernel raised; None: all is done.
        """
        assert self._team is not None, "nothing is kept without a team"
        order = None if self._shuffle is None else shuffled(call.chunks, self._shuffle)
        where = 0 if order is None else order.ctypes.data
        outcome = self._team.starter.repeat(call.at, self._words_at, where, addresses)
        if outcome == MOVED:
            self._team.keep_off_caller()
        return -1 - outcome if outcome < DONE else None

    def close(self) -> None:
        """Ends the workers; what is run afterwards, the caller does alone."""
        if self._team is not None:
            self._team.close()
            self._team = None


class Team:
    """The threads of a pool, and the memory by which they speak to each other.

    Args:
        threads: 1 or more; one of them is the caller.

    Attributes:
        starter: the functions of `call.py`.
        words_at: address of the words, an argument of them.
    """

    def __init__(self, threads: int):
        # Late: both compile when they are imported, and kernels import this file for its type.
        from ooctrain.layers.kernels.cpu.runtime import call, fork_join

        self._words = words = _aligned_words(fork_join.words_of(threads))
        self.starter, self.words_at = call.starter(), words.ctypes.data
        self._processors = _processors()
        # Timed even where no worker will spin: the first call with these words makes Numba import
        # modules. Were it a worker's, a child forked meanwhile would inherit a locked import lock.
        spins = _spins(fork_join, words)
        if threads > len(self._processors):
            spins = 0
        words[fork_join.TEAM], words[fork_join.SPINS] = threads, spins
        words[fork_join.AVOIDED] = -1
        self._here, self._avoided = words[fork_join.HERE :], words[fork_join.AVOIDED :]
        self._workers = [
            threading.Thread(
                target=fork_join.serve,
                args=(words, thread, spins),
                daemon=True,
                name=f"ooctrain-worker-{thread}",
            )
            for thread in range(1, threads)
        ]
        for worker in self._workers:
            worker.start()
        # A pool that was not closed must not leave threads behind.
        self._stop = weakref.finalize(self, fork_join.stop, words, threads)

    def close(self) -> None:
        """Ends the workers."""
        self._stop()
        for worker in self._workers:
            worker.join()

    def keep_off_caller(self) -> None:
        """Lets the workers run on every processor except the one that the caller ran on last."""
        processor = self._avoided[0] = int(self._here[0])
        others = self._processors - {processor}
        try:
            for worker in self._workers if others else []:
                if worker.is_alive() and worker.native_id is not None:
                    os.sched_setaffinity(worker.native_id, others)
        except OSError:  # the process may no longer use these processors: do not try again
            self._processors = set()


def shuffled(chunks: int, dice: random.Random) -> np.ndarray:
    """The numbers of all chunks in a random order."""
    order = list(range(chunks))
    dice.shuffle(order)
    return np.array(order, np.int64)


def run_in_python(
    function: Callable, items: int, chunk: int, order: np.ndarray | None, args: tuple
) -> None:
    """Runs the chunks in `order` (None: all), by the function's own way from Python."""
    args = _as_declared(function, args)
    for place in range(-(-items // chunk)) if order is None else order.tolist():
        function(*args, place * chunk, min(items, (place + 1) * chunk), 0)


def _as_declared(function: Callable, args: tuple) -> tuple:
    """The arguments with those arrays flat that the kernel declares so."""
    flat_ones = set(flat_arguments(function))
    return tuple(
        flat(value) if which in flat_ones and isinstance(value, np.ndarray) else value
        for which, value in enumerate(args)
    )


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
    """Rounds of idle waiting that take SPIN_US; timed a few times, since a measurement may be
    interrupted."""
    shortest_us = math.inf
    for _ in range(4):
        start = perf_counter()
        fork_join.spin(words, trial)
        shortest_us = min(shortest_us, (perf_counter() - start) * 1e6)
    return int(trial * SPIN_US / max(shortest_us, 1.0))
