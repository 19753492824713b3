"""The peak of an lms list without the list: the curve says what the written list claims."""

from __future__ import annotations

import random

import pytest

from ooctrain.sched.planners.lms import LevelGraph, Lms, _write, peak
from ooctrain.sched.schedule import Granule
from ooctrain.testing.random_traces import random_trace


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_peak_of_the_list_that_waits_for_every_swap_out(seed):
    rng = random.Random(seed)
    trace, granule = random_trace(rng, calls=rng.randint(3, 16)), Granule(rng.choice([1, 8]))
    graph = LevelGraph(trace)
    for _ in range(6):
        lms = Lms(rng.randint(1, graph.height + 1), rng.randint(0, 4), rng.randint(0, 4))
        written = _write(graph, granule, graph.trips(lms), budget_bytes=0)
        assert peak(graph, granule, lms) == (written.peak_bytes, written.peak_call)
