"""A device that records whole steps without a GPU: the cpu device, and a tape.

While the tape records, a piece of work is called at once, and what it asks of the device (a kernel,
a copy, a fill, a value) is written down with its addresses instead of done. A record is done when
somebody waits for it, no earlier, in an order that its waits allow: the stream that `order` names
first gets on as far as it can, so a wait that is missing shows in the bits. What nobody may do with
a GPU's record raises AssertionError: to wait, or to look at a value, while it is made; to begin it
after it was closed, or with other numbers than it has. Read next: `../unit/test_recorded_steps.py`,
`ooctrain/execution/captured_steps.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooctrain.devices.cpu.device import CpuDevice
from ooctrain.devices.thread_streams import Streams
from ooctrain.step.op import Scalars

#: Does what a piece of work asked for; it is given the scalars that stand for recorded ones.
Deed = Callable[[Mapping[int, Scalars]], object]


@dataclass(frozen=True, slots=True)
class Taped:
    """A piece of work as the tape has it."""

    stream: int
    waits: tuple[int, ...]
    deeds: Sequence[Deed]


class TapedStreams:
    """The cpu's streams; what is submitted goes to the tape while it records.

    Attributes:
        walked: pieces that were submitted to be done at once.
        tape: that records now.
        queued: parts of a record that wait to be done.
    """

    def __init__(self, real: Streams):
        self.real, self.walked = real, 0
        self.tape: Tape | None = None
        self.queued: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def submit(
        self, stream: int, waits: Sequence[int], work: Callable[[], object], tag: int = -1
    ) -> int:
        """Queues a piece of work, or has it written down."""
        if self.tape is not None:
            return self.tape.submit(stream, waits, work)
        self._do_queued()  # what is submitted now comes behind it
        self.walked += 1
        return self.real.submit(stream, waits, work, tag)

    def synchronize(self) -> None:
        """Waits for all that was submitted, and for the record."""
        assert self.tape is None, "nobody can wait for what is being recorded"
        self._do_queued()
        self.real.synchronize()

    def _do_queued(self) -> None:
        queued, self.queued = self.queued, []
        for part in queued:
            part()


class Tape:
    """Records what is submitted.

    Args:
        order: the streams; whoever comes first gets on first when a record is done.

    Attributes:
        refusals: each ends one attempt to record, when all of it has been queued.
        records: all that were made.
    """

    def __init__(self, streams: TapedStreams, order: Sequence[int]):
        self.order, self.streams = order, streams
        self.refusals: list[BaseException] = []
        self.records: list[Record] = []
        self.deeds: list[Deed] | None = None
        self.scalars: list[Scalars] = []
        self._parts: list[list[Taped]] = []
        self._counts: list[int] = []

    def record(self, queue: Callable[[], None]) -> Record:
        """What a function submits."""
        self._parts, self._counts, self.scalars = [[]], [0] * self.streams.count, []
        self.streams.tape = self
        try:
            queue()
            if self.refusals:
                raise self.refusals.pop(0)
        finally:
            self.streams.tape = None
        made = Record(self, self._parts, self.scalars)
        self.records.append(made)
        return made

    def cut(self) -> None:
        """What is submitted from now on belongs to the next part."""
        self._parts.append([])

    def submit(self, stream: int, waits: Sequence[int], work: Callable[[], object]) -> int:
        """Calls a piece of work, and keeps what it asks for."""
        assert all(n <= count for n, count in zip(waits, self._counts, strict=True)), (
            "a piece of work waits for one that comes later"
        )
        self.deeds = []
        try:
            work()
            self._parts[-1].append(Taped(stream, tuple(waits), self.deeds))
        finally:
            self.deeds = None
        self._counts[stream] += 1
        return self._counts[stream]


class Record:
    """A recorded step: `devices.interface.RecordedStep`.

    Attributes:
        began: how often it was begun.
        closed: whether it was given back.
    """

    def __init__(self, tape: Tape, parts: Sequence[Sequence[Taped]], scalars: list[Scalars]):
        self.parts, self.scalars, self.began, self.closed = parts, scalars, 0, False
        self._tape, self._done, self._left = tape, [0] * tape.streams.count, 0

    def begin(self, scalars: Sequence[Scalars]) -> None:
        """Queues the first part."""
        assert not self.closed, "the record was given back"
        assert not self._tape.streams.queued, "the last step is not done"
        now = {id(old): new for old, new in zip(self.scalars, scalars, strict=True)}
        self._done, self._left, self.began = [0] * len(self._done), len(self.parts), self.began + 1
        self._now = now
        self._queue(self.parts[0])

    def go_on(self) -> None:
        """Queues the rest."""
        for part in self.parts[1:]:
            self._queue(part)

    def elapsed_us(self) -> float:
        """Some time; only of a step that is done."""
        assert not self._left, "the step is not done"
        return 1.0 + self.began

    def close(self) -> None:
        """Gives it back, once."""
        assert not self.closed, "it was given back before"
        self.closed = True

    def _queue(self, part: Sequence[Taped]) -> None:
        now = self._now
        self._tape.streams.queued.append(lambda: self._do(part, now))

    def _do(self, part: Sequence[Taped], now: Mapping[int, Scalars]) -> None:
        queues = [deque(p for p in part if p.stream == s) for s in range(len(self._done))]
        for _ in part:
            piece = next(
                queues[s].popleft() for s in self._tape.order
                if queues[s] and self._reached(queues[s][0].waits)
            )  # fmt: skip
            for deed in piece.deeds:
                deed(now)
            self._done[piece.stream] += 1
        self._left -= 1

    def _reached(self, waits: Sequence[int]) -> bool:
        return all(done >= n for done, n in zip(self._done, waits, strict=True))


class RecordingDevice(CpuDevice):
    """The cpu device with a tape as its recorder (`graphs`).

    Args:
        order: as of `Tape`.
    """

    order: tuple[int, ...] = (0, 1, 2)

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.streams: Any = TapedStreams(self.streams)
        self.graphs: Any = Tape(self.streams, [s for s in self.order if s < self.streams.count])

    def bind(self, op, ins, outs, workspace_bytes):
        run = super().bind(op, ins, outs, workspace_bytes)

        def launch(addresses, scalars):
            tape = self.graphs
            if tape.deeds is not None and all(scalars is not known for known in tape.scalars):
                tape.scalars.append(scalars)
            self._do(lambda now: run(addresses, now.get(id(scalars), scalars)))

        return launch

    def copy_out(self, address, host_offset, size_bytes):
        self._do(lambda now: CpuDevice.copy_out(self, address, host_offset, size_bytes))

    def copy_in(self, address, host_offset, size_bytes):
        self._do(lambda now: CpuDevice.copy_in(self, address, host_offset, size_bytes))

    def fill(self, address, size_bytes, byte):
        self._do(lambda now: CpuDevice.fill(self, address, size_bytes, byte))

    def capture(self, address, size_bytes):
        """Bytes that are there once the record has been done."""
        if self.graphs.deeds is None:
            return super().capture(address, size_bytes)
        found = np.zeros(size_bytes, np.uint8)
        self._do(lambda now: np.copyto(found, CpuDevice.read(self, address, size_bytes)))
        return found

    def look(self, address, size_bytes):
        assert self.graphs.deeds is None, "nobody can look at what is being recorded"
        return super().look(address, size_bytes)

    def _do(self, deed: Deed) -> None:
        deeds = self.graphs.deeds
        if deeds is None:
            deed({})
        else:
            deeds.append(deed)
