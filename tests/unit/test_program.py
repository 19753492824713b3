"""A program's waits: up to which piece of work of each stream a step waits, counted by hand."""

from __future__ import annotations

import random

import pytest

from ooctrain.alloc.dry_run import DryAllocator
from ooctrain.execution.program import make_program
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.testing.random_traces import random_machine, random_trace


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("asked", [{"streams": 2}, {"streams": 3}, {}])
def test_a_step_waits_for_the_latest_piece_of_each_stream(asked, fills):
    """Poison is a piece of the compute stream, and what claims memory waits for the last of it.
    Unless told otherwise, each copy direction has a stream of its own.
    """
    streams = asked.get("streams", 3)
    lanes = {"C": 0, "D": 1, "H": streams - 1}
    for seed in range(8):
        rng = random.Random(seed)
        trace, machine = random_trace(rng), random_machine(rng)
        planner = Naive() if seed % 2 else SlidingWindow()
        plan = planner.plan(Question(trace, trace_minimum_bytes(trace) + 8 * seed, machine))
        program = make_program(trace, plan.schedule, DryAllocator(BYTES), fills=fills, **asked)
        waits = dict(zip(program.rows, (step.waits for step in program.steps), strict=True))
        assert any(map(any, waits.values()))
        count, number, last_fill = [0] * streams, {}, 0
        for position, row in enumerate(program.issued):
            expected = [0] * streams
            for waited in row.waits:
                lane, piece = number[waited]
                expected[lane] = max(expected[lane], piece)
            if row.claim_bytes and fills:
                expected[0] = max(expected[0], last_fill)
            if position in waits:
                assert waits[position] == tuple(expected)
            if row.stream:
                count[lanes[row.stream]] += 1
                number[row.index] = lanes[row.stream], count[lanes[row.stream]]
            elif row.release_bytes and fills:
                count[0] += 1
                last_fill = count[0]
