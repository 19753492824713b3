"""Blocks by variable: the requests that a list makes of any allocator.

Steps in list order become requests to an allocator, always the same ones in the same order. The
list alone decides, when an instruction is issued, where variables lie, so the executor and the
replay that predicts fragmentation use the same `Placement` and cannot differ. Over memory without
bytes the same requests say how large an arena must be, what mapping costs, and what a log would
hold. Source: docs/schedule.md, "Ledgers". Read next: `executor.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from ooctrain.alloc.base import Allocator, Block, Event, RangedAllocator, innermost
from ooctrain.alloc.dry_run import DryAllocator, DryMemory
from ooctrain.alloc.log import AllocationLog, Recorder, foresee
from ooctrain.alloc.registry import AllocatorChoice
from ooctrain.alloc.static import Forecast, Plannable
from ooctrain.alloc.wrappers import Checked
from ooctrain.devices.cpu.host_vm import PAGE_BYTES
from ooctrain.errors import DoesNotFit, OutOfDeviceMemory, ScheduleError, warn
from ooctrain.execution.program import (
    EndStep,
    FreeStep,
    InStep,
    Program,
    Rounding,
    RunStep,
    make_program,
)
from ooctrain.sched.budget import region
from ooctrain.sched.schedule import Schedule
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.units import MAX_BYTES, Granule, format_bytes

WORKSPACE = -1
PARAMETER_KINDS = ("param", "state", "wgrad")  # paper 004's pool of parameters and gradients
_MAX_ARENA_FACTOR = 64
#: Steps of a session that settles nowhere; as many are replayed.
MAX_STEPS = 16


class Placement:
    """The blocks of resident variables.

    Attributes:
        blocks: {variable: its block}, resident as a whole or in part.
        scratch: {variable or WORKSPACE: block} of the Run that has not ended.
    """

    def __init__(self, program: Program, allocator: Allocator):
        self.program, self.allocator = program, allocator
        self.blocks: dict[int, Block] = {}
        self.scratch: dict[int, Block] = {}
        self._variables = program.trace.variables
        self._ranged = allocator if isinstance(allocator, RangedAllocator) else None
        self._parted = program.parted
        self._small_bytes = program.schedule.granule.fixed_bytes
        self._offsets = dict(region(program.trace).offsets)
        self._small: Block | None = None
        self._held: dict[int, int] = {}  # resident bytes of each block's variable
        planned = innermost(allocator)
        if isinstance(planned, Plannable):
            planned.load_plan(forecast(program, planned.granule))

    def claim_start(self) -> None:
        """Claims what the schedule's start wants on the device and the last step did not leave.

        The region of small objects comes first, and stays.
        """
        if self._small is None and self._small_bytes:
            self._small = self.allocator.allocate(self._small_bytes, "small objects")
        start = self.program.schedule.start_device
        for variable, lo, hi in [r for r in start if r[0] not in self.blocks]:
            self.claim(variable, lo, hi)

    def claim(self, variable: int, lo: int, hi: int) -> None:
        """Makes a range resident."""
        if lo == hi:
            return
        self.blocks[variable] = self._claim(variable, lo, hi, self.blocks.get(variable))
        self._held[variable] = self._held.get(variable, 0) + hi - lo

    def release(self, step: FreeStep, after: Sequence[Event] = ()) -> None:
        """Gives a range back; with its last range the block goes."""
        if step.lo == step.hi:
            return
        if step.var not in self.blocks:
            raise self._absent("R204", step.var, step.index)
        left = self._held[step.var] - (step.hi - step.lo)
        if left:
            assert self._ranged is not None, "fit_granule lets no part pass"
            self._ranged.unmap_range(self.blocks[step.var], step.lo, step.hi, after)
            self._held[step.var] = left
        else:
            self.allocator.free(self._forget(step.var), after)

    def begin(self, step: RunStep) -> None:
        """Claims the outputs and the workspace of a Run, and moves reused storages."""
        for out, source in step.taken:
            if self._size(source):
                self._settle(step, out, self._forget(source))
        for out in step.fresh:
            if self._size(out):
                self._settle(step, out, self._claim(out, 0, self._size(out)))
        if step.call.workspace_bytes:
            tag = f"{step.call.name} workspace"
            self.scratch[WORKSPACE] = self.allocator.allocate(step.call.workspace_bytes, tag)

    def end(self, step: EndStep, after: Sequence[Event] = ()) -> None:
        """Gives back the scratch of the last Run."""
        for block in self.scratch.values():
            self.allocator.free(block, after)
        self.scratch.clear()

    def carry(self) -> None:
        """Ends the step: updated variables take their old names, what does not persist goes."""
        for new, old in self.program.trace.carries.items():
            if new in self.blocks:
                self.blocks[old], self._held[old] = self.blocks.pop(new), self._held.pop(new)
            elif new in self._offsets:  # two places, unless the update was made in place
                there = self._offsets
                there[old], there[new] = there[new], there[old]
        for variable in [v for v in self.blocks if not self._variables[v].persistent]:
            self.allocator.free(self._forget(variable))

    def address(self, variable: int, index: int | None = None) -> int:
        """Where a resident variable lies; 0 for what has no bytes.

        Raises:
            ScheduleError: nothing of it is resident. The verifier finds this before the first step.
        """
        block = self.blocks.get(variable)
        if block is not None:
            return block.address
        if self._small is not None and variable in self._offsets:
            return self._small.address + self._offsets[variable]
        if self._size(variable):
            raise self._absent("R204", variable, index)
        return 0

    def input_address(self, variable: int, index: int) -> int:
        """Where an input of a Run lies. Raises ScheduleError: it is not resident as a whole."""
        if self._held.get(variable, 0) != self._size(variable):
            raise self._absent("R201", variable, index)
        return self.address(variable)

    def run_address(self, variable: int) -> int:
        """Where the Run that has not ended has an output, an input or WORKSPACE.

        An output that is scratch may be resident besides, with its earlier value.
        """
        block = self.scratch.get(variable)
        if block is not None:
            return block.address
        return 0 if variable == WORKSPACE else self.address(variable)

    def _absent(self, rule: str, variable: int, index: int | None) -> ScheduleError:
        return ScheduleError(
            f"{self._variables[variable].name!r} is not resident", rule=rule, index=index,
            where=f"instruction {index}", fix="verify(plan) says what is wrong with the list",
        )  # fmt: skip

    def _claim(self, variable: int, lo: int, hi: int, block: Block | None = None) -> Block:
        """Bytes [lo, hi) of a variable: in its block, or in a new one."""
        name, size = self._variables[variable].name, self._size(variable)
        if variable not in self._parted:
            return self.allocator.allocate(size, name)
        assert self._ranged is not None, "fit_granule lets no part pass"
        fresh = block is None
        block = block or self._ranged.reserve(size, name)
        try:
            self._ranged.map_range(block, lo, hi)
        except BaseException:
            if fresh:
                self.allocator.free(block)
            raise
        return block

    def _settle(self, step: RunStep, out: int, block: Block) -> None:
        if out in step.scratch:
            self.scratch[out] = block
        else:
            self.blocks[out], self._held[out] = block, self._size(out)

    def _forget(self, variable: int) -> Block:
        del self._held[variable]
        return self.blocks.pop(variable)

    def _size(self, variable: int) -> int:
        return self._variables[variable].nbytes


class Settling:
    """Watches where steps end: whether what persists is where it was after an earlier step.

    Steps that begin with the same layout go on alike forever, and a replay of those until then
    shows the whole future. Where an allocator does not come to that (a plan that moves parameters,
    on an allocator with holes), a replay shows `MAX_STEPS` steps, and a trainer opens its session
    anew after these (`residence.py`), where all begins again.

    Args:
        placement: that of the steps, from their first one on.

    Attributes:
        settled: a step has ended as an earlier one did; or any free chunks make a block, so that
            places do not matter.
    """

    def __init__(self, placement: Placement):
        self.placement = placement
        self.settled = placement.allocator.granule.ranges
        self._seen: set[tuple[tuple[int, int], ...]] = set()

    @property
    def worn(self) -> bool:
        """Whether the steps that a replay has shown are over, and nothing is settled."""
        return not self.settled and len(self._seen) >= MAX_STEPS

    def after_step(self) -> None:
        """Looks at a step's end. Cost: O(p log p) for p blocks that persist, until it is settled.

        More than `MAX_STEPS` are not looked at.
        """
        if self.settled or self.worn:
            return
        blocks = self.placement.blocks
        layout = tuple(sorted((v, block.address) for v, block in blocks.items()))
        self.settled = layout in self._seen
        self._seen.add(layout)


def reserved_peak(schedule: Schedule, trace: Trace, choice: AllocatorChoice) -> int:
    """Bytes of arena that a schedule needs on an allocator, its holes included.

    The list is replayed over memory without bytes, step after step until a step ends with the
    layout of an earlier one (`Settling`): persistent variables may end a step elsewhere than
    they began it. One step will do where any free chunks make a block: nothing depends on it.

    Raises:
        DoesNotFit: not even many times the ledger's peak would do.
        PlanMismatch: the allocator cannot hold the schedule's ranges, or hands out blocks that
            cannot be used.

    Cost: a few microseconds an instruction.
    """
    program = make_program(trace, schedule, choice, align_bytes=None)
    arena_bytes = choice.granule.granted(max(program.peak_bytes, PAGE_BYTES))
    factor = 1
    while factor <= _MAX_ARENA_FACTOR:
        with suppress(OutOfDeviceMemory):
            return _replay(program, choice, DryMemory(arena_bytes * factor))
        factor *= 2
    raise DoesNotFit(
        f"allocator {choice.name!r} places this step in no arena: its blocks climb",
        reserved_bytes=MAX_BYTES, budget_bytes=arena_bytes * _MAX_ARENA_FACTOR,
        numbers=f"{_MAX_ARENA_FACTOR} times the {format_bytes(arena_bytes)} that the step holds at "
        "the peak were tried", fix="allocator va, which does not fragment",
    )  # fmt: skip


def reserved_within(
    schedule: Schedule, trace: Trace, choice: AllocatorChoice, arena_bytes: int
) -> int:
    """What an allocator reserves of an arena of a given size.

    It may be less than `reserved_peak`, whose arena is as large as need be: an allocator that
    caches gives back what is unused before it refuses.

    Raises:
        OutOfDeviceMemory: the arena is too small.
        PlanMismatch: as `reserved_peak`.
    """
    return _replay(
        make_program(trace, schedule, choice, align_bytes=None), choice, DryMemory(arena_bytes)
    )


def forecast(program: Program, granule: Granule) -> Forecast:
    """The requests of a program in each round of one step, or of two.

    An updated parameter that does not take over the old one's storage is made while the old one is
    still there; the next step's takes the place that has become free: the places alternate, and a
    round is two steps.
    """
    recorder = Recorder(DryAllocator(granule))
    placement = Placement(program, recorder)
    placement.claim_start()
    start = {v: _number(block) for v, block in placement.blocks.items()}
    parameters = {v.name for v in program.trace.variables if v.kind in PARAMETER_KINDS}
    for _ in range(2):
        placement.claim_start()
        play_step(placement)
        left = placement.blocks
        carried = [(start[v], _number(left[v])) for v in left if v in start]
        found = replace(foresee(recorder.requests, parameters), carried=tuple(carried))
        lives = found.lifetimes
        if all(first == last or lives[first].end <= lives[last].begin for first, last in carried):
            break
    return found


def _number(block: Block) -> int:
    """Its position among all blocks that the recording allocator has handed out."""
    return block.id - 1


def _replay(program: Program, choice: AllocatorChoice, memory: DryMemory) -> int:
    """The larger of what the allocator says that it reserves, and, where its blocks lie in one
    piece of memory, how much of that they reach over."""
    allocator = Checked(choice.make(memory))
    placement = Placement(program, allocator)
    settling, played = Settling(placement), False
    while not (played and settling.settled) and not settling.worn:
        placement.claim_start()
        play_step(placement)
        settling.after_step()
        played = True
    base = memory.linear_address
    reached_bytes = 0 if base is None else allocator.highest_end - base
    booked_bytes = allocator.stats().peak_reserved_bytes
    if booked_bytes < reached_bytes:
        warn(
            f"allocator {choice.name} says that {format_bytes(booked_bytes)} are reserved, and its "
            f"blocks span {format_bytes(reached_bytes)}, holes included, which counts; "
            "oc.testing.check_allocator shows it as law P19"
        )
    return max(booked_bytes, reached_bytes)


def play_step(placement: Placement) -> None:
    """Makes the requests of one step, from behind its start (`claim_start`) to its end."""
    for step in placement.program.steps:
        if isinstance(step, RunStep):
            for variable in step.call.ins:
                placement.input_address(variable, step.index)
            placement.begin(step)
        elif isinstance(step, EndStep):
            placement.end(step)
        elif isinstance(step, InStep):
            placement.claim(step.var, step.lo, step.hi)
        elif isinstance(step, FreeStep):
            placement.release(step)
    placement.carry()


# The cost of mapping, the part of a step's time that no list shows. Lists of whole variables find
# the places of the last step and map nothing (`alloc/virtual.py`). Lists that move parts of
# variables get other chunks in each step, and mapping these is work of the thread that issues the
# list. Which bytes are mapped depends on the requests alone, so an allocator over memory without
# bytes counts them. Source: paper 000, section 4, where mapping is the cost of virtual addressing.


#: The first step maps what every plan maps once, the second what has moved since.
SETTLING_STEPS = 2
COUNTED_STEPS = 3


def maps_dearly(machine: Machine, choice: AllocatorChoice) -> bool:
    """Whether it takes longer to map a byte than to copy it to the host, and parts are mapped."""
    return choice.granule.ranges and machine.map_us_per_byte * machine.link_bytes_per_us > 1


class CountingMemory(DryMemory):
    """Memory without bytes that counts how many of them an allocator maps.

    Attributes:
        mapped_bytes: total of all map calls so far.
    """

    def __init__(self, size_bytes: int):
        super().__init__(size_bytes)
        self.mapped_bytes = 0

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Adds the size to `mapped_bytes`; nothing is mapped."""
        self.mapped_bytes += size_bytes


def mapped_by_step(
    schedule: Schedule, trace: Trace, choice: AllocatorChoice, steps: int
) -> list[int]:
    """Bytes that the allocator maps in each of the first steps.

    What it maps when it is made is not counted.

    Args:
        choice: the allocator, with a budget that the schedule fits into.

    Raises:
        OutOfDeviceMemory: it does not fit.
        PlanMismatch: the schedule moves parts, and the allocator has none.

    Cost: some tens of microseconds an instruction and step where parts are moved.
    """
    memory = CountingMemory(choice.budget_bytes)
    placement = Placement(
        make_program(trace, schedule, choice, align_bytes=None), choice.make(memory)
    )
    counts = [memory.mapped_bytes]
    for _ in range(steps):
        placement.claim_start()
        play_step(placement)
        counts.append(memory.mapped_bytes)
    return [after - before for before, after in pairwise(counts)]


def mapped_bytes(schedule: Schedule, trace: Trace, choice: AllocatorChoice) -> float:
    """Bytes mapped in a step that follows others: the mean over `COUNTED_STEPS`, which differ."""
    found = mapped_by_step(schedule, trace, choice, SETTLING_STEPS + COUNTED_STEPS)
    counted = found[SETTLING_STEPS:]
    return math.fsum(counted) / len(counted)


def with_mapping(
    machine: Machine, schedule: Schedule, trace: Trace, choice: AllocatorChoice
) -> Machine:
    """The machine with the time of a step's mapping added to `issue_us`, in equal shares for all
    instructions of the schedule.

    Args:
        choice: the allocator, with a budget that the schedule fits into.

    Raises:
        OutOfDeviceMemory, PlanMismatch: as `mapped_by_step`.
    """
    if not machine.map_us_per_byte or not len(schedule):
        return machine
    mapping_us = machine.map_us_per_byte * mapped_bytes(schedule, trace, choice)
    return replace(machine, issue_us=machine.issue_us + mapping_us / len(schedule))


# An allocation log from a schedule, without running it: since the requests are those of the
# executor, the log is the one that a real run would leave, whatever the size of the machine.


#: The first step maps and warms up; from the third on nothing changes any more.
LOGGED_STEPS = 3


def allocation_log(
    trace: Trace, schedule: Schedule, budget_bytes: int, allocator: Rounding | None = None,
    steps: int = LOGGED_STEPS,
) -> AllocationLog:  # fmt: skip
    """The requests of a schedule in its first steps.

    Args:
        budget_bytes: the budget that it was planned for; it is only noted.
        allocator: the allocator of these requests; None: any that rounds as was planned.

    Raises:
        PlanMismatch: the schedule moves parts that the allocator cannot hold.
    """
    program = make_program(trace, schedule, allocator or DryAllocator(schedule.granule))
    name, granule = allocator.name if allocator else "", program.schedule.granule
    recorder = Recorder(DryAllocator(granule, name))
    placement = Placement(program, recorder)
    for _ in range(steps):
        recorder.mark_step()
        placement.claim_start()
        play_step(placement)
    parameters = frozenset(v.name for v in trace.variables if v.kind in PARAMETER_KINDS)
    requests = tuple(recorder.requests)
    return AllocationLog(requests, name, granule, budget_bytes, parameters=parameters)
