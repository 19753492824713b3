"""Streams that do their work as late as allowed: queued work runs when the host must wait.

A missing wait shows only if the work is not done when its result is needed, so no work is done
early. A callable chooses the order among those that CUDA allows; in tests Hypothesis draws it, and
shrinks it. The numbers of destroyed streams and events are reused at once, as in CUDA, so code that
keeps a handle instead of an object is exposed. Source: CUDA's streams and events. Read next:
`fake_driver.py`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Choose = Callable[[Sequence[int]], int]
Range = tuple[int, int]  # (address, bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A piece of work in a stream.

    Args:
        name: for messages.
        run: does it.
        uses: the device and host memory that it touches.
        ready: whether what it waits for has come.
    """

    name: str
    run: Callable[[], object]
    uses: tuple[Range, ...] = ()
    ready: Callable[[], bool] = lambda: True


@dataclass(slots=True, eq=False)
class FakeEvent:
    """An event: how often it was recorded, which record is reached, and after how many pieces."""

    timing: bool
    records: int = 0
    reached: int = 0
    at: int = 0


@dataclass(slots=True, eq=False)
class Numbers:
    """Handles: those given back are the next to be given out."""

    first: int
    free: list[int] = field(default_factory=list)

    def take(self) -> int:
        """A number that is not in use."""
        if self.free:
            return self.free.pop()
        self.first += 1
        return self.first


class LazyStreams:
    """In-order queues, worked off one piece at a time.

    Args:
        choose: picks one of the streams that can go on; `min` finishes the oldest stream first.
    """

    def __init__(self, choose: Choose = min):
        self.choose = choose
        self.streams: dict[int, deque[Work]] = {}
        self.events: dict[int, FakeEvent] = {}
        self.pieces_done = 0
        self._retired: dict[int, deque[Work]] = {}  # destroyed with work left, by negative number
        self._retired_numbers = itertools.count(-1, -1)
        self._stream_numbers, self._event_numbers = Numbers(0x100), Numbers(0x10000)

    def create_stream(self) -> int:
        """A new, empty stream."""
        stream = self._stream_numbers.take()
        self.streams[stream] = deque()
        return stream

    def destroy_stream(self, stream: int) -> None:
        """Its number is free again; its work is not lost."""
        left = self.streams.pop(stream)
        if left:
            self._retired[next(self._retired_numbers)] = left
        self._stream_numbers.free.append(stream)

    def create_event(self, timing: bool) -> int:
        """A new event, never recorded."""
        event = self._event_numbers.take()
        self.events[event] = FakeEvent(timing)
        return event

    def destroy_event(self, event: int) -> None:
        """Its number is free again; records and waits in the queues still count."""
        del self.events[event]
        self._event_numbers.free.append(event)

    def put(
        self, stream: int, name: str, run: Callable[[], object], uses: Sequence[Range] = (),
        ready: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Queues a piece of work."""
        self.streams[stream].append(Work(name, run, tuple(uses), ready))

    def record(self, event: FakeEvent, stream: int) -> None:
        """Queues the event's next record."""
        event.records += 1
        number = event.records

        def reach() -> None:
            event.reached, event.at = max(event.reached, number), self.pieces_done

        self.put(stream, "record", reach)

    def wait(self, stream: int, event: FakeEvent) -> None:
        """Queues a wait for the latest record so far; a later record does not delay it."""
        number = event.records
        self.put(stream, "wait", lambda: None, ready=lambda: event.reached >= number)

    def step(self, stream: int | None = None) -> bool:
        """Runs one piece, of `stream` or of a chosen one; False if none can go on."""
        queues = {**self._retired, **self.streams}
        able = [s for s in sorted(queues) if queues[s] and queues[s][0].ready()]
        if stream is not None:
            able = [s for s in able if s == stream]
        if not able:
            return False
        queue = queues[self.choose(able)]
        work = queue.popleft()
        self.pieces_done += 1
        work.run()
        return True

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Works until a condition holds, and no piece further."""
        while not reached():
            # A wait is for a record queued before it, so that something can always go on.
            assert self.step(), "the streams wait for each other"

    def pending(self) -> list[Work]:
        """All work that has not run."""
        queues = [*self._retired.values(), *self.streams.values()]
        return [work for queue in queues for work in queue]
