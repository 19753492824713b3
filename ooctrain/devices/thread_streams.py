"""Streams on threads: in-order queues of work that wait for points of each other.

A stream works in order, so "piece n of stream s is done" is one comparison with a counter. An event
is therefore a number, waiting for any set of pieces is waiting for at most one number per stream,
and no lock is taken where the numbers have been reached already. Each piece runs in its stream's
order, and its times are recorded. Stream 0, the compute stream, has no thread: the thread that
issues the list also runs its kernels (`advance`). Source: CUDA's streams and events; timeline
semaphores. Read next: `cpu/copy_engine.py`, `cpu/device.py`.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ooctrain.errors import OoctrainError, TransferError

COMPUTE, OUT, IN = 0, 1, 2
_PR_SET_TIMERSLACK = 29  # Linux, prctl(2)
Work = Callable[[], object]
Waits = Sequence[int]  # for each stream how many pieces must be done; (0, 0, 0) waits for nothing


class Counters(Protocol):
    """Streams that count their finished pieces, whatever works them off."""

    era: int

    def reached(self, waits: Waits) -> bool:
        """Whether every stream has come as far as `waits` says."""

    def wait(self, waits: Waits) -> None:
        """Blocks until then."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Reached once each stream has done as many pieces as `waits` says, or counts from 0 again.

    Args:
        streams: whose pieces.
        waits: for each stream how many.
        era: how often the streams had been restarted when it was made.
    """

    streams: Counters
    waits: tuple[int, ...]
    era: int

    def done(self) -> bool:
        """Whether it has been reached, without waiting."""
        return self.streams.era > self.era or self.streams.reached(self.waits)

    def wait(self) -> None:
        """Blocks until it is reached. On the walker's thread this works the compute queue off."""
        if not self.done():
            self.streams.wait(self.waits)


@dataclass(frozen=True, slots=True)
class WorkSpan:
    """What was measured of one piece of work.

    Args:
        tag: what the caller named it, the index of its instruction.
        stream: its stream.
        start_ns, end_ns: from after its waits to its end, by `time.perf_counter_ns`.
    """

    tag: int
    stream: int
    start_ns: int
    end_ns: int


class Streams:
    """A compute stream worked off by its caller, and copy streams with a thread each.

    Args:
        copy_streams: 2 where the directions are independent (duplex), 1 where they share the link.
        jitter: if given, called with the stream before each piece of work; it may sleep.
    """

    def __init__(self, copy_streams: int = 2, jitter: Callable[[int], None] | None = None):
        self.count = 1 + copy_streams
        self.done = [0] * self.count
        self.submitted = [0] * self.count
        self.spans: list[WorkSpan] = []
        self.failure: BaseException | None = None
        self.era = 0
        self._computing = False
        self._jitter = jitter
        self._moved = threading.Condition()
        self._queues: list[deque] = [deque() for _ in range(self.count)]
        self._arrived = [threading.Semaphore(0) for _ in range(self.count)]
        self.attach()
        self._threads = [
            threading.Thread(target=self._serve, args=(s,), daemon=True, name=f"ooctrain-copy-{s}")
            for s in range(1, self.count)
        ]
        for thread in self._threads:
            thread.start()

    def attach(self) -> None:
        """Makes the calling thread the walker; it is asked once for each step."""
        self._walker = threading.get_ident()

    def submit(self, stream: int, waits: Waits, work: Work, tag: int = -1) -> int:
        """Queues a piece of work; returns its number: it is done when `done[stream]` reaches
        that."""
        self._queues[stream].append((waits, work, tag))
        self.submitted[stream] += 1
        if stream != COMPUTE:
            self._arrived[stream].release()
        return self.submitted[stream]

    def event(self, waits: Waits) -> StreamEvent:
        """The event of these points."""
        return StreamEvent(self, tuple(waits), self.era)

    def reached(self, waits: Waits) -> bool:
        """Whether every stream has come as far as `waits` says."""
        return all(done >= wanted for done, wanted in zip(self.done, waits, strict=True))

    def wait(self, waits: Waits) -> None:
        """Blocks until `reached(waits)`."""
        if threading.get_ident() == self._walker and not self._computing:
            # A copy that is waited for may itself wait for compute work that only we can do.
            while self._queues[COMPUTE] and not self.reached(waits):
                self._compute()
        if not self.reached(waits):
            with self._moved:
                self._moved.wait_for(lambda: self.reached(waits))

    def advance(self, at_most: int) -> None:
        """Works the compute stream off until at most `at_most` pieces are left in its queue."""
        while len(self._queues[COMPUTE]) > at_most:
            self._compute()

    def synchronize(self) -> None:
        """Waits for everything submitted.

        Raises: what the first failing piece of work raised; all after it were skipped.
        """
        self.wait(self.submitted)
        if self.failure is not None:
            raise self.failure

    def restart(self) -> list[WorkSpan]:
        """Sets every counter back to 0 after `synchronize`; returns the spans measured since."""
        spans, self.spans = self.spans, []
        self.done = [0] * self.count
        self.submitted = [0] * self.count
        self.era += 1
        return spans

    def abandon(self, reason: BaseException) -> None:
        """Skips all work that has not begun and waits for what has; the streams stay failed."""
        self.failure = self.failure or reason
        self.wait(self.submitted)

    def close(self) -> None:
        """Ends the threads; queued work is skipped."""
        fix = "open another one; a trainer does so at its next step"
        closed = OoctrainError("the device is closed", fix=fix)
        self.failure = self.failure or closed
        for stream, thread in enumerate(self._threads, start=1):
            self._queues[stream].append(None)
            self._arrived[stream].release()
            if thread is not threading.current_thread():  # the garbage collector runs anywhere
                thread.join()

    def _compute(self) -> None:
        self._computing = True
        try:
            self._work(COMPUTE)
        finally:
            self._computing = False

    def _serve(self, stream: int) -> None:
        _wake_on_time()
        while True:
            self._arrived[stream].acquire()
            if self._queues[stream][0] is None:
                return
            self._work(stream)

    def _work(self, stream: int) -> None:
        waits, work, tag = self._queues[stream].popleft()
        try:
            if self.failure is None:
                self._perform(stream, waits, work, tag)
        except BaseException as error:
            # A failed stream goes on counting, so that no wait is endless; `synchronize` raises.
            self.failure = self.failure or _named(stream, error)
            if not isinstance(error, Exception):  # Ctrl-C reaches the walker at once
                raise
        finally:
            with self._moved:
                self.done[stream] += 1
                self._moved.notify_all()

    def _perform(self, stream: int, waits: Waits, work: Work, tag: int) -> None:
        if not self.reached(waits):
            with self._moved:
                self._moved.wait_for(lambda: self.reached(waits))
        if self._jitter is not None:
            self._jitter(stream)
        if self.failure is None:
            start_ns = time.perf_counter_ns()
            work()
            self.spans.append(WorkSpan(tag, stream, start_ns, time.perf_counter_ns()))


def _wake_on_time() -> None:
    """Lets this thread's sleeps end when they should: Linux adds up to 50 us to save power.

    A copy on a slow link ends with a sleep (`cpu/copy_engine.py`). Where there is no such setting,
    copies just end a little later.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _named(stream: int, error: BaseException) -> BaseException:
    """A copy stream's failure as TransferError; the compute stream's is the kernel's own."""
    if stream == COMPUTE or isinstance(error, OoctrainError):
        return error
    named = TransferError(
        f"a copy failed: {error!r}",
        where=f"stream {('compute', 'out', 'in')[stream]}",
        fix="see the cause above; the step's values are lost, a checkpoint's are not",
    )
    named.__cause__ = error
    return named
