"""prefix: recompute the values that are cheap per byte, offload the rest.

Sort the values of the forward pass by recomputation time per byte freed. Drop a prefix of that
order, let Belady offload the remaining excess, and take the prefix whose plan is the fastest. With
nothing dropped it is `belady`; with everything cheap dropped, batch norms and ReLUs run twice and
convolutions once. Where host memory is short, Belady's rule sends out no more than fits there, and
what was dropped may be dropped again after each use. Source: ours, as the smallest planner that
combines both. Read next: `combined.py`, which searches where this one sorts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

from ooctrain.errors import Infeasible
from ooctrain.sched.planners.belady import offload
from ooctrain.sched.planning.lower import Lowered, lower_within
from ooctrain.sched.planning.planner import check_host, check_whole_numbers, least_of, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, last_forward_use, rematerialise
from ooctrain.sched.schedule import Plan, Run
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace

#: Distances at which neighbours of the best prefix are tried, after every fourth prefix.
COARSE, FINER = 4, (2, 1)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The best of some prefixes of the values sorted by recompute time per byte.

    Args:
        steps: how finely the length is chosen: evenly spaced, besides none and all. Every fourth is
            tried, then the neighbours of the best.

    Cost: for each prefix that is tried that of `lower`.
    """

    name = "prefix"

    steps: int = 16

    def __post_init__(self) -> None:
        check_whole_numbers(self.name, {"steps": self.steps}, least=0)

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of all prefixes."""
        host_budget_bytes = question.host_budget_bytes
        prefixes = [Dropped(prefix) for prefix in self.choices(question.trace, question.machine)]
        attempts = _Attempts(replace(question, host_budget_bytes=None), prefixes)
        attempts.make_best()
        plan, refusals = attempts.best_plan(host_budget_bytes)
        if not any(refusal.needs == "host" for refusal in refusals):
            return plan or _raised(refusals)
        # The host is short: Belady's rule has that limit, and values may be dropped repeatedly.
        again = [Dropped(choice.values, choice.values) for choice in prefixes[1:]]
        within = _Attempts(question, [*prefixes, *again])
        within.make_best()
        plans = [found for found in (plan, within.best_plan(host_budget_bytes)[0]) if found]
        return min(plans, key=lambda plan: plan.makespan_us) if plans else _raised(refusals)

    def choices(self, trace: Trace, machine: Machine) -> list[tuple[int, ...]]:
        """The prefixes, by length: none first, all last."""
        order = by_recompute_time(trace, machine)
        lengths = {round(step * len(order) / (self.steps + 1)) for step in range(self.steps + 2)}
        return [order[:length] for length in sorted(lengths)]


class Dropped(NamedTuple):
    """Values to drop, and those of them that die again unless the next call reads them."""

    values: tuple[int, ...]
    unread: tuple[int, ...] = ()


def _raised(refusals: Sequence[Infeasible]) -> NoReturn:
    """Raises the refusal with the least budget."""
    raise least_of(refusals)


@dataclass(slots=True)
class _Attempts:
    """What came of some choices: a list, or a refusal, by place in `choices`.

    Attributes:
        question: its host budget is that of Belady's rule.
        cut_short: whether the deadline has kept one from being tried.
    """

    question: Question
    choices: Sequence[Dropped]
    cut_short: bool = False
    runs: dict[int, tuple[Run, ...]] = field(default_factory=dict)
    lists: dict[int, Lowered] = field(default_factory=dict)
    refusals: dict[int, Infeasible] = field(default_factory=dict)

    def make_best(self) -> None:
        """Tries every fourth choice, then the neighbours of the best."""
        self.make(range(0, len(self.choices), COARSE))
        for distance in FINER:
            for best in self.fastest_first()[:1]:
                self.make((best - distance, best + distance))
        if not self.lists:
            self.make(range(len(self.choices)))

    def make(self, places: Iterable[int]) -> None:
        """Tries those of some choices that exist and have not been tried."""
        asked = self.question
        for place in places:
            if place in self.runs or not 0 <= place < len(self.choices):
                continue
            if self.lists and asked.effort.deadline.passed():
                self.cut_short = True
                break
            choice = self.choices[place]
            runs = rematerialise(asked.trace, choice.values, unread=choice.unread)
            self.runs[place] = runs
            try:
                decisions = offload("prefix", asked, runs)
            except Infeasible as refusal:
                self.refusals[place] = refusal
            else:
                self.lists[place] = lower_within(decisions, asked)

    def best_plan(self, host_budget_bytes: int | None) -> tuple[Plan | None, list[Infeasible]]:
        """The fastest plan within the host budget, and why others failed: what does not fit, and
        what would be faster but takes more of the host.
        """
        trace, machine = self.question.trace, self.question.machine
        refusals = list(self.refusals.values())
        found_refusals: list[Infeasible] = []
        for place in self.fastest_first():
            dropped, again = self.choices[place].values, len(self.runs[place]) - len(trace.calls)
            notes: dict[str, Any] = {"dropped": len(dropped), "runs_again": again}
            notes |= {"cut_short": True} if self.cut_short else {}
            plan = make_plan(self.lists[place].schedule, trace, machine, notes)
            try:
                check_host("prefix", plan, host_budget_bytes)
            except Infeasible as refusal:
                found_refusals.append(refusal)
            else:
                return plan, found_refusals
        return None, [*found_refusals, *refusals]

    def fastest_first(self) -> list[int]:
        """The places that have lists, by makespan."""
        return sorted(self.lists, key=lambda place: (self.lists[place].makespan_ns, place))


def by_recompute_time(trace: Trace, machine: Machine) -> tuple[int, ...]:
    """The droppable values, those first that take the least time per byte to compute again.

    The time counts whatever has to run before, if this value alone is dropped. Values that nothing
    brings back come last: `rematerialise` keeps them.
    """
    durations = call_durations_ns(trace, machine)

    def time_per_byte(var: int) -> float:
        calls = _brought_back_by(trace, var)
        if calls is None:
            return float("inf")
        return sum(durations[call] for call in calls) / trace.variables[var].nbytes

    return tuple(sorted(droppable(trace), key=lambda var: (time_per_byte(var), var)))


def _brought_back_by(trace: Trace, dropped: int) -> set[int] | None:
    """The calls that run again if one value alone is dropped; None: it cannot be had again."""
    needed = next(use for use in trace.uses[dropped] if use > last_forward_use(trace, dropped))
    lasting = frozenset(trace.end_variables.values())
    calls, missing = set[int](), [dropped]
    while missing:
        producer = trace.producer[missing.pop()]
        if producer is None or not trace.calls[producer].pure:
            return None
        if producer not in calls:
            calls.add(producer)
            missing += [
                source
                for source in trace.calls[producer].ins
                if trace.uses[source][-1] < needed and source not in lasting
            ]
    return calls
