"""Fit: from a step, and what there is of memory, to a plan that takes no more; one search.

A planner keeps the limits that it is given, but a step takes more than a planner counts: an
allocator rounds and leaves holes (paper 000's figure 3, live), slots of the host slab leave gaps, a
list may be longer than usual, and values take room on their way home. All of that follows from the
plan, as addresses depend on the list alone, so it is known before the first step: the list is
replayed over the allocator, over memory without bytes. So there is one predicate, a step that is
planned for some limits and takes no more than its room, and one search (`halved`): for the limit of
the ledger in a given budget, for the least budget or memory that a refusal names. Everything else
is a table of cases in turn: exact planners before others, planners that answer at once before those
that search, shares of the memory for the slab. docs/architecture.md draws it.

`--memory` is divided between the device's arena and the host's slab, on the cpu device the same
RAM. A theorem says where to look: **a list that runs each call once needs at least the in-core
peak, arena and slab together**, since every value that is still read is in one of the two. Swapping
to RAM therefore saves nothing of the sum; what saves is computing again, and bands, which need no
slab. So the first division gives the slab nothing but the inputs, and others are tried because
planners are not perfect. A slab on a disk (`--spill`) counts for its buffers alone.

What a refusal names is tried before it is said, with the same arguments. Plans need not get easier
with every byte, so nothing is concluded from what lies between two tries. Read next: `promise.py`
for the parts of a memory budget; `compose.py`, from limits to a verified plan; `sessions.py`, which
runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

from ooctrain.alloc.dry_run import DryAllocator
from ooctrain.alloc.registry import AllocatorChoice
from ooctrain.devices.cpu.host_vm import PAGE_BYTES
from ooctrain.devices.spill import BLOCK_BYTES, spill_notices
from ooctrain.errors import (
    ConfigError,
    DoesNotFit,
    Infeasible,
    OoctrainError,
    OutOfDeviceMemory,
)
from ooctrain.execution.compose import RewrittenStep, plan_step, rewritten
from ooctrain.execution.placement import maps_dearly, reserved_peak, with_mapping
from ooctrain.execution.planners import as_planner
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.promise import (
    OWN_STEP_BYTES,
    OwnShare,
    Promise,
    least_slab_bytes,
    parts_of,
    values_home_bytes,
)
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import keeps_bits
from ooctrain.rewrite.tile.banded import can_be_banded
from ooctrain.sched.budget import input_bytes, resolve_host_budget, trace_peak_bytes
from ooctrain.sched.host import SLOT_ALIGN_BYTES, slab_excess
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.host_gaps import is_short_of_host
from ooctrain.sched.planning.planner import Planner, collecting_rarely, infeasible, plan_excluding
from ooctrain.sched.planning.question import Question, makespan_us
from ooctrain.sched.schedule import Plan
from ooctrain.sched.simulate import simulate
from ooctrain.step.machine import Machine
from ooctrain.step.presets import PRESETS
from ooctrain.step.trace import Trace
from ooctrain.units import MAX_BYTES, MIB, Granule, format_bytes, parse_bytes

T = TypeVar("T")
#: How whole plans are compared; see `Question.cost`.
Cost = Callable[[Plan], float]
#: A plan, and the reserved peak of its allocator.
Placed = tuple[Plan, int]
CPU_PRESET = "cpu-generic"

# How often something is tried.

#: Limits of the ledger, where the allocator cannot place the plan at the whole budget.
LEDGER_TRIES = 6
#: Plans in one room, each with as much less as the one before took too much; and what the arena
#: gives up beyond that, since the next list may be longer still.
ROOM_TRIES, SPARE_BYTES = 4, MIB
#: Budgets that refusals name, one after the other; and the interval between too little and enough.
NAMED_TRIES, BUDGET_TRIES = 3, 12
#: The same interval of memory, by planners that answer at once, and then by bands; calls of the
#: longest step that is written in bands: each takes some seconds for a thousand calls.
LEAST_TRIES, BANDS_TRIES, MOST_BANDED_CALLS = 6, 3, 1000
#: Calls of the longest step that is searched once more to see whether what a refusal names does.
SEARCHED_CALLS = 300
#: A time limit that is over as it begins: planners then take the first plan they find.
NO_TIME_S = sys.float_info.min

# Which plan is taken.

#: Shares of memory that the slab gets beyond the inputs; calls of a step, times the shares that are
#: searched.
HOST_SHARES, MOST_CALLS = (0.0, 0.125, 0.25), 2500
#: No division is quicker than in-core; one that takes at most this many times as long is taken.
NEAR = 1.1
#: Longer than any step; and what counts for that where a plan is not exact.
NEVER_US, INEXACT_US = 1e15, 1e14
#: Of the budget, for lasting variables that stay where mapping is dear.
LASTING_SHARE = 16
#: Of the time that is left, for one plan where more may have to be made.
FIRST_SHARE = 0.5


# The doors


@collecting_rarely()
def prepare(
    trace: Trace, settings: Settings, own: OwnShare | None = None, whole: int | None = None,
    granule: Granule | None = None,
) -> PreparedStep:  # fmt: skip
    """Rewrites, plans, verifies and places a step, so that it takes no more than there is.

    Args:
        own: what the process holds by itself (`promise.own_share`); None: the usual amount.
        whole: samples of the batch that the step's input is a part of; None: it is the batch.
        granule: in place of an allocator: the ledger alone counts, rounded so.

    Raises:
        Infeasible: there is no schedule within the budget, or the memory is too little, with the
            least that does if one is known.
        DoesNotFit: there is one, but no ledger limit makes the allocator's reserved peak fit, or
            the host slab; with the least that does if one is known.
        ScheduleError: the planner returned an illegal schedule.
        ConfigError: an unknown name, or an invalid budget.
        DeviceUnavailable: the device is not there, or nothing can be compiled for it.
    """
    fit = Fit.of(trace, settings, granule)
    if settings.memory is None:
        return fit.in_budget()
    if fit.machine.name in PRESETS and fit.machine.name != CPU_PRESET:
        raise ConfigError(
            f"--memory is of a process on the cpu device, and {fit.machine.name} is another "
            "machine", code="OOC-123", fix="--budget for its device, --host-budget for its host",
        )  # fmt: skip
    memory_bytes = parse_bytes(settings.memory, what="memory")
    parts = parts_of(trace, memory_bytes, own, settings.thread_count, whole)
    return replace(fit, settings=replace(settings, memory=None), parts=parts).in_memory()


def exactly(step: RewrittenStep, settings: Settings, machine: Machine) -> Fit:
    """The question of a step that has been rewritten, of which the ledger alone counts."""
    choose = partial(any_allocator, step.granule)
    return Fit(step, settings, machine, choose, exact=True)


def share_bytes(trace: Trace, settings: Settings) -> int:
    """What a budget that is a percentage is of a step, in bytes; see `prepare`."""
    assert settings.budget is not None
    return Fit.of(trace, settings).step.bytes_of(settings.budget)


# The search


def halved(
    no: int, yes: T, tries: int, tried: Callable[[int], T | None], size: Callable[[T], int],
    unit: int = 1,
) -> T:  # fmt: skip
    """The one search: between a number that does not do and one that does, the nearest to the first
    that was tried and does.

    Args:
        no: on either side of `yes`.
        tries: at most.
        tried: what comes of a number; None: it does not do.
        size: of what came of it.
        unit: distance that is not halved.
    """
    for _ in range(tries):
        if abs(size(yes) - no) <= unit:
            break
        middle = (no + size(yes)) // 2
        found = tried(middle)
        if found is None:
            no = middle
        else:
            yes = found
    return yes


def first_that_fits(cases: Iterable[Callable[[], T]]) -> T:
    """What the first case comes to that is not refused; else the refusal of the last is raised."""
    *before, last = cases
    for case in before:
        with suppress(Infeasible, DoesNotFit):
            return case()
    return last()


class Room(NamedTuple):
    """What a step may take: the device's arena and the host's slab (None: no limit), in bytes."""

    arena_bytes: int
    host_bytes: int | None


@dataclass(frozen=True)
class Fit:
    """A step, and the search for a plan of it that fits.

    Args:
        step: as planners see it.
        settings: without a memory budget.
        choose: gives an allocator for the bytes of an arena; False: only to see how it rounds.
        notices: of the disk.
        parts: all of a memory budget that is not divided; None: there are two budgets.
        exact: nothing comes on top of the ledger.
    """

    step: RewrittenStep
    settings: Settings
    machine: Machine
    choose: Callable[[int, bool], AllocatorChoice]
    notices: tuple[str, ...] = ()
    parts: Promise | None = None
    exact: bool = False

    @classmethod
    def of(cls, trace: Trace, settings: Settings, granule: Granule | None = None) -> Fit:
        """The question of some settings; `granule` as for `prepare`. Raises as `prepare` does."""
        machine = settings.find_machine()
        exact = granule is not None
        choose = partial(any_allocator, granule) if granule else settings.chooser(trace)
        # First: no plan for a bad folder.
        notices = spill_notices(settings.disk, machine) if settings.disk else ()
        step = rewritten(trace, settings.rewrites)
        # An allocator may round coarser in a larger arena, so one of about this size is chosen.
        roomy = granule or choose(2 * trace_peak_bytes(step.trace), False).granule
        # A wrong name is an error, even where nothing is planned.
        settings = replace(settings, planner=as_planner(settings.planner))
        step = step.pinned_for(roomy)
        return cls(step, settings, machine, choose, notices, exact=exact)

    # Cases in turn: one of two budgets, several of one memory.

    def in_budget(self) -> PreparedStep:
        """The step within the budgets of device and host. Raises as `prepare` does."""
        if self.settings.budget is None:
            return self.in_core
        return self.at_or_refused(self.step.bytes_of(self.settings.budget))

    def at_or_refused(self, budget_bytes: int) -> PreparedStep:
        """The same within a number of bytes; a refusal names a budget that was tried and does."""
        try:
            return self.at(self.settings, budget_bytes)
        except (Infeasible, DoesNotFit) as refusal:
            raise self._tried_refusal(refusal, budget_bytes) from refusal.__cause__

    def in_memory(self) -> PreparedStep:
        """In-core where that fits; else the division whose step is the quickest, exact ones first.

        Raises:
            Infeasible: the memory is too little, with the least that does.
        """
        assert self.parts is not None
        memory_bytes = self.parts.memory_bytes
        if self.in_core.size_bytes <= memory_bytes:
            return self.in_core
        if found := self._divided(NEAR * step_us(self.in_core)):
            return min(found, key=lambda each: (step_us(each), _slab_bytes(each)))
        least = self._least(self._too_few_bytes, self.in_core, self._ways_to_less(), PAGE_BYTES)
        if least.size_bytes > memory_bytes:
            raise self._too_small(least.size_bytes)
        return least

    def _divided(self, enough_us: float) -> list[PreparedStep]:
        """Plans within the memory, one for each share of the slab, up to the first that is quick
        enough.

        Where no planner has one at once, a search is worth its time for the first share alone.
        """
        assert self.parts is not None
        memory_bytes, found = self.parts.memory_bytes, []
        if memory_bytes < self._too_few_bytes:
            return []
        with suppress(Infeasible, DoesNotFit):
            at_once = replace(self.settings, same_bits=True, at_once=True)
            found.append(self.at(at_once, memory_bytes))
        several = bool(found) and self.settings.spill is None
        most = max(1, MOST_CALLS // max(1, self._calls))  # a search of a long step takes a minute
        for share in HOST_SHARES[: most if several else 1]:
            if share and min(map(step_us, found)) <= enough_us:
                break
            with suppress(Infeasible, DoesNotFit):
                # Else the quicker of a list with the bits of in-core and one in bands.
                cases = replace(self.settings, same_bits=True), self.settings
                found.append(
                    first_that_fits(partial(self.at, how, memory_bytes, share) for how in cases)
                )
        return found

    @cached_property
    def in_core(self) -> PreparedStep:
        """The step with nothing evicted, in the arena that its allocator then needs."""
        roomy = self.choose(2 * trace_peak_bytes(self.step.trace), False)
        asked = Question(self.step.trace, MAX_BYTES, self.machine, granule=self.step.granule)
        plan, how = KeepAll().plan(asked), replace(self.settings, planner=KeepAll())
        arena_bytes = plan.peak_bytes
        if not self.exact:
            arena_bytes = reserved_peak(plan.schedule, plan.trace, roomy)
        return self.within(how, Room(arena_bytes, self._host_bytes(how.host_budget)))

    # The predicate: whether a step, planned for some limits, takes no more than its room.

    def at(self, how: Settings, budget_bytes: int, share: float = 0.0) -> PreparedStep:
        """The step at a budget: of the device, or of the process, a share of it for the slab.

        Raises:
            Infeasible, DoesNotFit: there is no plan, or it takes more.
        """
        if self.parts is None:
            return self.within(how, Room(budget_bytes, self._host_bytes(how.host_budget)))
        left = budget_bytes - self.parts.fixed_bytes
        slab = max(int(left * share), self._least_slab_bytes)
        host = None if self.settings.spill else slab  # that of a disk has no limit
        return self.within(how, Room(left - slab, self._host_bytes(host)), budget_bytes)

    def within(self, how: Settings, room: Room, memory_bytes: int | None = None) -> PreparedStep:
        """The step in a room. Where it takes more than that, it is planned for as much less.

        Args:
            memory_bytes: limit of all parts together; None: there is none.

        Raises:
            Infeasible: there is no plan for the room.
            DoesNotFit: there are plans, and they take more.
        """
        asked, effort, first = room, how.effort, None
        for _ in range(ROOM_TRIES):
            if memory_bytes is not None:
                # A page, where nothing is left: then the planner says how much it needs.
                arena_bytes = max(asked.arena_bytes - asked.arena_bytes % PAGE_BYTES, PAGE_BYTES)
                asked = asked._replace(arena_bytes=arena_bytes)
            try:
                found = self._placed(how, asked, effort)
            except Infeasible:
                if first is None:
                    raise
                break
            slab_bytes, over_host = self._slab(found, room)
            over = 0 if memory_bytes is None else found.size_bytes - memory_bytes
            if over_host <= 0 and over <= 0:
                return found
            first = first or slab_bytes
            if over_host > 0:
                assert asked.host_bytes is not None
                host_bytes = asked.host_bytes - over_host
                if host_bytes < input_bytes(self.step.trace):
                    break
                asked = asked._replace(host_bytes=host_bytes)
            else:
                less = asked.arena_bytes - over - min(over, SPARE_BYTES)
                asked = asked._replace(arena_bytes=less)
                effort = how.effort
        first, host_bytes = first or 0, room.host_bytes or 0
        raise DoesNotFit(
            "the host slab does not fit: slots leave gaps between them", reserved_bytes=first,
            budget_bytes=host_bytes, minimum_bytes=first, needs="host",
            numbers=f"host budget {format_bytes(host_bytes)}, slab {format_bytes(first)}",
            fix=_slab_fix(first),
        )  # fmt: skip

    def _slab(self, found: PreparedStep, room: Room) -> tuple[int, int]:
        """The length of its slab, and how much of it is too much."""
        if room.host_bytes is None or self.exact:
            return 0, 0
        align_bytes = SLOT_ALIGN_BYTES if self.settings.spill is None else BLOCK_BYTES
        return slab_excess(found.plan, room.host_bytes, align_bytes)

    def _placed(self, how: Settings, room: Room, effort: Effort) -> PreparedStep:
        """The step with the ledger's limit at which the allocator has a place for the plan."""
        step = self.step
        if room.arena_bytes < step.granule.size_bytes:
            # Not even one granule: no allocator can be made. The planner raises Infeasible.
            asked = Question(step.trace, room.arena_bytes, self.machine, step.granule)
            plan_excluding(as_planner(how.planner), asked)
        allocator = self.choose(room.arena_bytes, True)
        steps = [step.rounded_by(allocator.granule)]
        if not self.exact and maps_dearly(self.machine, allocator):
            lasting_bytes = room.arena_bytes // LASTING_SHARE
            steps.insert(0, steps[0].with_lasting_pinned(lasting_bytes, allocator.granule))
        plan, reserved = first_that_fits(
            partial(self._searched, how, each, allocator, room, effort) for each in steps
        )
        promise = self.parts and self.parts.with_list(
            plan, room.arena_bytes, on_disk=self.settings.spill is not None
        )
        return PreparedStep(
            self.step.original, plan, self.machine, room.arena_bytes, allocator, reserved,
            self._in_core_peak_bytes, (*allocator.notices, *self.notices), promise,
        )  # fmt: skip

    def _searched(
        self, how: Settings, step: RewrittenStep, allocator: AllocatorChoice, room: Room,
        effort: Effort,
    ) -> Placed:  # fmt: skip
        question = Question(
            step.trace, room.arena_bytes, self.machine, step.granule, room.host_bytes,
            self.settings.seed, effort, same_bits=how.same_bits,
        )  # fmt: skip
        return LimitSearch(step, as_planner(how.planner), allocator, question, self.exact).best()

    @cached_property
    def _in_core_peak_bytes(self) -> int:
        return 0 if self.exact else trace_peak_bytes(self.step.trace, self.step.granule)

    def _host_bytes(self, budget: int | str | None) -> int | None:
        return resolve_host_budget(self.step.trace, budget, self.machine)

    # What a refusal names.

    def _least(
        self, no: int, yes: PreparedStep, ways: Iterable[tuple[Settings, int]], unit: int = 1
    ) -> PreparedStep:
        """The step with the least budget that was tried and does.

        Args:
            no: bytes that do not do.
            yes: what is known to do.
            ways: settings in turn, and how often the interval is halved with them.
        """
        for how, tries in ways:
            tried = partial(self._at_or_none, how)
            yes = halved(no, yes, tries, tried, lambda each: each.size_bytes, unit)
        return yes

    def _at_or_none(self, how: Settings, budget_bytes: int) -> PreparedStep | None:
        found = self._tried(how, budget_bytes)
        return found if isinstance(found, PreparedStep) else None

    def _tried(self, how: Settings, budget_bytes: int) -> PreparedStep | OoctrainError:
        """The step at a budget, or why there is none: any error of the library."""
        try:
            return self.at(how, budget_bytes)
        except OoctrainError as refusal:
            return refusal

    def _ways_to_less(self) -> Iterator[tuple[Settings, int]]:
        """What answers at once, since only whether there is a plan counts; then bands too, if they
        may help. Writing a step in bands takes longer than all the others.

        With the memory that is found, this plan is found again, or a better one; a longer search
        may find one in less.
        """
        at_once = replace(self.settings, at_once=True)
        yield replace(at_once, same_bits=True), LEAST_TRIES
        if self._calls <= MOST_BANDED_CALLS and can_be_banded(self.step.original):
            yield at_once, BANDS_TRIES

    def _unhurried(self) -> Settings:
        """How a named budget is tried: in a long step without time to search."""
        long = self._calls > SEARCHED_CALLS
        return replace(self.settings, time_limit_s=NO_TIME_S) if long else self.settings

    def _tried_refusal(
        self, refusal: Infeasible | DoesNotFit, budget_bytes: int
    ) -> Infeasible | DoesNotFit:
        """A refusal with a budget that was tried and does; itself if that which it names does, or
        if it names none."""
        named, how = refusal.minimum_bytes, self._unhurried()
        if named is None or self._is_known_to_do(named):
            return refusal
        if isinstance(refusal, DoesNotFit) and refusal.needs == "host":
            tried = partial(self._tried_beside, how, budget_bytes)
            _, asked, found = self._first_named(named, tried, lambda: MAX_BYTES)
            least = None if found is None else asked
            return refusal.naming(least, _slab_fix(least))
        if isinstance(refusal, DoesNotFit) and budget_bytes < self._most_bytes < named:
            refusal = _found_enough(refusal, named := self._most_bytes, budget_bytes)
        tried, most = partial(self._tried, how), lambda: self._most_bytes
        no, _, found = self._first_named(named, tried, most)
        if found is None and no < self._most_bytes < MAX_BYTES:
            found = self._at_or_none(how, self._most_bytes)
        if found is None:
            return _no_plan_known(refusal, as_planner(how.planner).name, budget_bytes)
        if found.size_bytes == named:
            return refusal
        least = self._least(no, found, [(how, BUDGET_TRIES)]).size_bytes
        return _found_enough(refusal, least, budget_bytes)

    def _first_named(
        self, named: int, tried: Callable[[int], PreparedStep | OoctrainError],
        most: Callable[[], int],
    ) -> tuple[int, int, PreparedStep | None]:  # fmt: skip
        """(what does not do, what was tried next, its step if it does), of budgets that refusals
        name, one after the other, up to what is enough for everything. The budget in question
        plays no part in it."""
        no, asked = named - 1, named
        for _ in range(NAMED_TRIES):
            found = tried(asked)
            if isinstance(found, PreparedStep):
                return no, asked, found
            no, asked = asked, min(getattr(found, "minimum_bytes", None) or 0, most())
            if asked <= no:
                break
        return no, asked, None

    @cached_property
    def _most_bytes(self) -> int:
        """What the step needs in-core: more does not help. `MAX_BYTES` where that is refused."""
        try:
            return self.in_core.budget_bytes
        except OoctrainError:
            return MAX_BYTES

    def _tried_beside(
        self, how: Settings, budget_bytes: int, host_bytes: int
    ) -> PreparedStep | OoctrainError:
        """The same beside another host budget."""
        return self._tried(replace(how, host_budget=host_bytes), budget_bytes)

    def _is_known_to_do(self, named: int) -> bool:
        """Whether nothing comes on top of the list, and the host has room: then what planners name
        does, as their laws show."""
        host_bytes = self._host_bytes(self.settings.host_budget)
        asked = Question(
            self.step.trace, named, self.machine, self.step.granule, host_budget_bytes=host_bytes
        )
        return self.exact and not is_short_of_host(asked)

    @property
    def _calls(self) -> int:
        return len(self.step.original.calls)

    @cached_property
    def _least_slab_bytes(self) -> int:
        return least_slab_bytes(self.step.original, on_disk=self.settings.spill is not None)

    @cached_property
    def _too_few_bytes(self) -> int:
        """A memory that may be enough; less than it is too little for any list: all that persists
        comes home, the last of it with a copy, and where the slab is RAM, the inputs lie there too.
        """
        assert self.parts is not None
        home_bytes = values_home_bytes(self.step.original)
        return self.parts.fixed_bytes + self._least_slab_bytes + home_bytes

    def _too_small(self, least_bytes: int) -> Infeasible:
        """The refusal, with a memory in which a plan has been found."""
        # The next process may hold a page more by itself.
        assert self.parts is not None
        needed, memory = least_bytes + OWN_STEP_BYTES, self.parts.memory_bytes
        divided = format_bytes(least_bytes - self.parts.fixed_bytes)
        return Infeasible(
            f"a memory of {format_bytes(memory)} is too little for this step", code="OOC-124",
            minimum_bytes=needed,
            numbers=f"arena and slab need {divided}; {self.parts.besides()}",
            fix=f"--memory {needed} ({format_bytes(needed)}), or a smaller --batch",
        )  # fmt: skip


def _no_plan_known(
    refusal: Infeasible | DoesNotFit, planner: str, budget_bytes: int
) -> Infeasible | DoesNotFit:
    named = refusal.minimum_bytes or 0
    if isinstance(refusal, DoesNotFit):
        return refusal.naming(None, "allocator va, which does not fragment")
    return Infeasible(
        f"planner {planner!r} has no plan at this budget, and none is known at which it has",
        minimum_bytes=None, needs="host",
        numbers=f"budget {_bytes(budget_bytes)}; {_bytes(named)}, which would do for the list "
        "alone, and the in-core peak have been tried",
        fix="a larger host budget, another planner, or allocator va",
    )  # fmt: skip


def _found_enough(
    refusal: Infeasible | DoesNotFit, least: int, budget_bytes: int
) -> Infeasible | DoesNotFit:
    if isinstance(refusal, DoesNotFit):
        return refusal.naming(least, _place_fix(least))
    return Infeasible(
        refusal.what, minimum_bytes=least, witness_call=refusal.witness_call, where=refusal.where,
        numbers=f"budget {_bytes(budget_bytes)}, {_bytes(least)} have been found to be enough",
        fix=f"a budget of {least} bytes, a larger host budget, a smaller batch, or another planner",
    )  # fmt: skip


def _place_fix(least: int | None) -> str:
    larger = "a larger budget" if least is None else f"a budget of {least} bytes"
    return f"allocator va, which does not fragment, or {larger}"


def _slab_fix(least: int | None) -> str:
    return "another planner" if least is None else f"--host-budget {least}, or another planner"


def _bytes(size: int) -> str:
    return f"{format_bytes(size)} ({size} bytes)"


@dataclass
class LimitSearch:
    """The search for a limit of the ledger whose plan the allocator can place within its budget.

    Args:
        exact: the allocator places every plan in what its ledger counts.
    """

    step: RewrittenStep
    planner: Planner
    allocator: AllocatorChoice
    question: Question
    exact: bool
    #: by limit, and by how plans are compared
    _asked: dict[tuple[int, Cost], Placed] = field(default_factory=dict)
    #: whether the planner compares whole plans: it has read the cost of one
    _compares: bool = False

    def best(self) -> Placed:
        """The plan at the largest limit found, with its reserved peak.

        Raises:
            Infeasible: there is no plan within the budget.
            DoesNotFit: there are some, and the allocator can place none.
        """
        budget_bytes, cost = self.allocator.budget_bytes, self._mapping_cost
        try:
            first = self.at(budget_bytes, cost)
        except Infeasible as refusal:
            raise self._in_whole_pieces(refusal) from refusal.__cause__
        if self._fits(first):
            return first
        found = [self._largest(budget_bytes, cost)]
        if self._compares:
            # The fastest of the plans may be of a kind that the allocator cannot place.
            other = self.at(budget_bytes, self._us_if_placed)
            found.append(other if self._fits(other) else None)
            if not any(found):
                found.append(self._largest(2 * budget_bytes, self._us_if_placed))
        best = min(filter(None, found), key=lambda each: self._us_if_placed(each[0]), default=None)
        if best is None:
            raise self._does_not_fit(first[1])
        return replace(best[0], notes={**best[0].notes, "reserved_at_budget": first[1]}), best[1]

    def _largest(self, no: int, cost: Cost) -> Placed | None:
        """The plan at the largest limit below `no`, at which the allocator cannot place it."""
        best: Placed | None = None

        def tried(limit: int) -> int | None:
            nonlocal best
            if self._whole(limit) > self.refused_bytes:
                with suppress(Infeasible):  # which means what it means below: too little
                    plan, reserved = self.at(limit, cost)
                    if reserved > self.allocator.budget_bytes:
                        return None
                    notes = {**plan.notes, "ledger_limit_bytes": limit}
                    best = replace(plan, notes=notes), reserved
            return limit

        halved(no, self.refused_bytes, LEDGER_TRIES, tried, int)
        return best

    @cached_property
    def refused_bytes(self) -> int:
        """A limit of the ledger at which, and below which, the planner finds nothing."""
        try:
            self.at(1, self._mapping_cost)
        except Infeasible as refusal:
            return (refusal.minimum_bytes or 0) - 1
        return 0

    def at(self, limit_bytes: int, cost: Cost) -> Placed:
        """The plan at a limit, with its reserved peak; each is made once. Raises Infeasible."""
        asked = self._whole(limit_bytes), cost
        if asked not in self._asked:
            self._asked[asked] = self._planned(*asked)
        return self._asked[asked]

    def _whole(self, limit_bytes: int) -> int:
        """Of a limit what the allocator can use: whole granules, and no more than its budget."""
        if self.exact:
            return limit_bytes
        size = self.allocator.granule.size_bytes
        return max(1, min(limit_bytes, self.allocator.budget_bytes) // size * size)

    def _planned(self, limit_bytes: int, cost: Cost) -> Placed:
        effort = self.question.effort
        if not (self.exact or self.allocator.granule.ranges):
            # Where the allocator has no place for the plan, others follow.
            effort = replace(effort, deadline=effort.deadline.keeping(1 - FIRST_SHARE))

        def noted(plan: Plan) -> float:
            self._compares = True
            return cost(plan)

        asked = replace(self.question, budget_bytes=limit_bytes, effort=effort, cost=noted)
        plan = plan_step(self.step, self.planner, asked)
        return plan, self._reserved(plan)

    def _reserved(self, plan: Plan) -> int:
        """The reserved peak of a plan; `MAX_BYTES` where the allocator's blocks climb forever."""
        if self.exact:
            return plan.peak_bytes
        try:
            return reserved_peak(plan.schedule, plan.trace, self.allocator)
        except DoesNotFit:
            return MAX_BYTES

    def _fits(self, placed: Placed) -> bool:
        return placed[1] <= self.allocator.budget_bytes

    # How plans are compared by planners that compare whole plans.

    @cached_property
    def _mapping_cost(self) -> Cost:
        """They count what the allocator maps, if that takes time."""
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

    def _us_if_placed(self, plan: Plan) -> float:
        """Duration of a step; far too long where the allocator cannot place the plan, and longer
        than any with the bits of in-core where it has not got these.
        """
        if self._reserved(plan) > self.allocator.budget_bytes:
            return NEVER_US + plan.makespan_us
        return plan.makespan_us + inexact_us(plan)

    # Why there is none.

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

    def _does_not_fit(self, reserved: int) -> DoesNotFit:
        budget_bytes = self.allocator.budget_bytes
        places = [found for _, found in self._asked.values() if found < MAX_BYTES]
        least = min(places, default=None)  # an arena that holds one of these plans
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
            minimum_bytes=least,
            numbers=f"budget {format_bytes(budget_bytes)}, {needed}",
            fix=_place_fix(least),
        )


# How steps are compared


def inexact_us(plan: Plan) -> float:
    """What counts as time beside that of a plan: nothing, if it has the bits of in-core."""
    return 0 if keeps_bits(plan.rewrites) else INEXACT_US


def step_us(prepared: PreparedStep) -> float:
    """What a step takes, far longer where it has not the bits of in-core."""
    return prepared.predict().makespan_us + inexact_us(prepared.plan)


def _slab_bytes(prepared: PreparedStep) -> int:
    assert prepared.promise is not None
    return prepared.promise.slab_bytes


def any_allocator(granule: Granule, arena_bytes: int, binding: bool) -> AllocatorChoice:
    """In place of an allocator: what rounds by a granule, and loses nothing on top of that."""
    return AllocatorChoice("", granule, arena_bytes, lambda memory: DryAllocator(granule))
