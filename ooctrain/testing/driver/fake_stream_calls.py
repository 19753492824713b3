"""The fake driver's calls on streams and events, each refused as CUDA refuses it.

`fake_streams.py` does queued work as late as allowed; whether a call may be made at all is decided
here: the gate first, then the handle, then what CUDA asks of it (an event that was never recorded
has no time). What is queued also says which memory nobody may take away yet. Source: cuda.h's
comments. Read next: `fake_streams.py`, `fake_driver.py`.
"""

from __future__ import annotations

from collections import deque

from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver import failure
from ooctrain.testing.driver.fake_gate import Gate, Violation
from ooctrain.testing.driver.fake_memory import show
from ooctrain.testing.driver.fake_streams import FakeEvent, LazyStreams, Work


class StreamCalls:
    """The calls of `VmmDriver` on streams and events.

    Args:
        queues: the streams.
        gate: what every call passes first.
    """

    def __init__(self, queues: LazyStreams, gate: Gate):
        self._queues, self._gate = queues, gate

    def create_stream(self) -> int:
        self._gate.enter("cuStreamCreate")
        return self._queues.create_stream()

    def destroy_stream(self, stream: int) -> None:
        self._gate.enter("cuStreamDestroy_v2")
        self.stream(stream)
        self._queues.destroy_stream(stream)

    def stream_done(self, stream: int) -> bool:
        self._gate.enter("cuStreamQuery")
        return not self.stream(stream)

    def synchronize_stream(self, stream: int) -> None:
        self._gate.enter("cuStreamSynchronize")
        queue = self.stream(stream)
        self._queues.run_until(lambda: not queue)

    def create_event(self, timing: bool = False) -> int:
        self._gate.enter("cuEventCreate")
        return self._queues.create_event(timing)

    def destroy_event(self, event: int) -> None:
        self._gate.enter("cuEventDestroy_v2")
        self.event(event)
        self._queues.destroy_event(event)

    def record_event(self, event: int, stream: int) -> None:
        self._gate.enter("cuEventRecord")
        self.stream(stream)
        self._queues.record(self.event(event), stream)

    def wait_event(self, stream: int, event: int) -> None:
        self._gate.enter("cuStreamWaitEvent")
        self.stream(stream)
        self._queues.wait(stream, self.event(event))

    def event_done(self, event: int) -> bool:
        self._gate.enter("cuEventQuery")
        found = self.event(event)
        return found.reached >= found.records

    def synchronize_event(self, event: int) -> None:
        self._gate.enter("cuEventSynchronize")
        found, number = self.event(event), self.event(event).records
        self._queues.run_until(lambda: found.reached >= number)

    def elapsed_us(self, start: int, end: int) -> float:
        """Pieces of work run between the two events."""
        call = "cuEventElapsedTime_v2"
        self._gate.enter(call)
        first, last = self.event(start), self.event(end)
        for event in (first, last):
            if not (event.timing and event.records):
                raise failure(call, abi.INVALID_HANDLE, detail="no timing, or never recorded")
            if event.reached < event.records:
                raise failure(call, abi.NOT_READY)
        return float(last.at - first.at)

    # Rules.

    def stream(self, stream: int) -> deque[Work]:
        """The work that is queued in a stream."""
        if stream not in self._queues.streams:
            raise failure("stream", abi.INVALID_HANDLE, detail=f"{stream} is not a stream")
        return self._queues.streams[stream]

    def event(self, event: int) -> FakeEvent:
        """What is known of an event."""
        if event not in self._queues.events:
            raise failure("event", abi.INVALID_HANDLE, detail=f"{event} is not an event")
        return self._queues.events[event]

    def expect_unused(self, address: int, size_bytes: int, what: str) -> None:
        """Raises Violation if queued work is still to use a range."""
        for work in self._queues.pending():
            if any(a < address + size_bytes and address < a + n for a, n in work.uses):
                raise Violation(
                    f"{what} of {show(address, size_bytes)} while {work.name} is still to use it",
                    fix="wait on the host for the last use",
                )
