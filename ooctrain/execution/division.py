"""How one memory budget is divided: the device's arena gets what the host's slab does not.

On the cpu device both are the same RAM, so a step is planned for several divisions and the quickest
is taken. A theorem says where to look: **a list that runs each call once needs at least the in-core
peak, arena and slab together**, since every value that is still read is in one of the two. Swapping
to RAM therefore saves nothing of the sum; what saves is computing again, and bands, which need no
slab. So the first division gives the slab nothing but the inputs, and others are tried because
planners are not perfect. A slab on a disk (`--spill`) counts for its buffers alone. The least that
would do is named only after a plan has been made with it, looked for in the same way whatever the
budget. Read next: `promise.py` for the other parts; `prepare.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ooctrain.devices.cpu.host_vm import PAGE_BYTES
from ooctrain.devices.host_file import IN_FLIGHT, PIECE_BYTES
from ooctrain.errors import ConfigError, DoesNotFit, Infeasible, PartFailed
from ooctrain.execution.enough import enough
from ooctrain.execution.executor import host_extent_bytes
from ooctrain.execution.planners import as_planner, without_bands
from ooctrain.execution.prepare import INEXACT_US, PreparedStep, prepare
from ooctrain.execution.promise import (
    OWN_STEP_BYTES,
    THREAD_BYTES,
    OwnShare,
    Promise,
    list_bytes,
    parts_of,
)
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import keeps_bits
from ooctrain.rewrite.tile.banded import MORE_CALLS, can_be_banded, offers_for
from ooctrain.rewrite.tile.offers import tiled_as_offered
from ooctrain.rewrite.tile.sft_planner import with_tiling
from ooctrain.sched.budget import input_bytes, trace_minimum_bytes
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.portfolio import Portfolio, Turn
from ooctrain.sched.planners.rotor import Rotor
from ooctrain.sched.planners.superneurons import SuperNeurons
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning.host_gaps import is_short_of_host
from ooctrain.sched.planning.planner import Planner, ask, host_too_small, least_refusal
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.step.presets import PRESETS
from ooctrain.step.trace import Trace
from ooctrain.units import MIB, format_bytes, parse_bytes

#: Shares of what is left that the slab gets beyond the inputs.
HOST_SHARES = (0.0, 0.125, 0.25)
#: Calls of the step, times the divisions that are searched.
MOST_CALLS = 2500
#: Calls of the longest step that is searched once more to see whether the budget that a refusal
#: names suffices.
SEARCHED_CALLS = 300
#: No division is quicker than in-core; one that takes at most this many times as long is taken.
NEAR = 1.1
CPU_PRESET = "cpu-generic"
#: Plans for one division; and what the arena also gives up, where a plan takes more than is left.
MOST_PLANS, SPARE_BYTES = 3, MIB
#: Of a slab on a disk only the pieces on their way lie in memory, each with its thread, and one for
#: each copy stream; a MiB is for Python's objects of the pieces that wait.
BUFFERS_BYTES = (IN_FLIGHT + 2) * PIECE_BYTES + IN_FLIGHT * THREAD_BYTES + MIB


def prepare_within(
    trace: Trace, settings: Settings, own: OwnShare | None = None, whole: int | None = None
) -> PreparedStep:
    """A step as `prepare` makes it, its memory divided first where one budget is for all of it.

    Args:
        own: what the process holds by itself (`promise.own_share`); None: the usual amount.
        whole: samples of the batch that the step's input is a part of; None: it is the batch.

    Raises:
        Infeasible: the memory is too little, with the least that would do.
        As `prepare` does.
    """
    if settings.memory is None:
        return _prepared_or_enough(trace, settings)
    machine = settings.find_machine()
    if machine.name in PRESETS and machine.name != CPU_PRESET:
        raise ConfigError(
            f"--memory is of a process on the cpu device, and {machine.name} is another machine",
            code="OOC-123", fix="--budget for its device, --host-budget for its host",
        )  # fmt: skip
    memory_bytes = parse_bytes(settings.memory, what="memory")
    parts = parts_of(trace, memory_bytes, own, settings.thread_count, whole)
    return _Division(trace, replace(settings, memory=None), parts).quickest()


def _prepared_or_enough(trace: Trace, settings: Settings) -> PreparedStep:
    """`prepare`, and a refusal whose budget was tried; in a long step by planners that are given no
    time to search.
    """
    try:
        return prepare(trace, settings)
    except Infeasible as refusal:
        long = len(trace.calls) > SEARCHED_CALLS
        how = replace(settings, time_limit_s=NO_TIME_S) if long else settings

        def ask(budget_bytes: int) -> PreparedStep:
            return prepare(trace, replace(how, budget=budget_bytes))

        def most_bytes() -> int:
            return prepare(trace, replace(how, budget=None)).budget_bytes

        name = as_planner(settings.planner).name
        found = enough(refusal, ask, str(settings.budget), most_bytes, name)
        raise found from refusal.__cause__


@dataclass(frozen=True, slots=True)
class _Division:
    """The search for a division.

    Args:
        settings: without a memory budget.
        parts: all that is not divided.
    """

    trace: Trace
    settings: Settings
    parts: Promise

    def quickest(self) -> PreparedStep:
        """In-core where that fits; else the division whose step is the quickest, exact ones
        first."""
        left = self.parts.left_bytes
        in_core = prepare(self.trace, self.settings)
        if self._sum_bytes(in_core) <= left:
            return self._promised(in_core)
        if found := self._within(left, NEAR * self._time(in_core)[0]):
            return self._promised(min(found, key=self._time))
        least = self._least(in_core)
        if self._sum_bytes(least) > left:
            raise self._too_small(self._sum_bytes(least))
        return self._promised(least)

    def _within(self, left: int, enough_us: float) -> list[PreparedStep]:
        """Plans within these bytes of arena and slab, up to the first that is quick enough.

        Where no planner has one at once, a search is worth its time for the first division alone.
        """
        if left < self._too_few_bytes():
            return []
        quick = replace(self, settings=at_once(self.settings))
        found = quick._within_slab_or_none(self._least_slab_bytes(), left)
        more = self.settings.spill is None and found is not None
        shares = HOST_SHARES[: self._most_searches() if more else 1]
        plans = [] if found is None else [found]
        for share in shares:
            if share and min(map(self._time, plans))[0] <= enough_us:
                break
            host = max(int(left * share), self._least_slab_bytes())
            if (searched := self._within_slab_or_none(host, left)) is not None:
                plans.append(searched)
        return plans

    def _most_searches(self) -> int:
        """How many divisions are searched: fewer of long steps, where each takes a minute."""
        return max(1, MOST_CALLS // max(1, len(self.trace.calls)))

    def _within_slab_or_none(self, host_bytes: int, left: int) -> PreparedStep | None:
        for settings in self._exact_first():
            with suppress(Infeasible, DoesNotFit):
                found = replace(self, settings=settings)._within_slab(host_bytes, left)
                if found is not None:
                    return found
        return None

    def _exact_first(self) -> Iterator[Settings]:
        """Settings in turn, exact planners first: `auto` would take the quicker of a list with the
        bits of in-core and one in bands."""
        planner = as_planner(self.settings.planner)
        if isinstance(planner, Auto) and planner.has_rewriting_planners:
            yield replace(self.settings, planner=without_bands(planner))
        yield self.settings

    def _within_slab(self, host_bytes: int, left: int) -> PreparedStep | None:
        """A plan whose arena has what such a slab leaves. Slots of the slab may leave gaps, and a
        list may be longer than usual: then the arena gets less, and a little less than that, since
        the next list may be longer still. A slab on a disk has no limit."""
        arena = left - host_bytes
        for _ in range(MOST_PLANS):
            # A page, where nothing is left: then the planner says how much it needs.
            arena = max(arena - arena % PAGE_BYTES, PAGE_BYTES)
            slab = host_bytes if self.settings.spill is None else None
            prepared = prepare(self.trace, replace(self.settings, budget=arena, host_budget=slab))
            over = self._sum_bytes(prepared) - left
            if over <= 0:
                return prepared
            arena -= over + min(over, SPARE_BYTES)
        return None

    def _promised(self, prepared: PreparedStep) -> PreparedStep:
        promise = replace(
            self.parts, arena_bytes=prepared.budget_bytes, slab_bytes=self._slab_bytes(prepared),
            values_bytes=self.parts.values_bytes + _home_bytes(prepared),
            list_bytes=self.parts.list_bytes + self._longer_bytes(prepared),
        )  # fmt: skip
        return replace(prepared, promise=promise)

    def _least(self, in_core: PreparedStep) -> PreparedStep:
        """A plan with little memory, whatever the budget."""

        def prepared_in(settings: Settings, left: int) -> PreparedStep | None:
            return replace(self, settings=settings)._within_slab(self._least_slab_bytes(), left)

        return least_found(
            self.settings, in_core, self._too_few_bytes(), prepared_in, self._sum_bytes
        )

    def _too_few_bytes(self) -> int:
        """Bytes of arena and slab that are too few for any list: all that persists comes home, the
        last of it with a copy, and where the slab is RAM, the inputs lie there too."""
        variables = [self.trace.variables[v] for v in self.trace.initial]
        return self._least_slab_bytes() + _drawn_bytes(
            v.value_bytes for v in variables if v.persistent
        )

    def _too_small(self, least: int) -> Infeasible:
        """The refusal, with a memory in which a plan has been found."""
        # The next process may hold a page more by itself.
        needed = self.parts.fixed_bytes + least + OWN_STEP_BYTES
        memory = self.parts.memory_bytes
        return Infeasible(
            f"a memory of {format_bytes(memory)} is too little for this step", code="OOC-124",
            minimum_bytes=needed,
            numbers=f"arena and slab need {format_bytes(least)}; {self.parts.besides()}",
            fix=f"--memory {needed} ({format_bytes(needed)}), or a smaller --batch",
        )  # fmt: skip

    def _sum_bytes(self, prepared: PreparedStep) -> int:
        arena_and_slab = prepared.budget_bytes + self._slab_bytes(prepared)
        return arena_and_slab + _home_bytes(prepared) + self._longer_bytes(prepared)

    def _longer_bytes(self, prepared: PreparedStep) -> int:
        instructions = len(prepared.plan.schedule.instructions)
        return max(0, list_bytes(instructions) - self.parts.list_bytes)

    def _slab_bytes(self, prepared: PreparedStep) -> int:
        """What the slab takes of memory; on a disk only its buffers do."""
        if self.settings.spill is not None:
            return BUFFERS_BYTES
        return host_extent_bytes(prepared.plan.trace, prepared.plan.schedule)

    def _least_slab_bytes(self) -> int:
        return input_bytes(self.trace) if self.settings.spill is None else BUFFERS_BYTES

    def _time(self, prepared: PreparedStep) -> tuple[float, int]:
        """What a step takes, far longer where it has not the bits of in-core; the smaller slab
        among equals."""
        exact = keeps_bits(prepared.plan.rewrites)
        step_us = prepared.predict().makespan_us + (0 if exact else INEXACT_US)
        return step_us, self._slab_bytes(prepared)


def _home_bytes(prepared: PreparedStep) -> int:
    """What persistent values take between arena and host, beyond the arena.

    Each is drawn into an arena that holds nothing else yet, with a copy. Those that wait in the
    slab come home when the arena is empty; those of which a part is there come before, from both.
    """
    trace, schedule = prepared.plan.trace, prepared.plan.schedule
    persistent = {v for v in trace.initial if trace.variables[v].persistent}
    on_device = {v for v, lo, hi in schedule.start_device if lo < hi}
    split = [hi - lo for v, lo, hi in schedule.start_host if v in persistent & on_device]
    drawn_bytes = _drawn_bytes(trace.variables[v].value_bytes for v in persistent)
    return max(sum(split), drawn_bytes - prepared.budget_bytes)


def _drawn_bytes(sizes: Iterable[int]) -> int:
    """What persistent values take that come one by one, each with its copy."""
    found = list(sizes)
    return sum(found) + max(found, default=0)


# Smallest feasible budget, by bisection. Only whether there is a plan counts, so no planner
# searches for a better one: `auto` gives way to the first of a few planners that has a plan. Those
# that swap need least where the host is a disk, those that compute again where the host holds only
# the inputs. Bands come last: writing a step in bands takes longer than all of these. The interval
# between too little and enough is halved a fixed number of times, whatever the budget in question;
# with the budget that a refusal names, this plan is found, or a better one. It is the least that
# was *found*: a longer search may find a plan in less.


#: How often the interval between too little memory and enough is halved, by immediate planners,
#: and then by bands.
LEAST_TRIES, BANDS_TRIES = 6, 3
#: Tilings that are written for one try, and calls of the longest step that is: each takes some
#: seconds for a thousand calls.
WRITTEN, MOST_BANDED_CALLS = 2, 1000
#: A time limit that is over at once, on any clock: planners then take the first plan they find.
NO_TIME_S = sys.float_info.min


class FirstFound:
    """The plan of the first of some planners that has one, of the step or of another form of it.

    Cost: theirs, until there is a plan.
    """

    name = "first-found"

    def __init__(self, *planners: Planner):
        self._planners = planners

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of all planners."""
        portfolio = Portfolio(question)
        for form in ("", *question.forms):
            for planner in self._planners:
                if portfolio.run(Turn(planner, form=form)) is not None:
                    plan = portfolio.outcome(self.name)
                    return replace(plan, notes={**plan.notes, "chosen": planner.name})
        if portfolio.failures:  # of planners that have not been chosen by the user
            raise host_too_small(self.name) from portfolio.failures[0]
        return portfolio.outcome(self.name)  # raises


def at_once(settings: Settings) -> Settings:
    """The settings with immediate planners; one that was chosen stays, without time to search."""
    found = replace(settings, time_limit_s=NO_TIME_S)
    if not isinstance(as_planner(settings.planner), Auto):
        return found
    computing, swapping = (SuperNeurons(), Dtr(), Rotor()), (SlidingWindow(), Naive())
    planners: Sequence[Planner] = computing if settings.spill is None else swapping
    return replace(found, planner=FirstFound(*planners))


class LeanBands:
    """The step in bands, in one of the tilings that are estimated to need no more than there is:
    the first of `WRITTEN` that has a plan. `banded` compares many, and writes each of them.
    """

    name = "lean-bands"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of all that were written."""
        trace, budget_bytes = question.trace, question.budget_bytes
        moves = ("nothing",) if is_short_of_host(question) else ("borders", "all")
        offers = [o for o in offers_for(trace, question.machine, untiled=False) if o.moves in moves]
        refusals: list[Infeasible] = []
        fitting = [offer for offer in offers if 0 < offer.need_bytes <= budget_bytes]
        for offer in fitting[:WRITTEN]:
            try:
                tiled = tiled_as_offered(trace, offer)
                if tiled is None or len(tiled.calls) > MORE_CALLS:
                    continue
                plan = ask(Belady(), replace(question, trace=tiled))
            except PartFailed:
                continue
            except Infeasible as refusal:
                refusals.append(refusal)
            else:
                return with_tiling(plan, offer, trace_minimum_bytes(tiled, question.granule))
        raise least_refusal(self.name, refusals or [host_too_small(self.name)], budget_bytes)


def _in_bands(trace: Trace, settings: Settings) -> Iterator[Settings]:
    """The settings with bands alone, if they may help and `auto` may ask for them."""
    short, planner = len(trace.calls) <= MOST_BANDED_CALLS, as_planner(settings.planner)
    asks = isinstance(planner, Auto) and planner.has_rewriting_planners
    if short and asks and can_be_banded(trace):
        yield replace(settings, planner=LeanBands(), time_limit_s=NO_TIME_S)


def least_found(
    settings: Settings, in_core: PreparedStep, too_few: int,
    prepared_in: Callable[[Settings, int], PreparedStep | None],
    size_of: Callable[[PreparedStep], int],
) -> PreparedStep:  # fmt: skip
    """A plan with little memory. Cost: `LEAST_TRIES` and `BANDS_TRIES` plans.

    Args:
        in_core: upper end of the bisection.
        too_few: its lower end: bytes in which no plan fits.
        prepared_in: makes the step within a number of bytes; None, `Infeasible` and `DoesNotFit`
            say that there is none.
        size_of: bytes of a step that count.
    """
    ways = [(at_once(settings), LEAST_TRIES)]
    ways += [(bands, BANDS_TRIES) for bands in _in_bands(in_core.original, settings)]
    best = in_core
    for how, tries in ways:
        low = too_few
        for _ in range(tries):
            tried, found = (low + size_of(best)) // 2, None
            if size_of(best) - low <= PAGE_BYTES:
                break
            with suppress(Infeasible, DoesNotFit, PartFailed):
                found = prepared_in(how, tried)
            if found is None:
                low = tried
            else:
                best = found
    return best
