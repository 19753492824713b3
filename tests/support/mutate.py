"""One-instruction mutations of a list, which look like a planner's bugs.

From a legal schedule come lists with one deleted, swapped, moved or shrunk instruction, or one
output less to keep. A mutant is either caught by the verifier, or it computes the same;
`testing/interpreter.py` is the judge. Read next: `tests/properties/test_mutations.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from ooctrain.sched.schedule import Free, Instruction, Run, Schedule, SwapIn, SwapOut
from ooctrain.step.trace import Trace


def mutants(
    trace: Trace, schedule: Schedule, rng: random.Random, count: int
) -> Iterator[tuple[str, Schedule]]:
    """`count` random mutants, each with a word on what was done to it.

    Args:
        trace: tells the outputs of calls.
        schedule: not empty.
    """
    for _ in range(count):
        position = rng.randrange(len(schedule))
        kind = rng.choice(["delete", "swap", "move", "shrink"])
        items = list(schedule.instructions)
        if kind == "delete":
            del items[position]
        elif kind == "swap":
            # Neighbours matter most: a distant swap is nearly always illegal.
            other = min(len(items) - 1, position + rng.choice([1, 1, 1, 2, 5]))
            items[position], items[other] = items[other], items[position]
        elif kind == "move":
            items.insert(rng.randrange(len(items)), items.pop(position))
        else:
            items[position] = _shrunk(items[position], trace, schedule.granule.size_bytes, rng)
        if tuple(items) != schedule.instructions:
            yield f"{kind} {position}", replace(schedule, instructions=tuple(items))


def _shrunk(item: Instruction, trace: Trace, step: int, rng: random.Random) -> Instruction:
    """A range shorter by a granule at one end, or a Run that keeps one output less."""
    match item:
        case SwapOut(var, lo, hi) | SwapIn(var, lo, hi) | Free(var, lo, hi) if hi - lo > step:
            if rng.random() < 0.5:
                return type(item)(var, lo + step, hi)
            return type(item)(var, lo, (hi - 1) // step * step)
        case Run(call, keep):
            kept = list(trace.calls[call].outs if keep is None else keep)
            if kept:
                kept.pop(rng.randrange(len(kept)))
            return Run(call, tuple(kept))
    return item
