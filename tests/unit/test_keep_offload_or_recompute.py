"""What a step keeps from call to call where the host has room: the walk, and the search over it.

Read next: `ooctrain/sched/search/keep_offload_or_recompute.py`, `test_keep_or_recompute.py`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.quick import quick
from unit.test_keep_or_recompute import NO_END, asked, drawn
from unit.test_search import by_slot, inputs_away, slots

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import input_bytes, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.belady import offload
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import rematerialise_after
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES, Granule, Run
from ooctrain.sched.search import choice as choices
from ooctrain.sched.search import keep_offload_or_recompute
from ooctrain.sched.search.anneal import Cooling
from ooctrain.sched.search.choice import Search
from ooctrain.sched.search.expand import expand_wishes
from ooctrain.sched.search.jit import signals_held
from ooctrain.sched.search.keep_offload_or_recompute import (
    KeepOffloadOrRecomputeSearch,
    Large,
    anneal_gaps_and_stays,
    evaluate_wishes,
    wishes_of,
)
from ooctrain.sched.search.keep_or_recompute import KeepOrRecomputeSearch
from ooctrain.sched.search.play import SearchLimits, link_of
from ooctrain.sched.verify import verify
from ooctrain.testing.random_traces import random_machine


def walks_as_the_runs_do(seed):
    """The walk that evaluates copies finds the runs, what is there and what is touched as the walk
    without copies does, and the memory of the readable modules.
    """
    rng, trace, runs = drawn(seed)
    granule = Granule(rng.choice([1, 8]))
    search = KeepOrRecomputeSearch(asked(trace, 1 << 40, granule=granule), small=-1)
    known = search.keeping(runs)
    found = search.wishing(known.wanted)
    step = expand_wishes(search.tables.step, wishes_of(search.tables, found))
    assert step.ok
    assert step.runs.tolist() == [run.call for run in runs]
    assert np.array_equal(found.time_ns, known.time_ns)
    assert np.array_equal(found.touched, known.touched)
    assert np.array_equal(found.there, known.there)
    resident = Liveness(trace, granule).resident_bytes(search.runs(known.wanted))
    assert (step.resident - inputs_away(step, search.tables.step)).tolist() == resident
    return len(runs) > len(trace.calls)


@pytest.mark.parametrize("first", quick([0, 200, 400], 0))
def test_both_walks_find_the_same(first):
    seeds = range(first, first + (200 if first else 60))
    assert sum(map(walks_as_the_runs_do, seeds)) > len(seeds) // 3


NOTHING = Large(np.zeros(0, np.int64), np.zeros(0, np.int64))


def copying(seed):
    """A question in which something may have to leave, a search, a choice and its runs."""
    rng, trace, _ = drawn(seed)
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    budget, host = rng.randint(least, max(least, most)), rng.choice([1, 30, 1 << 40])
    question = Question(
        trace, budget, random_machine(rng), host_budget_bytes=input_bytes(trace) + host
    )
    search = Search(question)
    start = search.dropping(v for v in range(len(trace.variables)) if rng.random() < 0.4)
    runs = rematerialise_after(trace, start.dropped, unread=start.unread, held=start.held)
    return question, search, start, runs


def what_copies_find_is_a_plan(seed):
    """Its runs, and what stays, take the time that the search says, and the verifier accepts it.
    Whether the list that `lower` writes is as fast: not where two values share a host slot.
    """
    question, search, start, runs = copying(seed)
    found = search.call_by_call([(start, runs)], 600, seed=seed, deadline=NO_END)
    if search.copies_nothing or not found:
        return False
    (best,) = found
    stays, place = np.zeros_like(by_slot(question.trace, {})), slots(question.trace)
    stays[[place[use] for use in best.stays]] = True
    copies = KeepOffloadOrRecomputeSearch(question, search.limits, NOTHING)
    assert copies.begun(best.runs, stays, 0).cost == best.time_ns
    try:
        plan = plan_of("kept", question, offload("kept", question, best.runs, best.stays))
    except Infeasible:
        return False
    trace, host = question.trace, question.host_budget_bytes
    verify(plan, trace, question.budget_bytes, question.machine, host_budget_bytes=host)
    listed = [i.call for i in plan.schedule.instructions if isinstance(i, Run)]
    assert listed == [run.call for run in best.runs]
    return round(plan.makespan_us * 1000) == best.time_ns


@pytest.mark.parametrize("first", quick([0, 100, 200], 0))
def test_what_copies_find_is_a_plan(first):
    # In the last a call runs again of whose outputs one is there.
    seeds = range(first, first + 100) if first else (*range(40), 663)
    assert sum(map(what_copies_find_is_a_plan, seeds)) > len(seeds) // 2


def stands_where_it_says(seed):
    """After some moves, taken or not, what is wanted and what stays cost what the search says, and
    the best of them is no worse than the first.
    """
    question, _, _, runs = copying(seed)
    trace = question.trace
    slots = sum(max(1, len(uses)) for uses in trace.uses)
    large = Large(np.arange(slots), np.arange(1, slots + 1))
    limits = SearchLimits(question.budget_bytes, 0, link_of(question.machine))
    copies = KeepOffloadOrRecomputeSearch(question, limits, large, small=-1)
    stays = np.array([random.Random(seed + s).random() < 0.2 for s in range(slots)], np.int8)
    begun = copies.begun(runs, stays, seed)
    if not copies.tables.size.size:
        return False
    first, best = begun.cost, begun
    for heat in (0.5, 0.0):
        best = anneal_gaps_and_stays(copies.tables, best, limits, large, Cooling(0, 40, 40, heat))
        cost = evaluate_wishes(copies.tables, best.keeping, best.stays, limits)
        assert cost == best.cost
        assert best.best_cost <= min(first, cost)
    again = best.keeping._replace(wanted=best.best)
    assert evaluate_wishes(copies.tables, again, best.best_stays, limits) == best.best_cost
    return best.best_cost < first


@pytest.mark.parametrize("first", quick([0, 100, 200], 0))
def test_a_search_stands_where_it_says(first):
    seeds = range(first, first + (100 if first else 40))
    assert sum(map(stands_where_it_says, seeds)) > len(seeds) // 4


def test_the_same_moves_are_made_however_often_the_clock_is_asked(monkeypatch):
    found = []
    for block in (1, 100_000):
        monkeypatch.setattr(keep_offload_or_recompute, "BLOCK", block)
        _, search, start, runs = copying(5)
        found.append(search.call_by_call([(start, runs)], 300, seed=3, deadline=NO_END))
        assert not search.cut_short
    assert found[0] == found[1] != []


def test_a_clock_that_has_run_out_leaves_the_runs_as_they_are():
    _, search, start, runs = copying(5)
    (found,) = search.call_by_call([(start, runs)], 300, seed=3, deadline=Deadline.after(0))
    assert search.cut_short
    assert [run.call for run in found.runs] == [run.call for run in runs]


def test_what_does_not_fit_however_it_is_kept_is_not_improved():
    question, _, _, runs = copying(5)
    limits = SearchLimits(1, 0, link_of(question.machine))
    stays = np.zeros(sum(max(1, len(uses)) for uses in question.trace.uses), np.int8)
    copies = KeepOffloadOrRecomputeSearch(question, limits, NOTHING)
    assert copies.improve(runs, stays, 30, seed=0, deadline=NO_END) is None


@pytest.mark.slow
def test_a_step_of_which_parts_wait_on_the_host_gains(monkeypatch):
    """ResNet-18 within 5 %: a value stays after one of the times that it comes back."""
    step = apply_rewrites(oc.api.step_trace("resnet18", 64, None), ("fuse", "share_storage"))
    least, most = trace_minimum_bytes(step, BYTES), trace_peak_bytes(step, BYTES)
    machine, budget = oc.machine("v100-pcie"), least + (most - least) // 20
    planner = Combined(evaluations=10_000)
    plan = planner.plan(Question(step, budget, machine))
    assert plan.notes["from"] == "search of what is kept"
    assert plan.notes["evaluations"] > 5_000
    monkeypatch.setattr(choices, "COSTLY", 1 << 40)
    choices_alone = planner.plan(Question(step, budget, machine))
    assert choices_alone.notes.get("evaluations", 0) < plan.notes["evaluations"]
    assert plan.makespan_us < choices_alone.makespan_us


def search_until_interrupted():
    """Searches for longer than anybody waits, and is asked to end meanwhile."""
    _, search, start, runs = copying(3)
    search.call_by_call([(start, runs)], 60, seed=1, deadline=NO_END)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        search.call_by_call([(start, runs)], 1 << 31, seed=1, deadline=NO_END)
    except KeyboardInterrupt:
        print("interrupted")


@pytest.mark.skipif(os.name != "posix", reason="nobody sends signals here")
def test_who_interrupts_a_search_is_heard():
    """It was a segmentation fault: Numba put named tuples together while Python raised."""
    module = "unit.test_keep_offload_or_recompute"
    program = f"import {module}\n{module}.search_until_interrupted()"
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=where, timeout=240
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_signals_that_come_in_a_search_are_handled_when_it_is_over():
    came = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert came == []
        assert came == [signal.SIGINT] * 2
        signal.raise_signal(signal.SIGINT)
        assert len(came) == 3
    finally:
        signal.signal(signal.SIGINT, before)
