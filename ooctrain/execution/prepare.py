"""From a trace to a step that is ready to run: planned for its allocator, and sure to fit.

A trace and `Settings` give a `PreparedStep`. The ledger is exact, but the allocator rounds and
fragments on top of it. Addresses depend on the list alone, so the list is replayed over the
allocator before the first step; if the reserved peak exceeds the budget, planning (`compose.py`) is
repeated with a smaller ledger limit (paper 000's figure 3, live). Read next: `sessions.py`, which
runs it; `train.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from ooctrain.alloc.registry import AllocatorChoice, choose_allocator
from ooctrain.devices.cpu.host_vm import PAGE_BYTES, why_no_virtual_memory
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.spill import BLOCK_BYTES, Spill, look_at
from ooctrain.errors import DoesNotFit, Infeasible, OutOfDeviceMemory, PlanMismatch
from ooctrain.execution.compose import RewrittenStep, plan_step, rewritten
from ooctrain.execution.placement import maps_dearly, reserved_peak, with_mapping
from ooctrain.execution.planners import as_planner
from ooctrain.execution.promise import Promise
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import keeps_bits
from ooctrain.sched.budget import input_bytes, resolve_host_budget, trace_peak_bytes, with_region
from ooctrain.sched.host import SLOT_ALIGN_BYTES, within_host
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planning.effort import Effort, collecting_rarely
from ooctrain.sched.planning.planner import Planner, infeasible, plan_excluding
from ooctrain.sched.planning.question import Question, makespan_us
from ooctrain.sched.schedule import BYTES, Plan, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.units import MAX_BYTES, format_bytes

#: How whole plans are compared; see `Question.cost`.
Cost = Callable[[Plan], float]
_LEAST_ARENA_BYTES = 1 << 20
BISECTION_STEPS = 6
#: Of the budget, for lasting variables that stay where mapping is dear.
LASTING_SHARE = 16
#: Of the time that is left, for one plan where more may have to be made.
FIRST_SHARE = 0.5
#: Longer than any step; and what counts for that where a plan is not exact.
NEVER_US, INEXACT_US = 1e15, 1e14


@dataclass(frozen=True)
class PreparedStep:
    """A step that fits.

    Args:
        original: the trace before rewriting.
        plan: verified; `plan.trace` is what runs.
        budget_bytes: size of the arena.
        allocator: chosen, not made.
        reserved_bytes: the allocator's reserved peak, fragmentation included.
        in_core_peak_bytes: what the same step needs without any eviction, in granted bytes.
        notices: what the user should know.
        promise: how `Settings.memory` was divided; None where it was not given.
    """

    original: Trace
    plan: Plan
    machine: Machine
    budget_bytes: int
    allocator: AllocatorChoice
    reserved_bytes: int
    in_core_peak_bytes: int
    notices: tuple[str, ...] = ()
    promise: Promise | None = None

    @property
    def host_written_bytes(self) -> int:
        """What a step writes to the host: swapped out, and inputs that wait there."""
        schedule, variables = self.plan.schedule, self.plan.trace.variables
        fed = [hi - lo for v, lo, hi in schedule.start_host if not variables[v].persistent]
        return sum(fed) + sum(i.hi - i.lo for i in schedule.instructions if isinstance(i, SwapOut))

    def predict(self, machine: Machine | None = None) -> Timeline:
        """The step as it will run, with what the allocator maps anew; the plan knows no allocator.

        Args:
            machine: to run on; None: that it was planned for.
        """
        plan = self.plan
        found = with_mapping(machine or self.machine, plan.schedule, plan.trace, self.allocator)
        return simulate(plan.schedule, plan.trace, found)


def share_bytes(trace: Trace, settings: Settings) -> int:
    """What a budget that is a percentage is of a step, in bytes; see `prepare`."""
    step = rewritten(trace, settings.rewrites)
    roomy = _pages(trace, settings).choose(
        settings.allocator, 2 * trace_peak_bytes(step.trace), binding=False
    )
    assert settings.budget is not None
    return step.pinned_for(roomy.granule).bytes_of(settings.budget)


@collecting_rarely()
def prepare(trace: Trace, settings: Settings) -> PreparedStep:
    """Rewrites, plans, verifies and replays a step.

    Raises:
        Infeasible: the planner finds no schedule within the budget.
        DoesNotFit: it does, but no ledger limit makes the allocator's reserved peak fit, or the
            host slab.
        ScheduleError: the planner returned an illegal schedule.
        ConfigError: an unknown name, or an invalid budget.
        DeviceUnavailable: the device is not there, or nothing can be compiled for it.
    """
    machine, pages = settings.find_machine(), _pages(trace, settings)
    notices = spill_notices(settings.spill, machine)  # first: no plan for a bad folder
    step = rewritten(trace, settings.rewrites)
    # An allocator may round coarser in a larger arena, so it is asked for one of about this size.
    roomy_bytes = 2 * trace_peak_bytes(step.trace)
    roomy = pages.choose(settings.allocator, roomy_bytes, binding=False)
    step = step.pinned_for(roomy.granule)
    in_core = KeepAll().plan(Question(step.trace, MAX_BYTES, machine, granule=step.granule))
    # A wrong name is an error, even where no budget is given and nothing is planned.
    chosen, budget = as_planner(settings.planner), settings.budget
    if budget is None:
        chosen, budget = KeepAll(), reserved_peak(in_core.schedule, step.trace, roomy)
    budget_bytes = step.bytes_of(budget)
    if budget_bytes < step.granule.size_bytes:
        # Not even one granule: no allocator can be made. The planner raises Infeasible.
        plan_excluding(chosen, Question(step.trace, budget_bytes, machine, step.granule))
    allocator = pages.choose(settings.allocator, budget_bytes)
    host_bytes = resolve_host_budget(step.trace, settings.host_budget, machine)
    step = step.rounded_by(allocator.granule)
    question = Question(
        step.trace, budget_bytes, machine, step.granule, host_bytes, settings.seed,
        Effort.within(settings.time_limit_s, settings.evaluations),
    )  # fmt: skip

    def planned(host_bytes: int | None) -> tuple[Plan, int]:
        asked = replace(question, host_budget_bytes=host_bytes)
        if maps_dearly(machine, allocator):
            room_bytes = budget_bytes // LASTING_SHARE
            pinned = step.with_lasting_pinned(room_bytes, allocator.granule)
            there = replace(asked, trace=pinned.trace, granule=pinned.granule)
            with suppress(Infeasible, DoesNotFit):
                return _Search(pinned, chosen, allocator, there).plan_that_fits()
        return _Search(step, chosen, allocator, asked).plan_that_fits()

    align_bytes = SLOT_ALIGN_BYTES if settings.spill is None else BLOCK_BYTES
    plan, reserved = within_host(planned, host_bytes, align_bytes, input_bytes(step.trace))
    return PreparedStep(
        trace, plan, machine, budget_bytes, allocator, reserved, in_core.peak_bytes,
        (*allocator.notices, *notices),
    )  # fmt: skip


def spill_notices(spill: Spill | None, machine: Machine) -> tuple[str, ...]:
    """What to know of the disk that is the host; it is looked at if it has not been.

    Raises:
        ConfigError: nothing can be spilled to the folder.
    """
    if spill is None:
        return ()
    place, disk = spill.place or look_at(spill.folder), machine.disk
    found = []
    if not place.direct:
        found.append(
            f"{place.file_system} does not pass the page cache by (O_DIRECT): each copy waits for "
            "the disk and empties its part of the cache"
        )
    if disk is None or os.path.realpath(disk.folder) != os.path.realpath(spill.folder):
        known = f"was measured in {disk.folder}" if disk else "is taken for one of 1 GB/s"
        command = f"ooctrain calibrate MODEL --spill {spill.folder}"
        found.append(f"the disk {known}; `{command}` measures it")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Pages:
    """How a device maps memory: the size of its pages, or why not at all."""

    size_bytes: int
    problem: str

    def choose(self, name: str, budget_bytes: int, *, binding: bool = True) -> AllocatorChoice:
        """An allocator by its name, for this device."""
        return choose_allocator(
            name, budget_bytes, lambda: self.problem, binding=binding, page_bytes=self.size_bytes
        )


def _pages(trace: Trace, settings: Settings) -> _Pages:
    """How the device maps, after a look at whether it is there and can run the trace at all.

    Raises:
        PlanMismatch: the trace has the other device's algorithms and workspaces.
        DeviceUnavailable, ConfigError: see `devices.cuda_open`.
    """
    if trace.device != settings.device:
        raise PlanMismatch(
            f"the step was traced for device {trace.device!r}, not {settings.device!r}",
            fix=f"oc.trace(..., device={settings.device!r})",
        )
    if settings.device == "cpu":
        return _Pages(PAGE_BYTES, why_no_virtual_memory())
    gpu = cuda_open.look_at_gpu()
    cuda_open.require_kernels(trace, gpu)
    cuda_open.require_compiler(gpu)
    return _Pages(gpu.granularity_bytes, gpu.mapping_problem)


@dataclass(frozen=True)
class _Search:
    """The search for a ledger limit whose plan the allocator can place within its budget."""

    step: RewrittenStep
    planner: Planner
    allocator: AllocatorChoice
    question: Question
    #: by limit, and by how plans are compared
    _asked: dict[tuple[int, Cost], tuple[Plan, int]] = field(default_factory=dict)

    def plan_that_fits(self) -> tuple[Plan, int]:
        """The plan at the largest limit found, with its reserved peak."""
        budget_bytes, cost = self.allocator.budget_bytes, self._mapping_cost
        try:
            plan, reserved = self._try(budget_bytes, cost)
        except Infeasible as refusal:
            raise self._in_whole_pieces(refusal) from None
        if reserved <= budget_bytes:
            return plan, reserved
        found = [self._below(budget_bytes, cost)]
        if isinstance(self.planner, Auto):
            # The fastest of its plans may be of a kind that the allocator cannot place.
            found.append(self._at(budget_bytes, self._us_if_placed))
            if not any(found):
                found.append(self._below(2 * budget_bytes, self._us_if_placed))
        best = min(filter(None, found), key=lambda each: self._us_if_placed(each[0]), default=None)
        if best is None:
            raise self._does_not_fit(reserved)
        return replace(best[0], notes={**best[0].notes, "reserved_at_budget": reserved}), best[1]

    def _in_whole_pieces(self, refusal: Infeasible) -> Infeasible:
        """The refusal with a least budget of which the allocator leaves nothing unused.

        What maps whole pieces cannot use the rest of a budget, however fine it rounds.
        """
        least, piece = refusal.minimum_bytes, self.allocator.piece_bytes or 1
        if least is None or least % piece == 0:
            return refusal
        least = -(-least // piece) * piece
        return infeasible(
            self.planner.name, self.question.budget_bytes, least, refusal.witness_call
        )

    def _at(self, limit: int, cost: Cost) -> tuple[Plan, int] | None:
        """The plan at a limit, if the allocator can place it. Raises Infeasible."""
        plan, reserved = self._try(limit, cost)
        return (plan, reserved) if reserved <= self.allocator.budget_bytes else None

    def _below(self, high: int, cost: Cost) -> tuple[Plan, int] | None:
        """The plan at the largest limit below `high` whose plan the allocator can place."""
        best: tuple[Plan, int] | None = None
        low = self._refused
        for _ in range(BISECTION_STEPS):
            limit = (low + high) // 2
            if self._whole(limit) <= self._refused:
                low = limit
                continue
            try:
                plan, reserved = self._try(limit, cost)
            except Infeasible:
                low = limit
                continue
            if reserved <= self.allocator.budget_bytes:
                notes = {**plan.notes, "ledger_limit_bytes": limit}
                best, low = (replace(plan, notes=notes), reserved), limit
            else:
                high = limit
        return best

    def _whole(self, limit_bytes: int) -> int:
        """Of a limit what the allocator can use: whole granules, and no more than its budget."""
        size = self.allocator.granule.size_bytes
        return max(1, min(limit_bytes, self.allocator.budget_bytes) // size * size)

    def _try(self, limit_bytes: int, cost: Cost) -> tuple[Plan, int]:
        """The plan at a limit, with its reserved peak; each is asked for once."""
        asked = self._whole(limit_bytes), cost
        if asked not in self._asked:
            self._asked[asked] = self._planned(*asked)
        return self._asked[asked]

    def _planned(self, limit: int, cost: Cost) -> tuple[Plan, int]:
        effort = self.question.effort
        if not self.allocator.granule.ranges:
            # Where the allocator has no place for the plan, others follow.
            effort = replace(effort, deadline=effort.deadline.keeping(1 - FIRST_SHARE))
        asked = replace(self.question, budget_bytes=limit, effort=effort, cost=cost)
        plan = plan_step(self.step, self.planner, asked)
        return plan, self._reserved(plan)

    def _reserved(self, plan: Plan) -> int:
        """The reserved peak of a plan; `MAX_BYTES` where the allocator's blocks climb forever."""
        try:
            return reserved_peak(plan.schedule, plan.trace, self.allocator)
        except DoesNotFit:
            return MAX_BYTES

    def _us_if_placed(self, plan: Plan) -> float:
        """Duration of a step; far too long where the allocator cannot place the plan, and longer
        than any with the bits of in-core where it has not got these.
        """
        if self._reserved(plan) > self.allocator.budget_bytes:
            return NEVER_US + plan.makespan_us
        return plan.makespan_us + (0 if keeps_bits(plan.rewrites) else INEXACT_US)

    @cached_property
    def _mapping_cost(self) -> Cost:
        """Planners that compare whole plans count what the allocator maps, if that takes time."""
        costs = self.allocator.maps and self.question.machine.map_us_per_byte
        return self._predicted_us if costs else makespan_us

    def _predicted_us(self, plan: Plan) -> float:
        """Duration of a step, mapping included; without mapping where the plan does not fit the
        allocator's budget, since then it is not known what it would map.
        """
        try:
            there = with_mapping(self.question.machine, plan.schedule, plan.trace, self.allocator)
        except OutOfDeviceMemory:
            return plan.makespan_us
        return simulate(plan.schedule, plan.trace, there).makespan_us

    @cached_property
    def _refused(self) -> int:
        return self._least_limit()

    def _least_limit(self) -> int:
        """A ledger limit at which, and below which, the planner finds nothing."""
        try:
            self._try(1, self._mapping_cost)
        except Infeasible as refusal:
            return (refusal.minimum_bytes or 0) - 1
        return 0

    def _does_not_fit(self, reserved: int) -> DoesNotFit:
        budget_bytes = self.allocator.budget_bytes
        needed = (
            "its blocks climb from step to step, beyond any arena; the ledger alone fits"
            if reserved == MAX_BYTES
            else f"reserved {format_bytes(reserved)}; the ledger alone fits: "
            f"{format_bytes(reserved - budget_bytes)} are fragmentation"
        )
        return DoesNotFit(
            f"no plan of {self.planner.name!r} fits on allocator {self.allocator.name!r}",
            reserved_bytes=reserved,
            budget_bytes=budget_bytes,
            numbers=f"budget {format_bytes(budget_bytes)}, {needed}",
            fix="allocator va, which does not fragment, or a larger budget",
        )


def placed(plan: Plan, settings: Settings) -> PreparedStep:
    """A plan as it stands, with an arena of the reserved peak that its allocator needs.

    Raises:
        PlanMismatch: the plan moves parts that this allocator cannot hold.
    """
    machine, pages = settings.find_machine(), _pages(plan.trace, settings)
    roomy_bytes = plan.peak_bytes  # rounds no coarser than the arena that it was planned for
    if plan.schedule.granule == BYTES:
        roomy_bytes = 2 * max(roomy_bytes, _LEAST_ARENA_BYTES)  # here rounding comes on top
    roomy = pages.choose(settings.allocator, roomy_bytes, binding=False)
    reserved = reserved_peak(plan.schedule, plan.trace, roomy)
    allocator = pages.choose(settings.allocator, reserved)
    in_core_bytes = trace_peak_bytes(plan.trace, with_region(allocator.granule, plan.trace))
    return PreparedStep(
        plan.trace, plan, machine, reserved, allocator, reserved, in_core_bytes, allocator.notices
    )
