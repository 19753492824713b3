"""The least memory in which a step is found to have a plan, and how it is looked for.

Whether there is a plan is all that counts here, so nobody searches for a better one: `auto` gives
way to the first of a few planners that has a plan. Those that swap find the least where the host is
a disk, those that compute again where the host has room for the inputs alone. Bands come last:
writing a step in bands takes longer than all of these. The way between too little and enough is
halved a fixed number of times, and what was asked plays no part in it; who asks for what a refusal
names gets this plan, if no better one is found. It is the least that was *found*: a longer search
may find a plan in less. Read next: `division.py`, which asks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ooctrain.devices.cpu.host_vm import PAGE_BYTES
from ooctrain.errors import DoesNotFit, Infeasible, PartFailed
from ooctrain.execution.planners import as_planner
from ooctrain.execution.prepare import PreparedStep
from ooctrain.execution.settings import Settings
from ooctrain.rewrite.tile.banded import MORE_CALLS, can_be_banded, offers_for
from ooctrain.rewrite.tile.offers import tiled_as_offered
from ooctrain.rewrite.tile.sft_planner import with_tiling
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.rotor import Rotor
from ooctrain.sched.planners.superneurons import SuperNeurons
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning.host_room import is_short_of_host
from ooctrain.sched.planning.planner import Planner, host_lacks, least_refusal
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: How often the way between too little memory and enough is halved, by planners that answer at
#: once, and then by bands.
LEAST_TRIES, BANDS_TRIES = 6, 3
#: Tilings that are written for one try, and calls of the longest step that is: each takes some
#: seconds for a thousand calls.
WRITTEN, MOST_BANDED_CALLS = 2, 1000
#: A time limit that is over at once, on any clock: planners then take the first plan they find.
NO_TIME_S = sys.float_info.min


class FirstFound:
    """The plan of the first of some planners that has one, of the step or of an offered form.

    Cost: theirs, until there is a plan.
    """

    name = "first-found"

    def __init__(self, *planners: Planner, forms: Mapping[str, Trace] | None = None):
        self._planners, self._forms = planners, forms or {}

    def offered(self, steps: Mapping[str, Trace]) -> FirstFound:
        """See `OfferedPlanner`."""
        return FirstFound(*self._planners, forms=steps)

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least of all asked."""
        question = Question(
            trace, budget_bytes, machine, granule, host_budget_bytes, seed, time_limit_s
        )
        refusals: list[Infeasible] = []
        for form_name, form in {"": trace, **self._forms}.items():
            rewrites = (form_name,) if form_name else ()
            for planner in self._planners:
                try:
                    plan = replace(question, trace=form).put_to(planner)
                except Infeasible as refusal:
                    refusals.append(refusal)
                except PartFailed:
                    refusals.append(host_lacks(planner.name))
                else:
                    notes = {**plan.notes, "chosen": planner.name}
                    return replace(plan, rewrites=(*rewrites, *plan.rewrites), notes=notes)
        raise least_refusal(self.name, refusals, budget_bytes)


def at_once(settings: Settings) -> Settings:
    """The settings with planners that answer at once; one that was chosen stays, and is given no
    time to search."""
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

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least of all that were written."""
        question = Question(trace, budget_bytes, machine, granule, host_budget_bytes, seed)
        moves = ("nothing",) if is_short_of_host(question) else ("borders", "all")
        offers = [o for o in offers_for(trace, machine, untiled=False) if o.moves in moves]
        refusals: list[Infeasible] = []
        fitting = [offer for offer in offers if 0 < offer.need_bytes <= budget_bytes]
        for offer in fitting[:WRITTEN]:
            try:
                tiled = tiled_as_offered(trace, offer)
                if tiled is None or len(tiled.calls) > MORE_CALLS:
                    continue
                plan = replace(question, trace=tiled).put_to(Belady())
            except PartFailed:
                continue
            except Infeasible as refusal:
                refusals.append(refusal)
            else:
                return with_tiling(plan, offer, trace_minimum_bytes(tiled, granule))
        raise least_refusal(self.name, refusals or [host_lacks(self.name)], budget_bytes)


def _in_bands(trace: Trace, settings: Settings) -> Iterator[Settings]:
    """The settings with bands alone, if they may help and `auto` may ask for them."""
    short, planner = len(trace.calls) <= MOST_BANDED_CALLS, as_planner(settings.planner)
    asks = isinstance(planner, Auto) and not planner.asks_nobody_besides
    if short and asks and can_be_banded(trace):
        yield replace(settings, planner=LeanBands(), time_limit_s=NO_TIME_S)


def least_found(
    settings: Settings, in_core: PreparedStep, too_few: int,
    prepared_in: Callable[[Settings, int], PreparedStep | None],
    size_of: Callable[[PreparedStep], int],
) -> PreparedStep:  # fmt: skip
    """A plan with little memory. Cost: `LEAST_TRIES` and `BANDS_TRIES` plans.

    Args:
        in_core: where the way begins.
        too_few: bytes in which there is no plan.
        prepared_in: makes the step within a number of bytes; None, `Infeasible` and `DoesNotFit`
            say that there is none.
        size_of: of a step, what is counted against these.
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
