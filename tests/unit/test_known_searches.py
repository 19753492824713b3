"""Compiled searches cost what is kept, and find lists, as they did.

`test_search.py` and `test_kept.py` hold what is compiled to the readable modules. Which moves are
tried, in which order and how hot, has no readable twin: a search with another rule finds a legal
list, too, only a slower one.
`support/known.py` says why the answers stand in a table. Steps
are so small that the tests may also run what is compiled as plain Python.
"""

from __future__ import annotations

from random import Random

import pytest
from support import known
from support.known_steps import DUPLEX, MACHINE
from support.worked_example import worked_trace
from unit.test_search import random_kept

from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners import by_search
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule
from ooctrain.sched.search import anneal, evict, expand, field, kept, moves, play, search, tables
from ooctrain.sched.search.search import ROUNDS, Search
from ooctrain.step.chain import chain
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import random_trace

#: Their mistakes are this file's to notice.
JUDGED = anneal, by_search, evict, expand, field, kept, moves, play, search, tables
NO_LIMIT = Deadline.after(None)


def chained() -> Trace:
    sizes = [4000, 9000, 7000, 3000, 8000, 6000, 2000]
    return chain(sizes, sizes[::-1], [9, 7, 8, 5, 6, 7], [8, 9, 12, 8, 7, 9], [500] * 6, [700] * 6)


STEPS = {
    "worked": worked_trace, "chain": chained,
    "random": lambda: random_trace(Random(11), calls=12, max_bytes=3000),
    "shared": lambda: random_trace(Random(4), calls=16, max_bytes=2000),
}  # fmt: skip
#: (share of the way from the least to the peak, machine, granule, host bytes as a share of it)
QUESTIONS = (
    (0.2, MACHINE, BYTES, None), (0.5, DUPLEX, Granule(64), None), (0.4, MACHINE, BYTES, 0.5),
    (0.6, DUPLEX, BYTES, 0.0), (0.8, MACHINE, Granule(256, ranges=False), 0.3),
)  # fmt: skip


def asked(step: Trace, which: int) -> Question:
    share, machine, granule, host = QUESTIONS[which]
    least, most = trace_minimum_bytes(step, granule), trace_peak_bytes(step, granule)
    held = sum(v.nbytes for v in step.variables if step.producer[v.id] is None)
    room = None if host is None else held + int((most - least) * host)
    return Question(step, int(least + (most - least) * share), machine, granule, room)


@pytest.mark.parametrize("which", range(len(QUESTIONS)))
@pytest.mark.parametrize("name", STEPS)
def test_a_search_costs_and_finds_what_it_did(name, which):
    step = STEPS[name]()
    question = asked(step, which)
    search = Search(question)
    begun = [search.dropping(p) for p in Prefix(steps=3).choices(step, question.machine)]
    begun += [search.dropping(p, repeatedly=True) for p in Prefix(steps=2).choices(step, MACHINE)]
    begun += [random_kept(search, seed) for seed in range(3)]
    rows: list[known.Row] = [("costs", *map(search.cost, begun))]
    for number, part in enumerate(ROUNDS):
        found = search.improve(begun[-1], 24, part, seed=3, deadline=NO_LIMIT)
        rows.append((f"round {number}", search.cost(found), search.evaluations,
                     known.digest(shown(search, found))))  # fmt: skip
    first = search.best_first(begun)
    rows.append(("best", known.digest([shown(search, kept) for kept in first])))
    found = search.best_of(first, 40, seed=5, deadline=NO_LIMIT)
    rows += [("found", search.cost(kept), known.digest(shown(search, kept))) for kept in found[:3]]
    known.check_rows("searches", f"{name} {which}", rows)


def shown(search, kept):
    """What is kept, and its runs where all that is read can be computed."""
    ok = expand.expand(search.tables, kept.until).ok
    return kept.until.tolist(), search.stays(kept), search.runs(kept) if ok else None


@pytest.mark.parametrize("name", STEPS)
def test_the_plan_of_what_is_searched_is_what_it_was(name):
    step, rows = STEPS[name](), []
    for which in range(len(QUESTIONS)):
        question = asked(step, which)
        plan, cut_short = by_search.found_by_search(question, 30, NO_LIMIT)
        promised = by_search.promised_ns(question, 20, NO_LIMIT)
        rows.append((which, cut_short, promised, known.digest(plan and plan.schedule.text()),
                     known.digest(plan and plan.notes)))  # fmt: skip
    known.check_rows("searched_plans", name, rows)
