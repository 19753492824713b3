"""banded: the step in bands or tiles, with the tiling that leads to the fastest plan.

The planner takes a step and a budget and returns a plan of the tiled step. First it chooses the
segments and the heights of their bands from estimates, for a series of limits of memory
(`choose.py`). Then a planner of lists decides which rows to keep, to swap or to run again, for the
few choices around the budget. The choices are of three kinds: tilings that fit without swapping,
tilings that fit if the values between segments are swapped, both with their forward calls written
into the backward pass once more, and bands whose forward calls are written once, so that the
planner decides. Once one of them has a plan, a fourth kind is tried, made for just these budgets of
device and host, in which some segments run again and others are moved, and a fifth, in which
nothing runs in bands but what is too wide alone (both `mixed_bands.py`).

Source: ours; docs/tiling.md. Read next: `choose.py`; `execution/planners.py`, where `auto` asks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ooctrain.errors import Infeasible, PartFailed, failing_as
from ooctrain.rewrite.tile.choose import tilings_of
from ooctrain.rewrite.tile.mixed_bands import few_tilings, mixed_tilings, sparing
from ooctrain.rewrite.tile.offers import (
    MOVES,
    UNTILED,
    Offer,
    OperatorTimes,
    alive_as_offered,
    known_alive_bytes,
    nothing_fits,
    tiled_as_offered,
)
from ooctrain.rewrite.tile.operators import operators_of
from ooctrain.rewrite.tile.segment_costs import without_rule
from ooctrain.rewrite.tile.sft_planner import with_tiling
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.registry import as_planner
from ooctrain.sched.planning.host_gaps import is_short_of_host
from ooctrain.sched.planning.planner import (
    Planner,
    ask,
    call_need_bytes,
    check_evaluations,
    check_true_or_false,
    check_whole_numbers,
    remarked,
)
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.op import why_untiled
from ooctrain.step.trace import Trace

#: Plans that are compared once one has fitted; fewer of long lists.
MORE_CHOICES, MORE_CALLS = 6, 20_000
#: How finely `prefix` chooses where lists have up to `LONG_CALLS` calls, where more, and where more
#: than `VERY_LONG`: each of those takes it five seconds and more, so nothing else is tried.
FINE, COARSE, COARSEST, LONG_CALLS, VERY_LONG = 16, 8, 2, 12_000, 50_000
#: Of a step in which few calls run in bands: the most calls that are searched, and for how long if
#: the question does not say; none where a plan takes at most so much longer than the calls do.
MOST_SEARCHED, EVALUATIONS, NEAR = 2000, 10_000, 1.05


@dataclass(frozen=True, slots=True)
class Banded:
    """The fastest of some tilings.

    Args:
        planner: planner of the lists, by name; "": `belady` and `prefix`, and `combined` where few
            calls run in bands.
        untiled: whether the step as it is is one of the choices.
        evaluations: number that a search may use; None: the question's, or its own.
        choices: how many plans are compared; with 1 the first one is taken.

    Cost: that of the planner, for about `choices` tiled steps.
    """

    name = "banded"

    planner: str = ""
    untiled: bool = True
    evaluations: int | None = None
    choices: int = MORE_CHOICES

    def __post_init__(self) -> None:
        check_true_or_false(self.name, {"untiled": self.untiled})
        check_whole_numbers(self.name, {"choices": self.choices})
        check_evaluations(self.name, self.evaluations)
        if self.planner != "":
            as_planner(self.planner)  # a wrong name is an error at once

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of all choices."""
        if self.evaluations is not None:
            effort = replace(question.effort, evaluations=self.evaluations)
            question = replace(question, effort=effort)
        question = replace(question, forms={})
        budget_bytes = question.budget_bytes
        planner = as_planner(self.planner) if self.planner != "" else None
        attempts = _Attempts(question, planner, self.choices)
        offers = attempts.offered(lambda of: offers_for(of.trace, of.machine, untiled=self.untiled))
        in_turn = _in_turn(offers, budget_bytes)
        for offer in in_turn:
            attempts.make(offer)
            if attempts.best is not None:
                break
        if attempts.best is not None and self.choices == 1:
            return remarked(attempts.best, attempts.failures)
        mixed = attempts.best is not None and attempts.calls <= VERY_LONG
        for offer in attempts.offered(_mixed) if mixed else ():
            attempts.make(offer, of_any_length=True)
        for offer in in_turn:
            if attempts.enough():
                break
            attempts.make(offer)
        for faster in attempts.offered(_sparing_of(attempts.offer)):
            attempts.make(faster)
        for offer in attempts.offered(_few) if mixed else ():
            attempts.search(offer)
        if not (attempts.best or attempts.refusals):  # no offer could be written
            attempts.make(UNTILED)
        if attempts.best is None:
            failed = next(iter(attempts.failures), None)
            if failed is not None and not attempts.refusals:
                raise failed
            missing = missing_rules(question.trace)
            raise nothing_fits(self.name, budget_bytes, attempts.refusals, missing) from failed
        return remarked(attempts.best, attempts.failures)


def can_be_banded(trace: Trace) -> bool:
    """Whether there is anything to choose for a step."""
    operators = operators_of(trace)
    missing = set(without_rule(operators))
    return any(call.name not in missing for call in operators.calls)


def missing_rules(trace: Trace) -> dict[str, str]:
    """{forward call that no band can contain: why}."""
    operators = operators_of(trace)
    names = set(without_rule(operators))
    return {call.name: why_untiled(call.op) for call in operators.calls if call.name in names}


def offers_for(trace: Trace, machine: Machine, *, untiled: bool = True) -> list[Offer]:
    """What can be chosen of, the most memory first; it does not depend on the budget."""
    operators = operators_of(trace)
    times = OperatorTimes.of(operators, machine)
    whole = [Offer((), 1.0, why="the untiled step is the fastest that fits")] if untiled else []
    found = tilings_of(operators, times, machine)
    return [*whole, *found] or [UNTILED]


def _mixed(question: Question) -> list[Offer]:
    """What is made for these budgets: some segments run again, others are moved."""
    operators = operators_of(question.trace)
    return mixed_tilings(operators, OperatorTimes.of(operators, question.machine), question)


def _few(question: Question) -> list[Offer]:
    """What runs nothing in bands but what is too wide alone."""
    operators = operators_of(question.trace)
    return few_tilings(operators, OperatorTimes.of(operators, question.machine), question)


def _sparing_of(offer: Offer | None) -> Callable[[Question], list[Offer]]:
    """The best offer, if more is stored; see `mixed_bands.sparing`."""

    def offered(question: Question) -> list[Offer]:
        operators = operators_of(question.trace)
        times = OperatorTimes.of(operators, question.machine)
        found = None if offer is None else sparing(operators, times, offer)
        return [] if found is None else [found]

    return offered


def _in_turn(offers: Sequence[Offer], budget_bytes: int) -> Iterator[Offer]:
    """The offers in the order in which they are tried: of all kinds in turns, first the one that
    is estimated to fit just not, then those that do, which leave a planner more room to move
    things, and last those that need still more.
    """
    kinds = [[offer for offer in offers if offer.moves == moves] for moves in reversed(MOVES)]
    ordered = []
    for kind in kinds:
        above = [offer for offer in kind if offer.need_bytes > budget_bytes]
        below = [offer for offer in kind if offer.need_bytes <= budget_bytes]
        ordered.append([*above[-1:], *below, *above[-2::-1]])
    for pair in itertools.zip_longest(*ordered):
        yield from (offer for offer in pair if offer is not None)


class _Attempts:
    """Plans of tiled steps, the best of them and its offer, and why others have none: refusals, and
    failures of a rewrite or planner, which end that one offer.
    """

    def __init__(self, question: Question, planner: Planner | None, choices: int) -> None:
        self.question, self.planner, self.choices = question, planner, choices
        self.best: Plan | None = None
        self.offer: Offer | None = None
        self.refusals: list[Infeasible] = []
        self.failures: list[PartFailed] = []
        self.made, self.calls, self.least, self.host_too_small = 0, 0, math.inf, False
        durations = call_durations_ns(question.trace, question.machine)
        self.untiled_us = sum(durations) / 1000

    def enough(self) -> bool:
        """Whether a plan has been found and as many others as are worth their time."""
        tried = self.made >= self.choices or self.calls >= MORE_CALLS
        return self.best is not None and tried

    def offered(self, offers: Callable[[Question], Sequence[Offer]]) -> Sequence[Offer]:
        """What can be chosen of, too; nothing where finding that out fails."""
        try:
            with failing_as("choosing tilings"):
                return offers(self.question)
        except PartFailed as failure:
            self.failures.append(failure)
            return ()

    def make(self, offer: Offer, *, of_any_length: bool = False) -> None:
        """See `_make`; a failure ends this offer alone."""
        try:
            self._make(offer, of_any_length)
        except PartFailed as failure:
            self.failures.append(failure)

    def _make(self, offer: Offer, of_any_length: bool) -> None:
        """Plans an offer, unless a better plan is there, or no list of it can have the least budget
        of all, or it would take too long.
        """
        if self.best and offer.work * self.untiled_us >= self.best.makespan_us:
            return
        if self.best and self.calls >= MORE_CALLS and not of_any_length:
            return
        if self._lacks_host(offer):
            return
        tiled = tiled_as_offered(self.question.trace, offer)
        if tiled is None:
            return
        too_long = self.calls + len(tiled.calls) > MORE_CALLS and not of_any_length
        if self.best and too_long:
            return
        if self._largest_call_bytes(tiled) >= self.least:  # and so above the budget, as that is
            return
        asked = replace(self.question, trace=tiled)
        fits = self._ask(asked, offer, self.planner or Belady())
        if fits and self.planner is None and offer.moves == "all":
            self._ask(asked, offer, Prefix(_fineness(len(tiled.calls))))
        self.made += fits
        self.calls += fits * len(tiled.calls)

    def search(self, offer: Offer) -> None:
        """Lets `combined`, or the planner that is named, plan an offer of few calls in bands,
        unless the best plan is near what no list beats. It only finds faster plans: such an offer
        depends on the budget, and the least budget does not.
        """
        assert self.best is not None, "a search pays where there is a plan"
        if self.best.makespan_us <= max(NEAR, offer.work) * self.untiled_us:
            return
        number = self.question.effort.evaluations
        planner = self.planner or Combined(EVALUATIONS if number is None else number)
        try:
            tiled = tiled_as_offered(self.question.trace, offer)
            if tiled is None or len(tiled.calls) > min(MOST_SEARCHED, MORE_CALLS - self.calls):
                return
            asked = replace(self.question, trace=tiled)
            self._take(ask(planner, asked), asked, offer, planner)
        except Infeasible:
            return
        except PartFailed as failure:
            self.failures.append(failure)

    def _lacks_host(self, offer: Offer) -> bool:
        """Whether `belady`, which runs first, would refuse since device and host together hold
        too little, and that would be no news. Mostly that is known before the tiled step is
        written; else what it needs is known from earlier questions about the step.
        """
        question, known = self.question, self.best is not None or self.host_too_small
        if not known or self.planner is not None or not is_short_of_host(question):
            return False
        assert question.host_budget_bytes is not None, "the host is short"
        both_bytes = question.budget_bytes + question.host_budget_bytes
        if known_alive_bytes(question.trace, offer.rewrites) > both_bytes:
            return True
        needs = alive_as_offered(question.trace, offer.rewrites)
        return needs is not None and needs > both_bytes

    def _largest_call_bytes(self, tiled: Trace) -> int:
        """Below that no list of a step fits, even one that moves parameters away as well."""
        granule = self.question.granule
        needs = (call_need_bytes(call, tiled, granule) for call in tiled.calls)
        return granule.fixed_bytes + max(needs, default=0)

    def _ask(self, asked: Question, offer: Offer, planner: Planner) -> bool:
        """Whether a planner has a plan; the best is kept."""
        try:
            plan = ask(planner, asked)
        except Infeasible as refusal:
            self.refusals.append(refusal)
            if refusal.minimum_bytes is None:
                self.host_too_small = True
            else:
                self.least = min(self.least, refusal.minimum_bytes)
            return False
        self._take(plan, asked, offer, planner)
        return True

    def _take(self, plan: Plan, asked: Question, offer: Offer, planner: Planner) -> None:
        """Keeps the plan of an offer if it is the best."""
        if self.best is None or plan.makespan_us < self.best.makespan_us:
            least = trace_minimum_bytes(plan.trace, asked.granule)
            tiled = with_tiling(plan, replace(offer, kept_bytes=_kept_bytes(plan.trace)), least)
            self.best = replace(tiled, notes={**tiled.notes, "lists_by": planner.name})
            self.offer = offer


def _fineness(calls: int) -> int:
    """The steps of `prefix` for a list of this many calls."""
    if calls > VERY_LONG:
        return COARSEST
    return FINE if calls < LONG_CALLS else COARSE


def _kept_bytes(trace: Trace) -> int:
    """Rows that bands keep for the next one, of all bands together."""
    return sum(v.nbytes for v in trace.variables if ".kept[" in v.name)
