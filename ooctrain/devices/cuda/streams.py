"""Streams of a GPU as the executor counts them: pieces of work, waits for "piece n of stream s".

Pieces of work arrive in list order, each with the pieces it waits for, and are queued on CUDA
streams with an event behind each, which also times it. The GPU orders the work by itself, so
`submit` only queues: a wait for each other stream's event, the work, an event. The host continues
at once, and blocks only where a mapping is undone or values are wanted (`wait`, `synchronize`);
this is counted and timed. A stream works in order, so a wait that an earlier piece of the same
stream has made already is left out. Events are made once and reused in each step. Source: CUDA's
streams and events. Read next: `devices/thread_streams.py` (the same on threads), `device.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload
from weakref import WeakSet

from ooctrain.devices.driver_calls import VmmDriver
from ooctrain.devices.thread_streams import COMPUTE, StreamEvent, Waits, Work, WorkSpan
from ooctrain.errors import DriverError


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece that has been queued: its tag, and the events before and behind its work."""

    tag: int
    begin: int
    end: int


class Measured(Sequence[WorkSpan]):
    """When the pieces of a step ran: read from their events when they are wanted, or at the latest
    when the streams are closed. Two calls of the driver for each piece.

    Args:
        driver: driver of the events.
        zero: the event from which times count.
        pieces: by stream.
        give: takes the events back once they are not needed.
    """

    def __init__(
        self, driver: VmmDriver, zero: int | None, pieces: Sequence[Sequence[_Piece]],
        give: Callable[[list[int]], object],
    ):  # fmt: skip
        self._driver, self._zero, self._give = driver, zero, give
        self._pieces = pieces
        self._spans: list[WorkSpan] | None = None if zero is not None else []

    def read(self) -> list[WorkSpan]:
        """All of them, stream by stream. Raises DriverError: the device has failed since."""
        if self._spans is None:
            self._driver.make_current()  # the caller may be another thread
            self._spans = [
                self._span(piece, stream)
                for stream, pieces in enumerate(self._pieces)
                for piece in pieces
            ]
            self._let_go()
        return self._spans

    def lose(self) -> None:
        """There is no way to read them any more."""
        self._spans = self._spans or []
        self._let_go()

    def _span(self, piece: _Piece, stream: int) -> WorkSpan:
        begin_us = self._driver.elapsed_us(self._zero or 0, piece.begin)
        end_us = self._driver.elapsed_us(self._zero or 0, piece.end)
        return WorkSpan(piece.tag, stream, round(begin_us * 1e3), round(end_us * 1e3))

    def _let_go(self) -> None:
        events = [event for pieces in self._pieces for p in pieces for event in (p.begin, p.end)]
        zero, self._zero, self._pieces = self._zero, None, ()
        self._give(events + ([] if zero is None else [zero]))

    @overload
    def __getitem__(self, index: int) -> WorkSpan: ...
    @overload
    def __getitem__(self, index: slice) -> list[WorkSpan]: ...
    def __getitem__(self, index: int | slice) -> WorkSpan | list[WorkSpan]:
        return self.read()[index]

    def __len__(self) -> int:
        return len(self.read())

    def __del__(self) -> None:
        self._let_go()


class CudaStreams:
    """Non-blocking streams: 0 computes, 1 copies out, the last copies in.

    Args:
        driver: opened, and current in this thread.
        copy_streams: 2 where the directions are independent (duplex), 1 where they share the link.
        jitter: if given, called with the stream before each piece is queued; it may sleep.

    Attributes:
        handles: the driver's streams.
        submitted: for each stream how many pieces have been queued since the last restart.
        era: how often the streams have been restarted.
        host_waits, waited_ns: how often, and how long, the host has waited for a piece of work.
    """

    def __init__(
        self, driver: VmmDriver, copy_streams: int = 2,
        jitter: Callable[[int], None] | None = None,
    ):  # fmt: skip
        self.count = 1 + copy_streams
        self.submitted = [0] * self.count
        self.era = 0
        self.host_waits = self.waited_ns = 0
        self._driver, self._jitter = driver, jitter
        self._current: int | None = None
        self._pieces: list[list[_Piece]] = [[] for _ in range(self.count)]
        #: for each stream, the pieces of each other one that it has waited for already
        self._awaited = [[0] * self.count for _ in range(self.count)]
        self._reached = [0] * self.count
        self._events: list[int] = []  # not in use
        self._measured: WeakSet[Measured] = WeakSet()  # whose events are out
        self._zero: int | None = None  # where this step's times begin
        self.handles: list[int] = []
        try:
            for _ in range(self.count):
                self.handles.append(driver.create_stream())
        except DriverError:
            self.close()
            raise

    @property
    def current(self) -> int:
        """The driver's stream that work is being queued on; between pieces the compute stream."""
        return self.handles[COMPUTE if self._current is None else self._current]

    def submit(self, stream: int, waits: Waits, work: Work, tag: int = -1) -> int:
        """Queues what `work` queues on `current`, behind the waits; returns the piece's number.

        Raises: what `work` raised, or the driver; the piece is then not counted.
        """
        if self._jitter is not None:
            self._jitter(stream)
        handle = self.handles[stream]
        if self._zero is None:
            self._zero = self._record(self.handles[COMPUTE])
        self._queue_waits(stream, waits)
        begin = self._record(handle)
        self._current = stream
        try:
            work()
        except BaseException:
            self._events.append(begin)
            raise
        finally:
            self._current = None
        self._pieces[stream].append(_Piece(tag, begin, self._record(handle)))
        self.submitted[stream] += 1
        return self.submitted[stream]

    def event(self, waits: Waits) -> StreamEvent:
        return StreamEvent(self, tuple(waits), self.era)

    def reached(self, waits: Waits) -> bool:
        """Whether every stream has come as far as `waits` says, without waiting."""
        return all(self._is_done(stream, number) for stream, number in enumerate(waits))

    def wait(self, waits: Waits) -> None:
        """Blocks the host until `reached(waits)`; counted and timed."""
        began_ns = time.perf_counter_ns()
        for stream, number in enumerate(waits):
            if not self._is_done(stream, number):
                self._driver.synchronize_event(self._pieces[stream][number - 1].end)
                self._reached[stream] = number
        self.host_waits += 1
        self.waited_ns += time.perf_counter_ns() - began_ns

    def advance(self, at_most: int) -> None:
        """Nothing: the GPU goes on by itself."""

    def synchronize(self) -> None:
        """Waits for everything queued. Raises DriverError: some of it failed."""
        for handle in self.handles:
            self._driver.synchronize_stream(handle)
        self._reached = list(self.submitted)

    def restart(self) -> Measured:
        """Counts from 0 again after `synchronize`; what was measured since may be requested."""
        measured = Measured(self._driver, self._zero, self._pieces, self._events.extend)
        self._measured.add(measured)
        self._pieces, self._zero = [[] for _ in range(self.count)], None
        self._forget()
        return measured

    def begin_capture(self) -> None:
        """From now on all streams record what is submitted; it must not be waited for."""
        driver: Any = self._driver
        driver.begin_capture(self.handles[COMPUTE])
        # What was recorded before a cut is done by then.
        self._awaited = [list(self.submitted) for _ in range(self.count)]
        begin = self._record(self.handles[COMPUTE])
        for handle in self.handles[1:]:
            driver.wait_event(handle, begin)
        self._events.append(begin)

    def end_capture(self) -> int:
        """The graph of what was recorded. Raises DriverError: it cannot be one."""
        driver: Any = self._driver
        for handle in self.handles[1:]:
            end = self._record(handle)
            driver.wait_event(self.handles[COMPUTE], end)
            self._events.append(end)
        return driver.end_capture(self.handles[COMPUTE])

    def give_capture_up(self) -> None:
        """Ends a capture, whatever was recorded. Raises DriverError: there was none."""
        driver: Any = self._driver
        driver.destroy_graph(self.end_capture())

    def forget(self) -> None:
        """Counts from 0 again; what was recorded has no times."""
        self._forget()

    def abandon(self, reason: BaseException) -> None:
        """Waits for what has been queued, unless the device itself has failed."""
        try:
            self.synchronize()
        except DriverError:
            return  # `reason` says it already, and nothing runs any more

    def close(self) -> None:
        """Gives streams and events back; queued work is still done."""
        self._forget()
        for measured in list(self._measured):
            try:
                measured.read()
            except DriverError:
                measured.lose()
        while self._events:
            self._driver.destroy_event(self._events.pop())
        while self.handles:
            self._driver.destroy_stream(self.handles.pop())

    def _queue_waits(self, stream: int, waits: Waits) -> None:
        awaited = self._awaited[stream]
        for other, number in enumerate(waits):
            if other != stream and number > awaited[other]:
                event = self._pieces[other][number - 1].end
                self._driver.wait_event(self.handles[stream], event)
                awaited[other] = number

    def _is_done(self, stream: int, number: int) -> bool:
        if number > self._reached[stream]:
            if not self._driver.event_done(self._pieces[stream][number - 1].end):
                return False
            self._reached[stream] = number
        return True

    def _record(self, handle: int) -> int:
        """An event behind all that is queued on a stream."""
        event = self._events.pop() if self._events else self._driver.create_event(timing=True)
        self._driver.record_event(event, handle)
        return event

    def _forget(self) -> None:
        """All events are free again, and all counters 0."""
        for pieces in self._pieces:
            for piece in pieces:
                self._events += [piece.begin, piece.end]
            pieces.clear()
        if self._zero is not None:
            self._events.append(self._zero)
        self._zero = None
        self.submitted, self._reached = [0] * self.count, [0] * self.count
        self._awaited = [[0] * self.count for _ in range(self.count)]
        self.era += 1
