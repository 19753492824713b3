"""A schedule made ready to be walked: for each instruction its waits as counts, its host slot.

Everything that is the same in every training step is worked out once, from a trace, a schedule and
the number of streams, and kept as a `Program` of steps. The table (`sched/ledger.py`) says which
listed instructions must be done first; here each of them becomes "piece n of stream s", so that at
run time an instruction waits for one number per stream. Source: docs/schedule.md, "Instructions",
the table's last column. Read next: `placement.py`, then `executor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ooctrain.errors import ConfigError, PlanMismatch
from ooctrain.sched.budget import with_region
from ooctrain.sched.host import SLOT_ALIGN_BYTES, HostSlots, host_slots
from ooctrain.sched.ledger import Issued, peaks, start_bytes, walk
from ooctrain.sched.planning.planner import collecting_rarely
from ooctrain.sched.schedule import End, Free, Run, Schedule, SwapIn, SwapOut
from ooctrain.step.trace import Call, Trace
from ooctrain.units import Granule

Waits = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunStep:
    """Runs a call.

    Args:
        waits: for each stream how many pieces must be done first.
        fresh: its outputs that need a block.
        taken: (output, input) whose storage moves from the one to the other.
        scratch: its outputs that go at End.
        before, after: variables whose value is wanted as it is before, or after, this Run.
    """

    index: int
    waits: Waits
    call: Call
    fresh: tuple[int, ...]
    taken: tuple[tuple[int, int], ...]
    scratch: tuple[int, ...]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EndStep:
    """Gives back the workspace and the scratch outputs of the last Run, once `waits` is reached."""

    index: int
    waits: Waits


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Copies bytes [lo, hi) of a variable between its block and the host slab.

    Args:
        host_offset: where the bytes lie in the slab.
        host_ledger_bytes: the host ledger from its issue on.
        host_last_bytes: bytes of it that no later copy touches.
    """

    index: int
    waits: Waits
    var: int
    lo: int
    hi: int
    host_offset: int
    host_ledger_bytes: int
    host_last_bytes: int


class OutStep(CopyStep):
    """From the device to the host."""

    __slots__ = ()


class InStep(CopyStep):
    """From the host to the device, into a range claimed for it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FreeStep:
    """Gives bytes [lo, hi) of a variable back, once `waits` is reached."""

    index: int
    waits: Waits
    var: int
    lo: int
    hi: int


Step = RunStep | EndStep | OutStep | InStep | FreeStep


@dataclass(frozen=True, slots=True)
class Program:
    """A schedule ready to be walked.

    Args:
        trace, schedule: what it was made from; the schedule rounds with the allocator's granule.
        issued: the table's row of each step.
        steps: one for each row that does something.
        rows: for each step the position of its row in `issued`.
        slots: where host copies lie.
        peak_bytes, host_peak_bytes: peaks of the ledgers.
        host_start_bytes: the host ledger before the first step of the list.
        parted: variables of whose storage parts come and go.
    """

    trace: Trace
    schedule: Schedule
    issued: tuple[Issued, ...]
    steps: tuple[Step, ...]
    rows: tuple[int, ...]
    slots: HostSlots
    peak_bytes: int
    host_peak_bytes: int
    host_start_bytes: int
    parted: frozenset[int]


class Rounding(Protocol):
    """An allocator, or the choice of one, as far as a program depends on it."""

    @property
    def name(self) -> str:
        """As users type it, with parameters."""
        ...

    @property
    def granule(self) -> Granule:
        """How it rounds, and whether it has ranges."""
        ...


@collecting_rarely()
def make_program(
    trace: Trace, schedule: Schedule, allocator: Rounding, *, streams: int = 3,
    wanted: Sequence[int] = (), fills: bool = False, align_bytes: int | None = SLOT_ALIGN_BYTES,
) -> Program:  # fmt: skip
    """Prepares a legal schedule (`verify`) for an allocator.

    Args:
        allocator: the schedule's ranges must be possible with its granule.
        streams: 3, or 2 where both copy directions share one.
        wanted: variables whose value is to be handed out.
        fills: freed memory is filled with poison, as a piece of work of the compute stream.
        align_bytes: every host slot starts at a multiple of it; None: a replay of the list asks
            the allocator alone, and nothing gets a place on the host.

    Raises:
        PlanMismatch: ranges that the allocator cannot hold.
        ConfigError: a wanted variable that no Run touches.
    """
    schedule = fit_granule(trace, schedule, allocator)
    parted = _parted(trace, schedule)
    issued = tuple(walk(trace, schedule))
    if align_bytes is None:
        nowhere = dict.fromkeys(range(len(schedule.instructions)), 0)
        slots = HostSlots(nowhere, (0,) * len(schedule.start_host), 0)
    else:
        slots = host_slots(trace, schedule, align_bytes=align_bytes)
    capture = _captures(trace, issued, wanted)
    numbering = _Numbering(streams, fills)
    steps: list[Step] = []
    rows: list[int] = []
    for position, row in enumerate(issued):
        waits = numbering.issue(row)
        step = _make_step(trace, row, waits, slots, capture.get(row.index, ((), ())))
        if step is not None:
            steps.append(step)
            rows.append(position)
    peak, host_peak = peaks(issued, schedule)
    return Program(
        trace, schedule, issued, tuple(steps), tuple(rows), slots, peak, host_peak,
        start_bytes(schedule)[1], parted,
    )  # fmt: skip


def fit_granule(trace: Trace, schedule: Schedule, allocator: Rounding) -> Schedule:
    """The schedule with its ledger in the allocator's granule, and the trace's region in it.

    Raises:
        PlanMismatch: it moves parts that the allocator cannot hold.
    """
    granule = allocator.granule
    for variable, lo, hi in _parts(trace, schedule):
        size = trace.variables[variable].nbytes
        aligned = not lo % granule.size_bytes and (hi == size or not hi % granule.size_bytes)
        if not (granule.ranges and aligned):
            raise PlanMismatch(
                "the plan moves a part of a variable that this allocator cannot hold by itself",
                where=f"{trace.variables[variable].name} [{lo}, {hi})",
                numbers=f"granule {granule.size_bytes} B"
                + ("" if granule.ranges else ", whole variables only"),
                fix=f'oc.plan(..., allocator="{allocator.name}")',
            )
    needed = with_region(granule, trace)
    if granule.size_bytes == schedule.granule.size_bytes:  # planned for it, perhaps with more
        fixed_bytes = max(needed.fixed_bytes, schedule.granule.fixed_bytes)
        needed = replace(needed, fixed_bytes=fixed_bytes)
    return replace(schedule, granule=needed)


def _parts(trace: Trace, schedule: Schedule) -> list[tuple[int, int, int]]:
    """Ranges of the list that are not all of a variable."""
    ranges = [*schedule.start_device] + [
        (i.var, i.lo, i.hi) for i in schedule.instructions if isinstance(i, SwapIn | SwapOut | Free)
    ]
    return [(v, lo, hi) for v, lo, hi in ranges if (lo, hi) != (0, trace.variables[v].nbytes)]


def _parted(trace: Trace, schedule: Schedule) -> frozenset[int]:
    """Variables moved in parts, and all that have the same storage before or after them."""
    shared: dict[int, list[int]] = {}
    moves = [pair for call in trace.calls for pair in call.reuse.items()]
    for one, other in [*moves, *trace.carries.items()]:
        shared.setdefault(one, []).append(other)
        shared.setdefault(other, []).append(one)
    found: set[int] = set()
    queue = [variable for variable, _, _ in _parts(trace, schedule)]
    while queue:
        variable = queue.pop()
        if variable not in found:
            found.add(variable)
            queue += shared.get(variable, ())
    return frozenset(found)


class _Numbering:
    """Turns list positions into piece numbers of streams."""

    def __init__(self, streams: int, fills: bool):
        self._lane = {"C": 0, "D": 1, "H": streams - 1}
        self._count = [0] * streams
        self._piece: dict[int, tuple[int, int]] = {}  # by list position: (stream, number)
        self._fills = fills
        self._last_fill = 0

    def issue(self, row: Issued) -> Waits:
        """The waits of a row; counts it on its stream."""
        waits = [0] * len(self._count)
        for index in row.waits:
            lane, number = self._piece[index]
            waits[lane] = max(waits[lane], number)
        if row.claim_bytes:
            # Where freed memory is poisoned, that is its last use.
            waits[0] = max(waits[0], self._last_fill)
        if row.stream:
            lane = self._lane[row.stream]
            self._count[lane] += 1
            self._piece[row.index] = (lane, self._count[lane])
        elif self._fills and row.release_bytes:
            self._count[0] += 1
            self._last_fill = self._count[0]
        return tuple(waits)


def _make_step(
    trace: Trace, row: Issued, waits: Waits, slots: HostSlots,
    capture: tuple[tuple[int, ...], tuple[int, ...]],
) -> Step | None:  # fmt: skip
    match row.instruction:
        case Run(call_id, keep):
            call = trace.calls[call_id]
            kept = call.outs if keep is None else keep
            return RunStep(
                row.index, waits, call,
                tuple(v for v in call.outs if v not in call.reuse),
                tuple(call.reuse.items()),
                tuple(v for v in call.outs if v not in kept),
                *capture,
            )  # fmt: skip
        case End():
            return EndStep(row.index, waits)
        case SwapOut(var, lo, hi) | SwapIn(var, lo, hi):
            kind = OutStep if row.stream == "D" else InStep
            return kind(
                row.index, waits, var, lo, hi, slots.offsets[row.index],
                row.host_ledger_bytes, row.host_last_bytes,
            )  # fmt: skip
        case Free(var, lo, hi):
            return FreeStep(row.index, waits, var, lo, hi)
        case _:  # a Fence is in the waits of what follows it
            return None


def _captures(
    trace: Trace, issued: Sequence[Issued], wanted: Sequence[int]
) -> Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """{position of a Run: (wanted before it, wanted after it)}: the last Run that touches each."""
    last: dict[int, tuple[int, Call]] = {}
    for row in issued:
        if isinstance(row.instruction, Run):
            call = trace.calls[row.instruction.call]
            last.update(dict.fromkeys(call.touched(), (row.index, call)))
    capture: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for variable in dict.fromkeys(wanted):
        if variable not in last:
            raise ConfigError(
                f"no call touches {trace.variables[variable].name!r}",
                fix="a variable that some call makes or reads",
            )
        index, call = last[variable]
        before, after = capture.get(index, ((), ()))
        if variable in call.reuse.values():  # overwritten by this very call
            capture[index] = ((*before, variable), after)
        else:
            capture[index] = (before, (*after, variable))
    return capture
