"""Random decisions: which calls run again, which bytes of which gaps go to the host.

`lower` must make a legal list of any decisions, not only of those of a good planner. So these
`Decisions`, drawn for a trace from a `random.Random`, are legal and usually foolish. Read next:
`sched/planning/lower.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

from ooctrain.errors import ConfigError
from ooctrain.sched.planning.decisions import Decisions, Gap, lives, possible_gaps, runs_once
from ooctrain.sched.schedule import BYTES, Granule, Run
from ooctrain.step.trace import Trace


def random_decisions(
    trace: Trace, rng: random.Random, granule: Granule = BYTES, *, recompute: bool = True
) -> Decisions:
    """Decisions over a trace.

    Args:
        granule: gaps are multiples of it, or whole variables where `granule.ranges` is False.
        recompute: whether calls may run again.
    """
    runs = list(runs_once(trace))
    for _ in range(rng.choice([0, 0, 1, 3]) if recompute else 0):
        runs = _run_again(trace, runs, rng)
    chance = rng.choice([0.2, 0.5, 0.9])
    gaps = (
        Gap(gap.var, lo, hi, gap.after, gap.before)
        for gap in possible_gaps(trace, runs)
        for lo, hi in _parts(gap.hi, granule, rng)
        if rng.random() < chance
    )
    return Decisions(tuple(runs), tuple(gaps))


def _run_again(trace: Trace, runs: list[Run], rng: random.Random) -> list[Run]:
    """Runs with one more, if what it reads is alive there and nobody misses what it takes over."""
    position = rng.randint(1, len(runs))
    again = [run for run in runs[:position] if trace.calls[run.call].pure]
    if not again:
        return runs
    call = trace.calls[rng.choice(again).call]
    keep = tuple(out for out in call.outs if rng.random() < 0.6)
    longer = [*runs[:position], Run(call.id, keep), *runs[position:]]
    try:
        lives(trace, longer)
    except ConfigError:
        return runs
    return longer


def _parts(size_bytes: int, granule: Granule, rng: random.Random) -> Iterator[tuple[int, int]]:
    """[0, size) cut at random granules."""
    cuts = {0, size_bytes}
    if granule.ranges:
        steps = size_bytes // granule.size_bytes
        cuts |= {granule.size_bytes * rng.randint(0, steps) for _ in range(rng.randint(0, 3))}
    borders = sorted(cuts)
    yield from pairwise(borders)
