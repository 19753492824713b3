"""The results of a step, and how values enter and leave the device's bytes.

Bytes as they lie in memory become arrays in logical layout, and the times that the streams measured
become a `Timeline`. Measured times go through the same function as simulated ones, so that the two
timelines can be overlaid. Read next: `executor.py`, `../sched/timeline.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ooctrain.devices.thread_streams import WorkSpan
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.execution.guard import NotFinite
from ooctrain.execution.program import Program
from ooctrain.sched.simulate import events_of
from ooctrain.sched.timeline import Timeline, timeline_of
from ooctrain.step.op import physical_shape, to_logical, to_physical
from ooctrain.step.trace import Variable


@dataclass(frozen=True)
class StepResult:
    """What one step gave.

    Args:
        outputs: {variable id: its value, logical layout} of the wanted variables.
        spans: what was measured of each instruction.
        peak_bytes, host_peak_bytes: largest numbers of bytes that the allocator had granted, and
            that copies held on the host.
        captured_us: how long the step took, if it was done as a whole; `spans` and peaks are then
            those of the step that was recorded.
        not_finite: what the step would have made other than finite; its loss may be, all the same.
    """

    outputs: Mapping[int, np.ndarray]
    spans: Sequence[WorkSpan]
    program: Program
    peak_bytes: int
    host_peak_bytes: int
    captured_us: float | None = None
    not_finite: NotFinite | None = None

    @cached_property
    def timeline(self) -> Timeline:
        """The step in time, as measured."""
        return self.timeline_with(())

    def timeline_with(self, messages: Iterable[tuple[int, int, int]]) -> Timeline:
        """The step in time, with messages between ranks.

        Args:
            messages: (number, start in ns, end in ns), by the clock of the spans.
        """
        program, length = self.program, len(self.program.schedule)
        start_ns, done_ns = [0] * length, [0] * length
        spans = [span for span in self.spans if span.tag >= 0]
        zero_ns = min((span.start_ns for span in spans), default=0)
        for span in spans:
            start_ns[span.tag] = span.start_ns - zero_ns
            done_ns[span.tag] = span.end_ns - zero_ns
        known = {number: (begin - zero_ns, end - zero_ns) for number, begin, end in messages}
        events = events_of(known, program.schedule, program.trace) if known else ()
        timeline = timeline_of(
            program.issued, program.schedule, program.trace, (start_ns, done_ns), events
        )
        return replace(timeline, peak_bytes=self.peak_bytes, host_peak_bytes=self.host_peak_bytes)


@dataclass(frozen=True, slots=True)
class Laid:
    """A value as it lies on the device.

    Args:
        shape, dtype: those of the value, logical.
        data: uint8, physical layout.
    """

    shape: tuple[int, ...]
    dtype: str
    data: np.ndarray


def to_bytes(value: Any, described: Variable) -> np.ndarray:
    """A value as it lies on the device: uint8, physical layout.

    Raises:
        ShapeError: not the variable's shape or element type.
    """
    if isinstance(value, Laid):
        check_value(value, described)
        return value.data
    array = np.asarray(value)
    check_value(array, described)
    return to_physical(array).ravel().view(np.uint8)


def check_value(value: Any, described: Variable) -> None:
    """Raises ShapeError unless it has the variable's shape and element type; reads nothing that is
    not there yet.
    """
    array = value if hasattr(value, "shape") and hasattr(value, "dtype") else np.asarray(value)
    if array.shape != described.shape or array.dtype != described.dtype:
        raise ShapeError(
            f"{described.name!r} is given another shape or element type",
            numbers=f"wanted {described.shape} {described.dtype}, "
            f"given {array.shape} {array.dtype}",
            fix="the shape and element type wanted",
        )


def value_given(values: Mapping[int, Any], variable: int, described: Variable) -> Any:
    """The value that is given for a variable; it may still have to be read.

    Raises:
        ConfigError, ShapeError: there is none, or one of another shape or element type.
    """
    if variable not in values:
        raise ConfigError(
            f"no value is given for {described.name!r}",
            code="OOC-111",
            fix="a value for each input, parameter and state of the trace",
        )
    check_value(values[variable], described)
    return values[variable]


def from_bytes(data: np.ndarray, described: Variable) -> np.ndarray:
    """The value of bytes as they lie on the device: a new array, logical layout."""
    physical = data.view(described.dtype).reshape(physical_shape(described.shape))
    return np.array(to_logical(physical), order="C")
