"""One pool of threads that runs range kernels in dynamic chunks.

In: a kernel `f(args..., lo, hi, thread)` and a number of items. Out: all items done, the caller
    having
worked too. The one idea: threads draw the next chunk from a shared counter, so a thread that a copy
engine delays simply draws fewer (notes: static halves cost up to twice the time beside a copy).
Which thread runs a chunk never matters for the result: chunk borders depend on the shapes alone,
    and partial
results are stored by chunk, not by thread. Workers are kept off the caller's processor: on some
kernels a woken thread is put where its waker runs and stays there for milliseconds, so two
threads would take turns on one core while the other idles (measured: no speed-up at all). Read
next: `elementwise.py` for the simplest kernels.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator


def _processor_query() -> Callable[[], int] | None:
    """A function that tells the caller's processor, where the system can say and bind."""
    query = getattr(ctypes.CDLL(None), "sched_getcpu", None) if os.name == "posix" else None
    return query if hasattr(os, "sched_setaffinity") else None


class ThreadPool:
    """`threads` workers, the caller counted among them.

    Args:
        threads: 1 or more; with 1 nothing is started and all runs inline.
        shuffle_seed: if given, chunks are drawn in a random order (a test of order independence).
    """

    def __init__(self, threads: int = 1, *, shuffle_seed: int | None = None):
        self.threads = threads
        self._shuffle = random.Random(shuffle_seed) if shuffle_seed is not None else None
        self._job: tuple | None = None
        self._error: BaseException | None = None
        self._go = [threading.Semaphore(0) for _ in range(threads - 1)]
        self._done = threading.Semaphore(0)
        self._workers = [
            threading.Thread(
                target=self._serve, args=(i,), daemon=True, name=f"ooctrain-worker-{i + 1}"
            )
            for i in range(threads - 1)
        ]
        for worker in self._workers:
            worker.start()
        self._processor = _processor_query()
        self._processors = os.sched_getaffinity(0) if self._processor else set()
        self._avoided = -1

    def run(self, function: Callable, items: int, chunk: int, *args: object) -> None:
        """Calls `function(*args, lo, hi, thread)` for [0, items) in chunks of `chunk` items.

        Raises: whatever a kernel raised, after all threads have stopped.
        """
        chunks = -(-items // chunk)
        if chunks == 1:
            function(*args, 0, items, 0)
            return
        if self.threads == 1:
            self._job = (function, args, items, chunk, self._order(chunks))
            self._draw(0)
            return
        self._job, self._error = (function, args, items, chunk, self._order(chunks)), None
        self._keep_off_caller()
        helpers = min(self.threads, chunks) - 1
        for go in self._go[:helpers]:
            go.release()
        self._draw_catching(0)
        for _ in range(helpers):
            self._done.acquire()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends the workers; the pool cannot be used afterwards."""
        self._job = None
        for go in self._go:
            go.release()
        for worker in self._workers:
            worker.join()

    def _keep_off_caller(self) -> None:
        """Lets the workers run on every processor but the one that the caller runs on now."""
        if self._processor is None or (now := self._processor()) == self._avoided:
            return
        others = self._processors - {now}
        workers = [worker.native_id for worker in self._workers if worker.native_id is not None]
        try:
            for worker in workers if others else []:
                os.sched_setaffinity(worker, others)
        except OSError:  # these processors were taken from the process meanwhile: let it be
            self._processor = None
        self._avoided = now

    def _order(self, chunks: int) -> Iterator[int]:
        if self._shuffle is None:
            # `count` hands out each number once even to several threads: it never releases the GIL.
            return itertools.count()
        order = list(range(chunks))
        self._shuffle.shuffle(order)
        return itertools.chain(order, itertools.repeat(chunks))

    def _serve(self, index: int) -> None:
        while True:
            self._go[index].acquire()
            if self._job is None:
                return
            self._draw_catching(index + 1)
            self._done.release()

    def _draw_catching(self, thread: int) -> None:
        try:
            self._draw(thread)
        except BaseException as error:  # handed to the caller of run()
            self._error = error

    def _draw(self, thread: int) -> None:
        function, args, items, chunk, order = self._job
        while (lo := next(order) * chunk) < items:
            function(*args, lo, min(items, lo + chunk), thread)
