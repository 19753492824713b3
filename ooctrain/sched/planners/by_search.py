"""The plan that the compiled search finds for a question: from where it begins, and its phases.

A search begins with values to drop (`prefix`), and with the runs of plans that compute again. Some
of its moves go to the most promising starts, as many to what came of the best of them, and then
gaps are turned one by one (`sched/search/search.py`). Where nothing can wait on the host, from
where the last phase goes on matters more than how good that is: there many short searches come
first. Belady's rule and the readable `lower` write the plan down. Source: ours. Read next:
`sched/search/search.py`; `combined.py`, which asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
#: Where nothing can wait on the host: number of searches, and the least evaluations of each; where
#: there are too few for that, there are as few searches as elsewhere.
SEVERAL, EACH = 10, 500
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
        evaluations: how many lists are tried in a step of `CALLS` calls; half as many more in the
            last phase.
        others: plans that run calls again, from which it may begin, too.
    """
    if not is_host_tight(question):
        return _found(question, evaluations, deadline, others)
    others, share = list(others), 1.0 if len(question.trace.calls) <= CALLS else 0.5
    first = deadline.earlier((deadline.left_s() or 0.0) / 2)
    with_host = _found(question, share * evaluations, first, others)
    without = _found(without_host(question), share * evaluations, deadline, others)
    return Found(_fastest([with_host.plan, without.plan]), with_host.cut_short or without.cut_short)


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
    moves, seed = _moves(evaluations / 2, question), int(question.seed) % SEEDS
    many = search.copies_nothing and moves >= SEVERAL * EACH
    phases = _many_searches if many else _few_searches
    plans = list[Plan | None]()
    for found in phases(search, first, moves, seed, deadline):
        plans.append(next(filter(None, (_plan_of(search, kept, question) for kept in found)), None))
        if deadline.passed():
            break
    return Found(_fastest(plans, search.evaluations), search.cut_short)


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


def _few_searches(
    search: Search, first: Sequence[Kept], moves: int, seed: int, deadline: Deadline
) -> Iterable[list[Kept]]:
    """What annealing finds, the best first: half of the evaluations go to the starts, half to what
    came of the best of them. Then what turning gaps makes of it.
    """
    from ooctrain.sched.search import search as phases

    found = [
        search.improve(kept, moves // len(first), phases.FIRST, seed=seed + place, deadline=deadline)
        for place, kept in enumerate(first)
    ]
    nearest, last = min(found, key=search.cost), seed + len(first)
    further = phases.SHORT if search.short_of_host else phases.FURTHER
    found.append(search.improve(nearest, moves, further, seed=last, deadline=deadline))
    found.sort(key=search.cost)
    yield found
    if search.copies_nothing:
        yield _turned(search, found, 4 * moves, seed + len(found), deadline)
    else:
        phase = phases.LAST
        yield [search.improve(found[0], moves, phase, seed=seed + len(found), deadline=deadline)]


def _many_searches(
    search: Search, first: Sequence[Kept], moves: int, seed: int, deadline: Deadline
) -> Iterable[list[Kept]]:
    """What short searches find where nothing is copied, the best first; then what turning gaps
    makes of each that fits, and of the best of these.
    """
    from ooctrain.sched.search import search as phases

    each = moves // (2 * SEVERAL)
    found = [
        search.improve(
            first[place % len(first)], each, phases.FIRST, seed=seed + place, deadline=deadline
        )
        for place in range(SEVERAL)
    ]
    found = [
        search.improve(kept, each, phases.SHORT, seed=seed + place, deadline=deadline)
        for place, kept in enumerate(found, SEVERAL)
    ]
    found.sort(key=search.cost)
    last = seed + 2 * SEVERAL
    if not search.fits(found[0]):
        found.insert(0, search.improve(found[0], moves, phases.SHORT, seed=last, deadline=deadline))
    yield found
    yield _turned(search, found, 4 * moves, seed + len(found), deadline)


def _turned(search, found, moves, seed, deadline):
    from ooctrain.sched.search import search as phases

    fitting = [kept for kept in found if search.fits(kept)]
    if not fitting:
        return []
    each = moves // (2 * len(fitting))
    turned = [
        search.improve(kept, each, phases.TURNED, seed=seed + place, deadline=deadline)
        for place, kept in enumerate(fitting)
    ]
    turned.sort(key=search.cost)
    return [
        search.improve(turned[0], moves // 2, phases.COOLER, seed=seed + len(found), deadline=deadline),
        *turned,
    ]


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


def _fastest(plans: Iterable[Plan | None], evaluations: int | None = None) -> Plan | None:
    """The fastest of some plans, the first of equals."""
    found = min(filter(None, plans), key=lambda plan: plan.makespan_us, default=None)
    if found is None or evaluations is None:
        return found
    return replace(found, notes={**found.notes, "evaluations": evaluations})
