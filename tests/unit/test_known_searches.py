"""Compiled searches cost choices, and find lists, as they did.

`test_search.py` holds what is compiled to the readable modules, on lists that Hypothesis draws.
Which moves are tried, in which order and how hot, has no readable twin: a search with another rule
finds a legal list, too, only a slower one.
`support/known.py` says why the answers stand in a table. Steps
are so small that the tests may also run what is compiled as plain Python.
"""

from __future__ import annotations

from random import Random

import pytest
from support import known
from support.known_steps import DUPLEX, MACHINE
from support.worked_example import worked_trace

from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable_uses, rematerialise_after
from ooctrain.sched.schedule import BYTES, Granule, Run
from ooctrain.sched.search import anneal, expand, keep_offload_or_recompute, kept_gaps, play, tables
from ooctrain.sched.search.choice import Choice, Search
from ooctrain.sched.search.keep_or_recompute import KeepOrRecomputeSearch
from ooctrain.step.chain import chain
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import random_trace

#: Their mistakes are this file's to notice.
JUDGED = anneal, expand, keep_offload_or_recompute, kept_gaps, play, tables
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


def drawn_choice(step: Trace, seed: int) -> Choice:
    drawn = Random(seed)
    uses = sorted(droppable_uses(step))
    dropped = tuple(use for use in uses if drawn.random() < 0.4)
    unread = tuple(use for use in dropped if drawn.random() < 0.5)
    return Choice(dropped, unread)


def lists_of(step: Trace) -> list[list[Run]]:
    """Runs that let go of all, of some, and of nothing."""
    uses = sorted(droppable_uses(step))
    return [list(rematerialise_after(step, some)) for some in (uses, uses[::2], [])]


@pytest.mark.parametrize("which", range(len(QUESTIONS)))
@pytest.mark.parametrize("name", STEPS)
def test_a_search_costs_and_finds_what_it_did(name, which):
    step = STEPS[name]()
    question = asked(step, which)
    search = Search(question)
    begun = [search.dropping(p) for p in Prefix(steps=3).choices(step, question.machine)]
    begun += [search.dropping(p, repeatedly=True) for p in Prefix(steps=2).choices(step, MACHINE)]
    begun += [drawn_choice(step, seed) for seed in range(3)]
    rows: list[known.Row] = [("costs", *map(search.cost, begun))]
    for further in (False, True):
        found = search.improve(begun[-1], 24, seed=3, deadline=NO_LIMIT, further=further)
        rows.append((f"further {further}", search.cost(found), search.evaluations,
                     known.digest(found)))  # fmt: skip
    rows.append(("best", known.digest(search.best_first(begun))))
    runs = lists_of(step)[0]
    kept = search.call_by_call([(begun[0], runs)], 40, seed=5, deadline=NO_LIMIT)
    rows += [("kept", each.time_ns, len(each.runs), known.digest(each)) for each in kept]
    known.check_rows("searches", f"{name} {which}", rows)


@pytest.mark.parametrize("name", STEPS)
def test_the_search_of_what_is_kept_finds_what_it_did(name):
    step, rows = STEPS[name](), []
    for which in range(len(QUESTIONS)):
        search = KeepOrRecomputeSearch(asked(step, which))
        runs = lists_of(step)
        found = search.improve_all(runs, 40, seed=2, deadline=NO_LIMIT)
        times = [each.time_ns for each in found]
        fits = map(search.fits, runs)
        rows.append((which, *fits, search.moves, *times, known.digest(found)))
    known.check_rows("kept", name, rows)
