"""A whole step as graphs of CUDA: recorded once, and launched by one call from then on.

While streams capture, queueing records. So the pieces of a step that has just run are queued once
more, on streams that capture. Everything that differs in the next step lies in memory: numbers in a
block that is copied first, wanted values in pinned blocks that stay. The result is a `StepGraph` of
one part, or of more where the host must look at a value in between. Source: cuda.h, stream capture.
Read next: `launches.py`, `execution/captured_steps.py` (which steps can be recorded).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Protocol

from ooctrain.devices.cuda.staging import Staging
from ooctrain.devices.cuda.streams import CudaStreams
from ooctrain.devices.driver_calls import GraphDriver, give_back
from ooctrain.devices.thread_streams import COMPUTE
from ooctrain.errors import DriverError
from ooctrain.step.op import Scalars


class NumberBlock(Protocol):
    """What changes from step to step, in device memory (`step_numbers.StepNumbers`)."""

    @property
    def scalars(self) -> list[Scalars]:
        """Step scalars that were recorded."""

    def queue_copy(self, stream: int) -> None:
        """Queues the copy of all numbers to the device."""

    def write(self, scalars: Sequence[Scalars]) -> None:
        """Writes those of a step, for that copy."""

    def close(self) -> None:
        """Gives their memory back."""


class StepGraph:
    """A recorded step.

    Args:
        driver: driver of the graphs.
        stream: that they are launched on.
        parts: the graphs, in their order.
        numbers: what changes from step to step.
        held: gives everything back.
    """

    def __init__(
        self, driver: GraphDriver, stream: int, parts: Sequence[int], numbers: NumberBlock,
        held: ExitStack,
    ):  # fmt: skip
        self._driver, self._stream, self._parts = driver, stream, parts
        self._numbers, self._held = numbers, held
        self._events = [driver.create_event(timing=True) for _ in range(2)]
        for event in self._events:
            held.callback(give_back, driver.destroy_event, event)

    @property
    def scalars(self) -> list[Scalars]:
        """The step scalars that were recorded; `begin` is given those in their place."""
        return self._numbers.scalars

    def begin(self, scalars: Sequence[Scalars]) -> None:
        """Writes a step's numbers, and launches the first part; the last step must be done."""
        self._numbers.write(scalars)
        self._driver.record_event(self._events[0], self._stream)
        self._driver.launch_graph(self._parts[0], self._stream)

    def go_on(self) -> None:
        """Launches the other parts."""
        for part in self._parts[1:]:
            self._driver.launch_graph(part, self._stream)
        self._driver.record_event(self._events[1], self._stream)

    def elapsed_us(self) -> float:
        """From the first part's begin to the last one's end, once all is done."""
        return self._driver.elapsed_us(*self._events)

    def close(self) -> None:
        """Gives all back; views of its values must not be used any more."""
        self._held.close()


class GraphMaker:
    """Records what is queued on a device's streams.

    Args:
        driver: that captures.
        streams, staging: streams and staging of the device.
        kernels: `launches.DriverKernels`, with `numbers`.
    """

    def __init__(self, driver: GraphDriver, streams: CudaStreams, staging: Staging, kernels: Any):
        self._driver, self._streams = driver, streams
        self._staging, self._kernels = staging, kernels
        self._held = ExitStack()
        self._parts: list[int] = []

    def record(self, queue: Callable[[], None]) -> StepGraph:
        """The graph of what a function queues on the streams by `submit`; it calls `cut` where the
        host is to look.

        Raises: what the function raised, CaptureRefused and DriverError among them; nothing is kept
        and nothing was done on the device.
        """
        self._held, self._parts = ExitStack(), []
        stream = self._streams.handles[COMPUTE]
        try:
            numbers: NumberBlock = self._kernels.number_anew()
            self._held.callback(numbers.close)
            self._staging.keep(self._held)
            self._streams.begin_capture()
            numbers.queue_copy(stream)
            queue()
            self._keep(self._streams.end_capture())
            return StepGraph(self._driver, stream, self._parts, numbers, self._held)
        except BaseException:
            with suppress(DriverError):
                self._streams.give_capture_up()
            self._held.close()
            raise
        finally:
            self._kernels.numbers = None
            self._staging.keep(None)
            self._streams.forget()

    def cut(self) -> None:
        """What is queued from now on belongs to the next part."""
        self._keep(self._streams.end_capture())
        self._streams.begin_capture()

    def _keep(self, graph: int) -> None:
        self._parts.append(graph)
        self._held.callback(give_back, self._driver.destroy_graph, graph)
