"""Hypothesis strategies: traces, machines, granules, legal lists.

Hypothesis draws the sizes, so that a failing case shrinks to few calls and few bytes; the rest
depends on one seed. Read next: `tests/properties/test_theorems.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import strategies as st
from support.random_lists import random_schedule

from ooctrain.sched.schedule import BYTES, Granule, Schedule
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import random_machine, random_trace

SEEDS = st.integers(0, 2**32 - 1)
GRANULES = st.sampled_from([BYTES, Granule(4), Granule(8), Granule(4, ranges=False)])


@dataclass(frozen=True, slots=True)
class Case:
    """A legal list with its trace, and the seed for whatever else is random about it."""

    trace: Trace
    schedule: Schedule
    seed: int

    def rng(self) -> random.Random:
        """A fresh source of randomness, the same each time."""
        return random.Random(self.seed)


@st.composite
def traces(draw: st.DrawFn, max_calls: int = 10, max_bytes: int = 24) -> Trace:
    """Random traces of at most `max_calls` pure calls over variables of at most `max_bytes`."""
    calls, size = draw(st.integers(1, max_calls)), draw(st.integers(1, max_bytes))
    return random_trace(random.Random(draw(SEEDS)), calls=calls, max_bytes=size)


@st.composite
def machines(draw: st.DrawFn, interference: bool = False) -> Machine:
    """Random machines, with both link modes."""
    return random_machine(random.Random(draw(SEEDS)), interference=interference)


@st.composite
def cases(draw: st.DrawFn, max_calls: int = 10, max_bytes: int = 24) -> Case:
    """Legal lists over random traces and granules."""
    trace, granule = draw(traces(max_calls, max_bytes)), draw(GRANULES)
    mischief, seed = draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])), draw(SEEDS)
    schedule = random_schedule(trace, random.Random(seed), granule=granule, mischief=mischief)
    return Case(trace, schedule, seed)
