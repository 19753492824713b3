"""With which calls the stages of `stage_program.py` end: two choices, each of few calls.

More stages forbid more, as long as numbers are whole. The relaxation, from which branch and bound
begins, may prove less with more of them: a call that runs again has to fit beside what stays
throughout its stage, and a third of a run in each of three stages needs a third of that room. So
few stages prove most, if they end where memory is short. `widest_ends` looks for calls that need
much by themselves; `dearest_ends` asks the LP of the bound what a byte more would be worth while
each call runs, begins with the calls that have a price, and takes others in or leaves them out as
long as the relaxation proves more. Source: ours; prices are the LP's dual values. Read next:
`recompute.py`, which tries both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ooctrain.sched.bounds.stage_program import RecomputeProgram, StepValues
from ooctrain.step.machine import Machine

#: `dearest_ends` tries the calls around TRIED_READS of the widest reads, ROUNDS times.
TRIED_READS, ROUNDS = 30, 3
#: What a change of stages has to prove more to be kept: hundredths of the compute time.
GAIN = 0.01
#: Prices below this share of all are rounding errors.
LEAST_PRICE = 1e-4


def widest_ends(step: StepValues, reads: int) -> list[int]:
    """The calls with which stages end, ascending: in a short step all; else for each of the widest
    calls that read again what the calls just before did not touch, that call and the one before.
    """
    calls = len(step.trace.calls)
    if calls <= 2 * reads:
        return list(range(calls))
    pairs = _reads_again(step)
    shares = {pair: max(step.needs[call].share for call in pair) for pair in pairs}
    widest = sorted(pairs, key=lambda pair: (-shares[pair], pair))[:reads]
    return sorted({calls - 1}.union(*widest))


def dearest_ends(step: StepValues, machine: Machine, prices: Mapping[int, float]) -> list[int]:
    """The calls with which stages end, ascending, found by trying.

    Args:
        step: its values.
        machine: for the times of calls.
        prices: {call: what a byte more would be worth while it runs}, of the LP.

    Cost: at most `ROUNDS` linear programs for each call that is tried, some 70 of them.
    """
    least = LEAST_PRICE * sum(prices.values())
    priced = sorted((c for c in prices if prices[c] > least), key=lambda c: (-prices[c], c))
    last = len(step.trace.calls) - 1
    ends = {last, *priced}
    proved = _relaxed(step, machine, ends)
    for _ in range(ROUNDS):
        before = proved
        for call in dict.fromkeys(_tried(step, priced)):
            changed = ends ^ {call}
            found = _relaxed(step, machine, changed)
            if found > proved + GAIN:
                ends, proved = changed, found
        if proved == before:
            break
    return sorted(ends)


def _tried(step: StepValues, priced: list[int]) -> Iterator[int]:
    """Calls that may end a stage: those that have a price and their neighbours, then the widest."""
    widest = widest_ends(step, TRIED_READS)
    near = [call + side for side in (0, -1, 1) for call in priced]
    last = len(step.trace.calls) - 1
    for call in [*near, *sorted(widest, key=lambda call: (-step.needs[call].share, call))]:
        if 0 <= call < last:
            yield call


def _relaxed(step: StepValues, machine: Machine, ends: Collection[int]) -> float:
    """What the relaxation of a program proves, in its unit; infinite where there is no list."""
    solution = RecomputeProgram(step, machine, sorted(ends)).program.solve()
    return float("inf") if solution is None else solution.dual


def _reads_again(step: StepValues) -> list[tuple[int, int]]:
    """(the call before, the call) for each call that reads a value which the call before did not
    touch. Calls that touch no value of the program do not count.
    """
    values = set(step.values)
    seen: set[int] = set()
    near: set[int] = set()
    before, pairs = -1, list[tuple[int, int]]()
    for call in step.trace.calls:
        touched = values.intersection(call.touched())
        if not touched:
            continue
        if seen.intersection(call.ins) - near:
            pairs.append((before, call.id))
        before, near = call.id, touched
        seen |= touched
    return pairs
