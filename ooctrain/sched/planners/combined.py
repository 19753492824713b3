"""combined: offloading and recomputation together, by search. The planner to beat.

A choice says of each value whether it is kept, dropped once or dropped repeatedly, and of each
source whether it is held for those that are computed again. Given a choice, Belady's rule offloads
the remaining excess and the as-soon-as-possible engine times it. Compiled, this takes a tenth of a
millisecond, so annealing can try thousands of choices from several starts. The readable `lower`
writes the plan itself. It is never worse than `prefix`, `belady` or `window-cyclic`, whose plans
take part. Source: ours; what it reaches is in docs/planners.md. Read next:
`sched/search/anneal.py`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.planners.belady import Belady, offload
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planners.window.window_cyclic import WindowCyclic
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import Planner, least_refusal
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import rematerialise
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

if TYPE_CHECKING:
    from ooctrain.sched.search.choice import Choice, Search


#: Steps up to this length get all evaluations; longer ones fewer, as each takes more time, and more
#: than in proportion: a prefetch looks over more runs.
CALLS, GROWTH = 600, 1.5
#: Of a time limit: for each of the starts that can be cut short.
STARTS_SHARE = 0.1
#: The search gets this share of a time limit at least, however long the starts took.
SEARCH_SHARE = 0.5
#: Evaluations that tell which of several forms of a step is worth a search.
PROMISE = 500


@dataclass(frozen=True, slots=True)
class Combined:
    """Annealing from several starts over what is kept, dropped, held; Belady and `lower` do the
    rest.

    Args:
        evaluations: how many choices are tried at most in a step of `CALLS` calls. A time limit
            cuts it short, and the plan's notes then say so.

    Cost: some 0.2 ms for each evaluation of 600 calls, and the starts' plans.
    """

    name = "combined"

    evaluations: int = 120000

    def __post_init__(self) -> None:
        number = self.evaluations
        if not isinstance(number, int | float) or not 0 <= number < math.inf:
            raise ConfigError(
                f"combined: evaluations={number!r} is not a finite number of 0 or more",
                code="OOC-105",
                fix="such as combined:evaluations=20000, or leave it out",
            )

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least of the starts'."""
        deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
        question = Question(
            trace, budget_bytes, machine, granule, host_budget_bytes, seed, time_limit_s
        )
        start_s = None if time_limit_s is None else STARTS_SHARE * time_limit_s
        best, refusals = None, list[Infeasible]()
        for planner in starts():
            try:
                plan = replace(question, time_limit_s=start_s).put_to(planner)
            except Infeasible as refusal:
                refusals.append(refusal)
                continue
            if best is None or plan.makespan_us < best.makespan_us:
                best = replace(plan, notes={"from": planner.name, **plan.notes})
            if planner.name == "keep-all":
                return best  # everything fits: nothing is faster
        if best is None:
            raise least_refusal("combined", refusals, budget_bytes)
        if time_limit_s is not None and deadline is not None:
            deadline = max(deadline, time.monotonic() + SEARCH_SHARE * time_limit_s)
        found = self._searched(question, deadline)
        if found is not None and found.makespan_us < best.makespan_us:
            best = found
        if deadline is not None and time.monotonic() >= deadline:
            best = replace(best, notes={**best.notes, "cut_short": True})
        return best

    def promise(self, question: Question) -> float:
        """How long a step takes, in ns, by the best choice of a search that has barely begun;
        beyond all durations where none fits. Cost: `PROMISE` evaluations, whatever the time.
        """
        search, first = _begun(question)
        number = _evaluations(PROMISE, question)
        return search.cost(search.improve(first[0], number, seed=question.seed, deadline=None))

    def _searched(self, question: Question, deadline: float | None) -> Plan | None:
        """The plan of the best choice: half of the search goes to the starts, half to what came of
        the best of them.
        """
        seed, (search, first) = question.seed, _begun(question)
        half = _evaluations(self.evaluations / 2, question)
        found = [
            search.improve(choice, half // len(first), seed=seed + place, deadline=deadline)
            for place, choice in enumerate(first)
        ]
        nearest = min(found, key=search.cost)
        last = seed + len(first)
        found.append(search.improve(nearest, half, seed=last, deadline=deadline, further=True))
        for choice in sorted(found, key=search.cost):
            plan = _plan_of(choice, question, search.evaluations)
            if plan is not None:
                return plan
        return None


def starts() -> tuple[Planner, ...]:
    """Whose plans take part as they are."""
    return (KeepAll(), Belady(), Prefix(), WindowCyclic())


def _evaluations(number: float, question: Question) -> int:
    """So many of a step of `CALLS` calls, in a step that may be longer."""
    longer = max(1.0, len(question.trace.calls) / CALLS)
    return int(number / longer**GROWTH)


def _begun(question: Question) -> tuple[Search, list[Choice]]:
    """A search, and what annealing begins with: values to drop."""
    # Late: it loads Numba, which planning otherwise does without.
    from ooctrain.sched.search.choice import Search

    trace, machine = question.trace, question.machine
    search = Search(trace, question.budget_bytes, machine, question.granule)
    return search, search.best_first(Prefix(steps=8).choices(trace, machine))


def _plan_of(choice: Choice, question: Question, evaluations: int) -> Plan | None:
    """The plan of a choice, or None if `lower` does not accept it."""
    runs = rematerialise(question.trace, choice.dropped, unread=choice.unread, held=choice.held)
    notes = {
        "from": "search", "evaluations": evaluations, "dropped": len(choice.dropped),
        "held": len(choice.held), "stays": len(choice.stays),
        "runs_again": len(runs) - len(question.trace.calls),
    }  # fmt: skip
    stays = frozenset(choice.stays)
    try:
        return plan_of("combined", question, offload("combined", question, runs, stays), notes)
    except Infeasible:
        return None
