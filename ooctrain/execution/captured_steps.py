"""Captured steps: recorded once, then launched as a whole.

A piece of work is a callable that holds its addresses. A step that maps nothing and leaves every
value where it found it can therefore be recorded: its pieces are called once more, on streams that
record. A few calls of the device then replace thousands, and neither the allocator nor the list is
needed again. A step that cannot be recorded has a reason (`refusal`). Where the host looks at the
loss before anything persistent changes, the record has two parts; if the loss is not finite, the
pieces after that point are called one by one, as in any step. Source: CUDA graphs, stream capture.
Read next: `executor.py`, `guard.py`, `devices/cuda/step_graph.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ooctrain.errors import CaptureRefused, DriverError
from ooctrain.execution.guard import Guard, RecordedGuard
from ooctrain.step.op import Scalars

if TYPE_CHECKING:
    from ooctrain.devices.interface import Device, RecordedStep
    from ooctrain.devices.thread_streams import Waits
    from ooctrain.execution.result import StepResult
    from ooctrain.step.trace import Trace

#: A step that maps something may be the last one that does; this many are looked at.
MOST_TRIES = 4
Places = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A piece of work as it was submitted."""

    stream: int
    waits: Waits
    work: Callable[[], object]
    tag: int


@dataclass(frozen=True, slots=True)
class StepSnapshot:
    """Memory before or after a step.

    Args:
        places: addresses of what persists.
        changes: how many mappings the allocator has made and undone so far.
    """

    places: Places
    changes: int


@dataclass(slots=True)
class _Cut:
    """Where the record falls into two parts.

    Args:
        rest: the first piece behind the look at the loss.
        done: pieces of each stream until then.
    """

    rest: int
    done: Waits = ()


@dataclass(slots=True)
class _Recorded:
    """A recorded step with what its values need."""

    step: RecordedStep
    guard: RecordedGuard
    outputs: dict[int, np.ndarray]
    callers: list[int | None]  # by group of numbers, whose step scalars it has; None: of all
    own: frozenset[int]
    cut: _Cut


class CapturedSteps:
    """A session's recorded step.

    Attributes:
        refusal: why the last step was not recorded, in an error's words; None: it was, or need
            not be.
    """

    def __init__(self, device: Device, trace: Trace):
        debug = device.debug
        watched = debug.synchronous or debug.check_ledger or debug.before is not None
        plain = debug.poison is None and not watched
        self._recorder = device.graphs if plain else None
        self._device, self._trace = device, trace
        self.refusal: CaptureRefused | None = None
        self._pieces: list[Submitted] | None = None
        self._inputs: Places = {}
        self._result: StepResult | None = None
        self._guarded: int | None = None
        self._recorded: _Recorded | None = None
        self._tries = 0

    # Watching a step that is walked.

    @property
    def watches(self) -> bool:
        """Whether steps are looked at to be recorded."""
        return self._recorder is not None and self._tries < MOST_TRIES

    def submitter(self) -> Callable[..., int]:
        """`submit` of the device's streams, watched if this step may be recorded."""
        submit = self._device.streams.submit
        self.close()
        if not self.watches:
            return submit
        pieces = self._pieces = []

        def watched(stream: int, waits: Waits, work: Callable[[], object], tag: int = -1) -> int:
            pieces.append(Submitted(stream, waits, work, tag))
            return submit(stream, waits, work, tag)

        return watched

    def settle(
        self,
        before: StepSnapshot,
        after: StepSnapshot,
        inputs: Places,
        guarded: int | None,
        result: StepResult,
    ) -> None:
        """Judges a step that has been watched.

        Args:
            inputs: addresses of its inputs.
        """
        if self._pieces is None:
            return
        self._tries += 1
        self._inputs, self._guarded, self._result = inputs, guarded, result
        try:
            _expect_repeatable(before, after, self._trace)
        except CaptureRefused as reason:
            self.refusal, self._pieces = reason, None

    # Recording, and doing again.

    def serves(self, own: Mapping[int, Scalars], guarded: int | None) -> bool:
        """Whether the next step can be recorded, or done as it was recorded."""
        if self._pieces is None or guarded != self._guarded:
            return False
        return self._recorded is None or self._recorded.own == frozenset(own)

    def record(
        self, scalars: Scalars, own: Mapping[int, Scalars], outputs: dict[int, np.ndarray],
        use_guard: Callable[[Guard], None],
    ) -> bool:  # fmt: skip
        """Records the watched step, unless that is done; whether it could be.

        Args:
            scalars, own: values that the pieces read while they are called.
            outputs: where the pieces put wanted values.
            use_guard: sets the guard that the pieces read.
        """
        if self._recorded is not None:
            return True
        guard = RecordedGuard(self._device, self._trace, self._guarded)
        use_guard(guard)
        cut = _Cut(len(self._pieces or ()))
        try:
            assert self._recorder is not None, "a step was watched"
            step = self._recorder.record(lambda: self._queue(guard, cut))
        except (CaptureRefused, DriverError) as error:
            if isinstance(error, DriverError) and error.lost:
                raise
            self._refuse(error)
            return False
        owner = {id(values): call for call, values in own.items()} | {id(scalars): None}
        callers = [owner[id(values)] for values in step.scalars]
        self._recorded = _Recorded(step, guard, dict(outputs), callers, frozenset(own), cut)
        self.refusal, self._tries = None, 0
        return True

    def run(
        self, scalars: Scalars, own: Mapping[int, Scalars], use_guard: Callable[[Guard], None]
    ) -> tuple[dict[int, np.ndarray], float | None]:
        """Does the recorded step.

        Returns:
            Wanted values as bytes, and how long it took in microseconds; None: it was not done as
            a whole, since its loss was not a finite number.
        """
        recorded, streams = self._recorded, self._device.streams
        assert recorded is not None, "it was recorded"
        values = [scalars if call is None else own[call] for call in recorded.callers]
        recorded.step.begin(values)
        guard = recorded.guard
        if guard.loss is not None:
            streams.synchronize()
            use_guard(guard.seen())
        if guard.loss is None or guard.is_sound():
            recorded.step.go_on()
            streams.synchronize()
            return recorded.outputs, recorded.step.elapsed_us()
        cut = recorded.cut
        for piece in (self._pieces or ())[cut.rest :]:
            waits = tuple(max(0, n - done) for n, done in zip(piece.waits, cut.done, strict=True))
            streams.submit(piece.stream, waits, piece.work, piece.tag)
        streams.synchronize()
        streams.restart()
        return recorded.outputs, None

    @property
    def inputs(self) -> Places:
        """Where the recorded step finds its inputs."""
        return self._inputs

    @property
    def result(self) -> StepResult:
        """Of the step that was watched: its times, and its peaks."""
        assert self._result is not None, "a step was watched"
        return self._result

    def close(self) -> None:
        """Gives the record back."""
        recorded, self._recorded, self._pieces = self._recorded, None, None
        if recorded is not None:
            recorded.step.close()

    def _queue(self, guard: RecordedGuard, cut: _Cut) -> None:
        """Submits all pieces again; cuts where the host looks."""
        streams, recorder = self._device.streams, self._recorder
        assert recorder is not None
        done = [0] * streams.count
        for number, piece in enumerate(self._pieces or ()):
            done[piece.stream] = streams.submit(piece.stream, piece.waits, piece.work, piece.tag)
            if guard.looked:
                guard.looked, cut.rest, cut.done = False, number + 1, tuple(done)
                recorder.cut()

    def _refuse(self, error: CaptureRefused | DriverError) -> None:
        self._pieces, self._tries = None, MOST_TRIES
        self.refusal = (
            error
            if isinstance(error, CaptureRefused)
            else CaptureRefused(
                "the driver refuses to record the step",
                numbers=error.what,
                fix="OOCTRAIN_LAUNCHER=driver, which records nothing",
            )
        )


def _expect_repeatable(before: StepSnapshot, after: StepSnapshot, trace: Trace) -> None:
    """Raises CaptureRefused: the next step would not do the same with the same addresses."""
    if after.changes != before.changes:
        raise CaptureRefused(
            "a step maps memory, which no graph can do",
            numbers=f"{after.changes - before.changes} mappings changed",
            fix="a plan of whole variables, or the allocator best-fit",
        )
    moved = [v for v, address in before.places.items() if after.places.get(v) != address]
    if moved:
        raise CaptureRefused(
            "a step leaves values at other addresses than it found them",
            where=trace.variables[moved[0]].name, numbers=f"{len(moved)} of {len(before.places)}",
            fix="updates in place",
        )  # fmt: skip


def addresses(of: Sequence[int], address: Callable[[int], int]) -> Places:
    """{variable: its address}."""
    return {variable: address(variable) for variable in of}
