"""What runs need: the walk backwards finds what the tables of lives say."""

from __future__ import annotations

import random

import pytest

from ooctrain.errors import ConfigError
from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.pieces import tabulate
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.planning.swap import least_budget, movable_gaps
from ooctrain.sched.schedule import Granule
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
            assert liveness.least_budget(runs, gaps) == least_budget(table, trace)


def test_runs_that_read_what_is_gone_are_refused():
    """An update in place is left out, or runs twice."""
    trace = next(t for t in map(random_trace, map(random.Random, range(99))) if updates(t))
    runs, place = runs_once(trace), updates(trace)[0]
    for wrong in (runs[:place] + runs[place + 1 :], runs[: place + 1] + runs[place:]):
        with pytest.raises(ConfigError, match="not alive"):
            Liveness(trace, Granule(1)).least_budget(wrong)


def updates(trace: Trace) -> list[int]:
    return [call.id for call in trace.calls if call.phase == "update" and call.reuse]
