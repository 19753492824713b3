"""Jitter: a plan executed for real, with random delays before each piece of work.

The order of the list alone decides what is computed and how much memory it takes. So however long
copies and calls last, three steps must leave the bytes of in-core training, and the most that the
allocator ever grants must be the plan's peak; a difference is reported. Threads, mappings and
copies are those of training; only the kernels are hashes, in which any wrong byte shows. Source:
docs/schedule.md, "Ledgers", theorem 1. Read next: `run_list.py`; `planner_laws.py`, whose law this
is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from ooctrain.alloc.registry import AllocatorChoice, choose_allocator
from ooctrain.devices.base import Debug, Link
from ooctrain.errors import OoctrainError
from ooctrain.sched.schedule import Plan
from ooctrain.step.trace import Trace
from ooctrain.testing.interpreter import in_core
from ooctrain.testing.random_traces import random_values
from ooctrain.testing.run_list import Way, run_list

STEPS = 3
LONGEST_DELAY_US = 300.0
ALLOCATORS = ("best-fit", "va:chunk=4KiB")
ARENA_BYTES = 1 << 26


def some_allocator(rng: random.Random) -> AllocatorChoice:
    """An allocator to execute with: one that rounds little, or one that maps pages."""
    return choose_allocator(rng.choice(ALLOCATORS), ARENA_BYTES)


def harm_of_delays(
    trace: Trace, plan: Plan, choice: AllocatorChoice, link: Link, rng: random.Random
) -> str:
    """What delays do to a plan; empty if nothing.

    Args:
        trace: of `random_traces.py`.
        plan: for the granule of `choice`.
        choice: the allocator.
        link: whether both directions work at once.
        rng: draws values and delays.

    Cost: three executed steps: some ms for each call.
    """
    start = random_values(trace, rng)
    batches = [random_values(trace, rng) for _ in range(STEPS)]
    given = [v for v in trace.initial if not trace.variables[v].persistent]
    inputs = [{v: batch[v] for v in given} for batch in batches]
    debug = Debug(delay_us=LONGEST_DELAY_US, delay_seed=rng.randrange(2**32))
    try:
        # Twice the room: a wrong byte is to be seen, not to end the process.
        ran = run_list(trace, plan.schedule, Way(choice, link, debug=debug, room=2), start, inputs)
    except OoctrainError as error:
        return f"delayed, it raises {type(error).__name__}: {error}"
    for step, truth in enumerate(_in_core_steps(trace, start, inputs)):
        if ran.persistent[step] != truth:
            return f"delayed, step {step + 1} differs from in-core training"
    if ran.granted_bytes != plan.peak_bytes:
        return f"delayed, the peak is {ran.granted_bytes} bytes; the plan says {plan.peak_bytes}"
    return ""


def _in_core_steps(
    trace: Trace, start: Mapping[int, bytes], inputs: list[dict[int, bytes]]
) -> Iterator[dict[int, bytes]]:
    """What each step leaves behind, {initial variable that lasts: its value}."""
    values = dict(start)
    for batch in inputs:
        values |= batch
        values |= in_core(trace, values).persistent
        yield {v: values[v] for v in trace.end_variables}
