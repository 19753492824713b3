"""The executor: one loop that walks a schedule on any device.

It takes a trace, a schedule, a device, an allocator and the values of the persistent variables, and
gives for each step the wanted values and the measurements. The host walks the list in order, claims
and releases memory as it goes, and queues each instruction on its stream behind the waits that the
table gives; it makes no other decision. Issue runs ahead of execution, a burst at a time, so
addresses, and with them fragmentation, depend on the list alone. `Session` is that loop; values
before and after it are those of `BetweenSteps`. Source: docs/schedule.md. Read next: `program.py`
(what is prepared once), `placement.py` (blocks by variable).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ooctrain.alloc.base import Allocator
from ooctrain.devices.interface import BoundCall, Device
from ooctrain.devices.thread_streams import COMPUTE, OUT
from ooctrain.engine.eager import own_pages
from ooctrain.errors import DriverError, InUse, OoctrainError, PlanMismatch, TransferError
from ooctrain.execution.captured_steps import CapturedSteps, StepSnapshot, addresses
from ooctrain.execution.guard import Guard, may_fail
from ooctrain.execution.placement import WORKSPACE, Placement, Settling
from ooctrain.execution.program import (
    EndStep,
    FreeStep,
    InStep,
    OutStep,
    Program,
    RunStep,
    Waits,
    make_program,
)
from ooctrain.execution.result import StepResult, from_bytes, to_bytes, value_given
from ooctrain.sched.host import SLOT_ALIGN_BYTES, host_slots
from ooctrain.sched.ledger import Issued
from ooctrain.sched.schedule import Schedule
from ooctrain.step.op import Scalars, Spec, physical_shape, to_logical
from ooctrain.step.trace import Call, Trace

_ISSUED_AHEAD = 8  # Runs; copies that follow them in the list can start while they still run
# Steps. A large kernel pushes Python itself out of the caches, and each step after it would fetch
# its code and data again (measured: 85 us between two calls, 50 so; 20 where kernels do nothing).
_ISSUED_AT_ONCE = 32


class Session:
    """A schedule on a device, with what persists from step to step.

    Args:
        trace, schedule: what to run; the schedule must be legal (`verify`).
        device: with a host slab of at least `host_extent_bytes(trace, schedule)`.
        values: {persistent variable id: its value before the first step, logical layout}; None:
            they are written before it, one after the other.
        wanted: ids of variables whose value each step hands out.

    Attributes:
        steps: run so far.
        captured: the captured step, or why there is none (`refusal`).
        settling: whether steps end where earlier ones ended; `settling.worn`: no replay has shown
            that further steps fit, those of another session do.

    Raises:
        PlanMismatch: the allocator cannot hold the schedule's ranges, or the slab is too small.
        ConfigError, ShapeError: a value is missing, or of another shape.
        OutOfDeviceMemory: the start does not fit.
    """

    def __init__(
        self, trace: Trace, schedule: Schedule, device: Device, allocator: Allocator,
        values: Mapping[int, np.ndarray] | None, wanted: Sequence[int] = (),
    ):  # fmt: skip
        self.program = make_program(
            trace, schedule, allocator, streams=device.streams.count, wanted=wanted,
            fills=device.debug.poison is not None,
            align_bytes=max(SLOT_ALIGN_BYTES, device.host_align_bytes),
        )  # fmt: skip
        check_slab(self.program, device)
        self.device, self.allocator = device, allocator
        self.placement = Placement(self.program, allocator)
        self.settling = Settling(self.placement)
        self._poison, self._streams = device.debug.poison, device.streams
        self._submit, self.captured = device.streams.submit, CapturedSteps(device, trace)
        self._launches = [self._bound(call) for call in trace.calls]
        self._outputs: dict[int, np.ndarray] = {}
        self._scalars: Scalars = {}
        self._own: Mapping[int, Scalars] = {}
        self._guard = Guard(device, trace, None)
        self._undoes = may_fail(trace) or device.debug.before is not None
        self._host_peak = 0
        self._broken: BaseException | None = None
        self._walking = False
        self.steps = 0
        self._values = BetweenSteps(self.program, device, self.placement)
        self._inputs = [v for v in trace.initial if not trace.variables[v].persistent]
        self._issue: Mapping[type, Callable[[Any], None]] = {
            RunStep: self._run, EndStep: self._end, FreeStep: self._free,
            InStep: self._copy_in, OutStep: self._copy_out,
        }  # fmt: skip
        self.placement.claim_start()
        for variable in trace.initial:
            if values is not None and trace.variables[variable].persistent:
                self._values.put(variable, self._bytes_given(values, variable))

    def run_step(
        self, inputs: Mapping[int, np.ndarray], scalars: Scalars,
        own: Mapping[int, Scalars] | None = None, guarded: int | None = None,
    ) -> StepResult:  # fmt: skip
        """Runs the list once.

        Args:
            inputs: {input variable id: its value, logical layout, or what `np.asarray` makes one
                of, with shape and dtype}.
            scalars: the step scalars by name ("lr", "step", "seed").
            own: {call id: the step scalars of this call, in place of those of all}.
            guarded: a variable, the loss; where its value is not a finite number, all that persists
                is afterwards as it was before.

        Raises:
            ConfigError, ShapeError: an input is missing or of another shape; nothing has happened.
            What an operation raised, or reading an input; the list was walked to its end without
            further calls, and what persists is as it was before, as far as copies were kept.
            DriverError, TransferError: the device failed; the session cannot be used afterwards.
        """
        self._expect_sound()
        data = {v: value_given(inputs, v, self.program.trace.variables[v]) for v in self._inputs}
        self._outputs, self._scalars, self._own = {}, dict(scalars), own or {}
        self._guard = Guard(self.device, self.program.trace, guarded, self._undoes)
        self._walking = True
        try:
            result = self._again(data) or self._walk(data)
        except BaseException as error:
            self._broken = error
            self._streams.abandon(error)
            raise
        finally:
            failed = self._guard.error
            self._guard = Guard(self.device, self.program.trace, None)
            self._walking, self._outputs = False, {}  # the result has copies: they may be large
        self.steps += 1
        if failed is not None:
            raise failed
        return result

    def read(self, variable: int) -> np.ndarray:
        """The true value of a persistent variable between steps, wherever it is; logical layout."""
        return np.array(to_logical(self.read_physical(variable)), order="C")

    def read_physical(self, variable: int) -> np.ndarray:
        """The same in the layout in which it lies, with no second copy on the way."""
        self._expect_sound()
        return self._values.read(variable)

    def write(self, variable: int, value: np.ndarray) -> None:
        """Sets a persistent variable between steps, wherever it is.

        Raises:
            ShapeError: not the variable's shape or element type.
        """
        self._expect_sound()
        self._values.put(variable, to_bytes(value, self.program.trace.variables[variable]))

    def on_device(self) -> Iterator[int]:
        """The persistent variables that lie on the device between steps, whole or in part."""
        return self._values.on_device()

    def forget(self, variable: int) -> None:
        """Gives back what the device can of a persistent variable's memory; its value is lost."""
        self._values.forget(variable)

    def forget_device(self) -> None:
        """Gives back what the device can of all its memory; what lies there is lost."""
        self.device.discard_all()

    def close(self) -> None:
        """Gives the allocator's memory back; the device stays open."""
        with suppress(DriverError):  # a device that has failed
            self.device.attach()
        self.captured.close()
        self._launches.clear()
        self._broken = self._broken or OoctrainError(
            "the session is closed", fix="open another one; a trainer does so at its next step"
        )
        self.allocator.close()

    @property
    def broken(self) -> bool:
        """Whether a device's failure has ended it, or `close`."""
        return self._broken is not None

    def expect_idle(self) -> None:
        """Raises InUse while a step is running, for example from a user's own operation."""
        if self._walking:
            raise InUse("a step is under way", fix="look at values between steps")

    # The loop.

    def _walk(self, data: Mapping[int, Any]) -> StepResult:
        program, streams, debug = self.program, self._streams, self.device.debug
        before = self._around()
        self._submit = self.captured.submitter()
        self.placement.claim_start()
        fed = [v for v in self._values.on_device() if v in data]
        places = addresses(fed, self.placement.address)
        with self._failing():
            for variable, value in data.items():  # read one by one: together they may be large
                self._values.feed(variable, value, places)
        self._host_peak = program.host_start_bytes
        for position, step in enumerate(program.steps):
            if debug.before is not None:
                streams.synchronize()
                with self._failing():
                    debug.before(program, position)
            self._issue[type(step)](step)
            if position % _ISSUED_AT_ONCE == 0:
                streams.advance(_ISSUED_AHEAD)
            if debug.synchronous:
                streams.synchronize()
            if debug.check_ledger:
                compare_ledger(program.issued[program.rows[position]], self.allocator)
            if self._poison is not None:
                check_waste(program.issued[program.rows[position]], self.allocator)
        streams.synchronize()
        self.placement.carry()
        self.settling.after_step()
        self._restore()
        result = StepResult(
            self._logical(self._outputs), streams.restart(), program,
            self.allocator.stats().peak_granted_bytes, self._host_peak,
            not_finite=self._guard.not_finite,
        )  # fmt: skip
        if self._guard.error is None:
            self.captured.settle(before, self._around(), places, self._guard.loss, result)
        else:
            self.captured.close()
        return result

    def _again(self, data: Mapping[int, Any]) -> StepResult | None:
        """The step as it was recorded; None: it has to be walked."""
        captured, guarded = self.captured, self._guard.loss
        if not captured.serves(self._own, guarded):
            return None
        if not captured.record(self._scalars, self._own, self._outputs, self._use):
            self._outputs, self._guard = {}, Guard(self.device, self.program.trace, guarded)
            return None
        self._outputs = {}
        for variable, value in data.items():
            self._values.feed(variable, value, captured.inputs)
        outputs, captured_us = captured.run(self._scalars, self._own, self._use)
        self._restore()
        values = self._logical({**outputs, **self._outputs})
        return replace(
            captured.result, outputs=values, captured_us=captured_us,
            not_finite=self._guard.not_finite,
        )  # fmt: skip

    def _use(self, guard: Guard) -> None:
        self._guard = guard

    def _restore(self) -> None:
        for variable, value in self._guard.to_restore().items():
            self._values.put(variable, value)

    def _logical(self, outputs: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        variables = self.program.trace.variables
        return {v: from_bytes(value, variables[v]) for v, value in outputs.items()}

    def _around(self) -> StepSnapshot:
        """What a step finds or leaves, for a recorder of steps."""
        if not self.captured.watches:
            return StepSnapshot({}, 0)
        variables, stats = self.program.trace.variables, self.allocator.stats()
        kept = [v for v in self._values.on_device() if variables[v].persistent]
        return StepSnapshot(addresses(kept, self.placement.address), stats.maps + stats.unmaps)

    def _run(self, step: RunStep) -> None:
        call, place, guard = step.call, self.placement, self._guard
        changed = [(v, place.input_address(v, step.index)) for v in guard.changed_by(call)]
        # Inputs are looked up first: `begin` gives their storage to the outputs that reuse it.
        ins = [place.input_address(v, step.index) for v in call.ins]
        before = [(v, place.address(v)) for v in step.before]
        place.begin(step)
        outs = [place.run_address(v) for v in call.outs]
        after = [(v, place.run_address(v)) for v in step.after]
        launch, addresses = self._launches[call.id], (*ins, *outs, place.run_address(WORKSPACE))
        fresh = self._fresh(step)
        loss_at = place.run_address(guard.loss) if guard.loss in call.outs else None

        def work() -> None:  # what differs from step to step is looked up when it is called
            self._poison_fresh(fresh)
            self._capture(before)
            if self._guard.lets(call, changed, ins):
                with self._failing():
                    launch(addresses, self._own.get(call.id, self._scalars))
                if changed:
                    self._guard.look_at_changes(call, outs)
            self._capture(after)
            if loss_at is not None:
                self._guard.look(loss_at)

        self._submit(COMPUTE, step.waits, work, step.index)

    def _end(self, step: EndStep) -> None:
        blocks = list(self.placement.scratch.values())
        gone = self._fill_freed([(b.address, b.requested_bytes) for b in blocks], step.waits)
        self.placement.end(step, (self._streams.event(gone),))

    def _free(self, step: FreeStep) -> None:
        if step.lo < step.hi:
            address = self.placement.address(step.var, step.index) + step.lo
            gone = self._fill_freed([(address, step.hi - step.lo)], step.waits)
            self.placement.release(step, (self._streams.event(gone),))

    def _copy_out(self, step: OutStep) -> None:
        self._count_host(step)
        address, size = self.placement.address(step.var, step.index) + step.lo, step.hi - step.lo
        work = partial(self.device.copy_out, address, step.host_offset, size)
        self._submit(OUT, step.waits, work, step.index)

    def _copy_in(self, step: InStep) -> None:
        self._count_host(step)
        self.placement.claim(step.var, step.lo, step.hi)
        address, size = self.placement.address(step.var, step.index) + step.lo, step.hi - step.lo

        def work() -> None:
            self._poison_fresh([(address, size)])
            self.device.copy_in(address, step.host_offset, size)
            if self._poison is not None and step.host_last_bytes == size:
                self.device.fill_host(step.host_offset, size, self._poison)

        self._submit(self._streams.count - 1, step.waits, work, step.index)

    # What work does on its stream.

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What is raised within it fails the step, which is walked to its end (`Guard.fail`); a
        device that fails ends it at once."""
        try:
            yield
        except (DriverError, TransferError):
            raise
        except BaseException as error:
            self._guard.fail(error)

    def _poison_fresh(self, fresh: Sequence[tuple[int, int]]) -> None:
        """Fills what was claimed, if poison is wanted."""
        if self._poison is not None:
            for address, size in fresh:
                self.device.fill(address, size, self._poison)

    def _capture(self, places: Sequence[tuple[int, int]]) -> None:
        for variable, address in places:
            size = self.program.trace.variables[variable].value_bytes
            self._outputs[variable] = self.device.capture(address, size)

    # Small parts of issuing.

    def _bound(self, call: Call) -> BoundCall:
        """What runs a call, wherever its variables lie."""
        variables = self.program.trace.variables
        ins, outs = (
            [Spec(variables[v].shape, variables[v].dtype) for v in found]
            for found in (call.ins, call.outs)
        )
        return self.device.bind(call.op, ins, outs, call.workspace_bytes)

    def _fresh(self, step: RunStep) -> Sequence[tuple[int, int]]:
        """What a Run has claimed, as (address, bytes) to be poisoned."""
        if self._poison is None:
            return ()
        place = self.placement
        blocks = [place.scratch.get(v) or place.blocks.get(v) for v in (*step.fresh, WORKSPACE)]
        return [(b.address, b.requested_bytes) for b in blocks if b is not None]

    def _fill_freed(self, places: Sequence[tuple[int, int]], waits: Waits) -> Waits:
        """Poisons freed memory after its last use; the program counts on this piece of work.

        Returns:
            The waits after which no stream touches it any more.
        """
        if self._poison is None or not places:
            return waits

        def work() -> None:
            for address, size in places:
                self.device.fill(address, size, self._poison or 0)

        filled = self._submit(COMPUTE, waits, work)
        return (filled, *waits[1:])

    def _count_host(self, step: InStep | OutStep) -> None:
        self._host_peak = max(self._host_peak, step.host_ledger_bytes)

    def _bytes_given(self, values: Mapping[int, np.ndarray], variable: int) -> np.ndarray:
        described = self.program.trace.variables[variable]
        return to_bytes(value_given(values, variable, described), described)

    def _expect_sound(self) -> None:
        self.expect_idle()
        if self._broken is not None:
            raise OoctrainError(
                "this session has stopped: what persists is not whole any more", code="OOC-160",
                where=f"after {self._broken!r}", fix="begin again from the last checkpoint",
            ) from self._broken  # fmt: skip
        self.device.attach()


def host_extent_bytes(trace: Trace, schedule: Schedule, align_bytes: int = SLOT_ALIGN_BYTES) -> int:
    """Size of the host slab that a schedule needs: exactly the extent of its host slots, which
    start at multiples of `align_bytes`."""
    return host_slots(trace, schedule, align_bytes=align_bytes).extent_bytes


# Persistent values where a step leaves them: on the device, on the host, or split over both, byte
# range by byte range. Between steps a value is assembled from these ranges, and a new one is
# written back to them, so that callers need not know what was swapped out. Inputs take the same
# path, but the host does not wait for them.


#: A value is read in pieces, so that it is there once, and a piece of it twice.
PIECE_BYTES = 4 << 20


class BetweenSteps:
    """Reads and writes values while no step is under way.

    Args:
        program: its start says where every value lies.
        placement: says at which address.
    """

    def __init__(self, program: Program, device: Device, placement: Placement):
        self.trace, self.device, self.placement = program.trace, device, placement
        self._start_device, self._start_host = start_ranges(program)

    def on_device(self) -> Iterator[int]:
        """The variables that are on the device, whole or in part, before a step."""
        return filter(self._is_on_device, self.trace.initial)

    def read(self, variable: int) -> np.ndarray:
        """A copy of the true value of a persistent variable, physical layout, in own pages."""
        described = self.trace.variables[variable]
        data = own_pages(described.value_bytes)
        for lo, hi, offset in _in_pieces(self._start_host.get(variable, ())):
            data[lo:hi] = self.device.host(offset, hi - lo)
        for lo, hi, address in _in_pieces(self._places_on_device(variable)):
            data[lo:hi] = self.device.read(address, hi - lo)
        return data.view(described.dtype).reshape(physical_shape(described.shape))

    def put(self, variable: int, data: np.ndarray) -> None:
        """Writes the bytes of a variable to wherever they belong."""
        address = self.placement.address(variable) if self._is_on_device(variable) else 0
        self._write(variable, data, address, self.device.write)

    def feed(self, variable: int, value: Any, places: Mapping[int, int]) -> None:
        """Writes an input; the host does not wait until it is there.

        Args:
            places: {variable: its address}, of those that are on the device.
        """
        data = to_bytes(value, self.trace.variables[variable])
        self._write(variable, data, places.get(variable, 0), self.device.feed)

    def forget(self, variable: int) -> None:
        """Gives back what the device can of a variable's memory; its value is lost."""
        for lo, hi, address in self._places_on_device(variable):
            self.device.discard(address, hi - lo)

    def _places_on_device(self, variable: int) -> list[tuple[int, int, int]]:
        """(lo, hi, address of lo) of its ranges there."""
        described = self.trace.variables[variable]
        if described.pinned:
            ranges = [(0, described.value_bytes)]
        else:
            ranges = self._start_device.get(variable, [])
        begin = self.placement.address(variable) if ranges else 0
        return [(lo, hi, begin + lo) for lo, hi in ranges if lo < hi]

    def _is_on_device(self, variable: int) -> bool:
        return self.trace.variables[variable].pinned or variable in self._start_device

    def _write(
        self, variable: int, data: np.ndarray, address: int,
        write: Callable[[int, np.ndarray], None],
    ) -> None:  # fmt: skip
        if self.trace.variables[variable].pinned:
            write(address, data)
        for lo, hi, offset in self._start_host.get(variable, ()):
            self.device.write_host(offset, data[lo:hi])
        for lo, hi in self._start_device.get(variable, ()):
            write(address + lo, data[lo:hi])


def _in_pieces(ranges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """(lo, hi, where lo is) of ranges, cut."""
    for lo, hi, place in ranges:
        for begin in range(lo, hi, PIECE_BYTES):
            yield begin, min(hi, begin + PIECE_BYTES), place + begin - lo


# The state at the start of a step: which ranges of which variables lie on the device or the host.


#: Bytes that are poisoned at a time.
_POISONED_BYTES = 16 << 20


def check_slab(program: Program, device: Device) -> None:
    """Raises PlanMismatch: the host slab is too small. Poisons it, if that is wanted."""
    needed = program.slots.extent_bytes
    if device.host_bytes < needed:
        raise PlanMismatch(
            "the host slab is smaller than the schedule's host slots",
            numbers=f"slab {device.host_bytes} B, slots {needed} B",
            fix="make the device with host_bytes=host_extent_bytes(trace, schedule)",
        )
    if device.debug.poison is not None:
        for lo in range(0, needed, _POISONED_BYTES):  # the slab may be larger than memory
            size_bytes = min(needed - lo, _POISONED_BYTES)
            device.write_host(lo, np.full(size_bytes, device.debug.poison, np.uint8))


def start_ranges(
    program: Program,
) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[tuple[int, int, int]]]]:
    """By variable: ranges on the device, and on the host with their offsets, before a step."""
    on_device: dict[int, list[tuple[int, int]]] = {}
    for variable, lo, hi in program.schedule.start_device:
        if lo < hi:  # what has no bytes has no block
            on_device.setdefault(variable, []).append((lo, hi))
    on_host: dict[int, list[tuple[int, int, int]]] = {}
    starts = zip(program.schedule.start_host, program.slots.start_offsets, strict=True)
    for (variable, lo, hi), offset in starts:
        on_host.setdefault(variable, []).append((lo, hi, offset))
    return on_device, on_host


# Checks after each instruction, for finding bugs: the allocator's books against the row of the
# ledger (paper 000, equation 2), and its waste.


def compare_ledger(row: Issued, allocator: Allocator) -> None:
    """Raises OoctrainError: the allocator has granted other than the ledger says."""
    granted = allocator.stats().granted_bytes
    if granted != row.ledger_bytes:
        raise OoctrainError(
            "the allocator holds other than the ledger says", code="OOC-161",
            where=f"instruction {row.index}",
            numbers=f"granted {granted} B, ledger {row.ledger_bytes} B",
            fix="`oc.testing.check_allocator(...)` finds the smallest case",
        )  # fmt: skip


def check_waste(row: Issued, allocator: Allocator) -> None:
    """Each block wastes less than a chunk; and the arena is enough. Raises OoctrainError."""
    stats, budget = allocator.stats(), allocator.budget_bytes
    blocks = stats.allocations - stats.frees
    most = blocks * allocator.granule.size_bytes
    if stats.internal_bytes > max(0, most - blocks) or stats.peak_reserved_bytes > budget:
        raise OoctrainError(
            "the allocator wastes more than its rounding can, or more than there is",
            code="OOC-161", where=f"instruction {row.index}",
            numbers=f"lost to rounding {stats.internal_bytes} B in {blocks} blocks, less than "
            f"{most} B expected; reserved {stats.peak_reserved_bytes} B of {budget} B",
            fix="`oc.testing.check_allocator(...)` finds the smallest case",
        )  # fmt: skip
