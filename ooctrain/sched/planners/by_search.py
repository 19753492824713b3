"""The plan that the compiled search finds for a question: from where it begins, and how long it is.

A search begins with values to drop (`prefix`), and with the runs of plans that compute again. A
third of its moves goes to the most promising starts, a third to what came of the best of them, and
in the last gaps are turned one by one (`sched/search/search.py`). Where nothing can wait on the
host, from where the last round goes on matters more than how good that is: there many short
searches come first. Belady's rule and the readable `lower` write the plan down. Source: ours. Read
next: `sched/search/search.py`; `combined.py`, which asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ooctrain.errors import Infeasible
from ooctrain.sched.planners.belady import offload
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.host_gaps import is_host_tight, without_host
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan, Run

if TYPE_CHECKING:
    from ooctrain.sched.search.kept import Kept
    from ooctrain.sched.search.search import Search

#: Steps up to this length get all evaluations; longer ones fewer, as each takes more time, and more
#: than in proportion: a prefetch looks over more runs.
CALLS, GROWTH = 600, 1.5
#: Moves of a round for each evaluation; `MORE` for each of the first, up to `FEW` in all: what a
#: search of a few hundred lists for all of its rounds finds is chance.
MOVES, MORE, FEW = 0.6, 2, 400
#: A search counts on from its seed, in 64 bits; of NumPy's numbers it would be compiled once more.
SEEDS = 1 << 62


class Found(NamedTuple):
    """The plan of the best that a search found, None if there is none, and whether the clock ended
    it.
    """

    plan: Plan | None
    cut_short: bool


def found_by_search(
    question: Question, evaluations: float, deadline: Deadline, others: Iterable[Plan] = ()
) -> Found:
    """The fastest plan that a search finds; where the host has not got room for all that has to
    leave, it searches once more as if it had none, as these lists are hard to find by small steps
    from those that swap. In a long step each search then gets half of the evaluations, in any step
    half of the time.

    Args:
        evaluations: what it may cost, which is no number of lists: each round of the search tries
            `MOVES` for each evaluation, and `MORE` for each of the first.
        others: plans that run calls again, from which it may begin, too.
    """
    if not is_host_tight(question):
        return _found(question, evaluations, deadline, others)
    others, share = list(others), 1.0 if len(question.trace.calls) <= CALLS else 0.5
    first = deadline.earlier((deadline.left_s() or 0.0) / 2)
    with_host = _found(question, share * evaluations, first, others)
    without = _found(without_host(question), share * evaluations, deadline, others)
    plans = [found.plan for found in (with_host, without) if found.plan is not None]
    best = min(plans, key=lambda plan: plan.makespan_us, default=None)
    return Found(best, with_host.cut_short or without.cut_short)


def promised_ns(question: Question, evaluations: float, deadline: Deadline) -> float:
    """How long a step takes, in ns, by the best that a search finds which has barely begun; beyond
    all durations where nothing fits.
    """
    # Late: it loads Numba, which planning otherwise does without.
    from ooctrain.sched.search.search import FIRST

    search, first = _begun(question)
    moves, seed = _moves(evaluations, question), int(question.seed) % SEEDS
    return search.cost(search.improve(first[0], moves, FIRST, seed=seed, deadline=deadline))


def _found(
    question: Question, evaluations: float, deadline: Deadline, others: Iterable[Plan]
) -> Found:
    search, first = _begun(question, others)
    moves = _moves(MOVES * evaluations + min(MORE * evaluations, FEW), question)
    seed = int(question.seed) % SEEDS
    found = search.best_of(first, moves, seed=seed, deadline=deadline)
    plan = next(filter(None, (_plan_of(search, kept, question) for kept in found)), None)
    if plan is not None:
        plan = replace(plan, notes={**plan.notes, "evaluations": search.evaluations})
    return Found(plan, search.cut_short)


def _moves(number: float, question: Question) -> int:
    """So many of a step of `CALLS` calls, in a step that may be longer."""
    longer = max(1.0, len(question.trace.calls) / CALLS)
    return int(number / longer**GROWTH)


def _begun(question: Question, others: Iterable[Plan] = ()) -> tuple[Search, list[Kept]]:
    """A search, and the most promising of what it may begin with.

    Args:
        others: plans that run calls again, whose runs are tried, too.
    """
    # Late: it loads Numba, which planning otherwise does without.
    from ooctrain.sched.search.search import Search

    search = Search(question)
    prefixes = Prefix(steps=8).choices(question.trace, question.machine)
    first = [search.dropping(prefix) for prefix in prefixes]
    if search.short_of_host:
        first += [search.dropping(prefix, repeatedly=True) for prefix in prefixes]
    for plan in others:
        runs = [i for i in plan.schedule.instructions if isinstance(i, Run)]
        first.append(search.keeping(runs))
    return search, search.best_first(first)


def _plan_of(search: Search, kept: Kept, question: Question) -> Plan | None:
    """The plan of what is kept, or None if it does not fit, or `lower` does not accept it."""
    if not search.fits(kept):
        return None
    runs, stays = search.runs(kept), search.stays(kept)
    notes = {
        "from": "search", "stays": len(stays), "runs_again": len(runs) - len(question.trace.calls)
    }  # fmt: skip
    try:
        decisions = offload("combined", question, runs, frozenset(stays))
        return plan_of("combined", question, decisions, notes)
    except Infeasible:
        return None
