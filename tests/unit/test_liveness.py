"""What runs need: the walk backwards finds what a sum over all lives finds."""

from __future__ import annotations

import random

import pytest

from ooctrain.errors import ConfigError
from ooctrain.sched.planning.decisions import Decisions, lives, movable_gaps, runs_once
from ooctrain.sched.planning.lower import tabulate
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import Granule
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import random_machine, random_trace


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_largest_row_of_the_tables(seed):
    rng = random.Random(seed)
    trace, machine, granule = random_trace(rng), random_machine(rng), Granule(rng.choice([1, 4]))
    liveness = Liveness(trace, granule)
    for share in (0.0, 0.4, 1.0):
        dropped = [v for v in droppable(trace) if rng.random() < share]
        runs = rematerialise(trace, dropped, again=dropped[::2])
        for gaps in ((), tuple(gap for gap in movable_gaps(trace, runs) if rng.random() < 0.5)):
            table = tabulate(Decisions(runs, gaps), trace, machine, granule)
            names = [trace.calls[run.call].name for run in runs]
            rows = zip(table.resident_bytes, names, strict=True)
            most = max([(table.start_bytes, "the start"), *rows], key=lambda row: row[0])
            assert liveness.least_budget(runs, gaps) == most


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_sum_of_all_lives(seed):
    """Of those that a run is part of, and of what is its own: scratch and workspace."""
    rng = random.Random(seed)
    trace, granule = random_trace(rng), Granule(rng.choice([1, 4]))
    dropped = [v for v in droppable(trace) if rng.random() < 0.5]
    runs = rematerialise(trace, dropped, again=dropped[::2])
    expected = []
    for run in runs:
        call = trace.calls[run.call]
        own = [v for v in call.outs if run.keep is not None and v not in {*run.keep, *call.reuse}]
        sizes = [trace.variables[v].nbytes for v in own]
        expected.append(sum(map(granule.granted, [*sizes, call.workspace_bytes])))
    for life in lives(trace, runs):
        # An input comes with its first read; a storage that is taken over counts once.
        persistent = trace.variables[life.var].persistent
        first = life.uses[0] if life.uses[0] >= 0 else 0 if persistent else life.uses[1]
        for place in range(first + life.takes_over, min(life.uses[-1] + 1, len(runs))):
            expected[place] += granule.granted(trace.variables[life.var].nbytes)
    assert Liveness(trace, granule).resident_bytes(runs) == expected


def test_runs_that_read_what_is_gone_are_refused():
    """An update in place is left out, or runs twice."""
    trace = next(t for t in map(random_trace, map(random.Random, range(99))) if updates(t))
    runs, place = runs_once(trace), updates(trace)[0]
    for wrong in (runs[:place] + runs[place + 1 :], runs[: place + 1] + runs[place:]):
        with pytest.raises(ConfigError, match="not alive"):
            Liveness(trace, Granule(1)).least_budget(wrong)


def updates(trace: Trace) -> list[int]:
    return [call.id for call in trace.calls if call.phase == "update" and call.reuse]


def test_where_no_run_needs_more_the_start_is_named():
    builder = TraceBuilder()
    builder.call("f", None, (), (builder.variable("out", (4,), "uint8"),))
    assert Liveness(builder.build(), Granule(1)).least_budget((), ()) == (0, "the start")
