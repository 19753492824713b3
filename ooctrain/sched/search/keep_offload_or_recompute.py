"""Between two uses a value is kept, offloaded, or computed again: simulated annealing over that.

A move turns gaps, as in `kept_gaps.py`, or says of a large value that it stays on the device
while others can leave. What is kept is on the device or on the host: Belady's rule says which bytes
are away, and the as-soon-as-possible engine says how long the step takes, as for the choices of
`anneal.py`. So a move costs as much as one of theirs, and what it gains is that a value may die
after one of the times that it comes back and stay after another. Source: ours; docs/planners.md
says what it gains. Read next: `sched/planners/combined.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Run
from ooctrain.sched.search.anneal import IMPOSSIBLE, Cooling, draw, evaluate_step, is_taken
from ooctrain.sched.search.expand import Wishes, expand_wishes
from ooctrain.sched.search.jit import compiled
from ooctrain.sched.search.keep_or_recompute import (
    SMALL,
    KeepOrRecomputeSearch,
    KeptRuns,
    listed,
    take_over,
)
from ooctrain.sched.search.kept_gaps import Keeping, nothing_turned, turn_gaps, undo
from ooctrain.sched.search.play import SearchLimits

#: The first temperature, as a share of the makespan.
HEAT = 0.0005
#: Moves times calls between two looks at the clock.
BLOCK = 100_000
#: Of twelve moves three say that a value stays, or no longer.
STAYING, KINDS = 3, 12


class Large(NamedTuple):
    """Of the values that can stay while others leave: their first slots, and those after their
    last.
    """

    first: np.ndarray
    end: np.ndarray


class GapAndStayAnnealing(NamedTuple):
    """Where a search stands.

    Args:
        keeping: what the next move changes; `there`, `touched` and `time_ns` belong to it.
        stays: for each slot, whether what can leave in it stays while others can.
        cost: in ns.
        best, best_stays, best_cost: the best met so far, `best` as in `Keeping.wanted`.
        random: state of the random numbers.
    """

    keeping: Keeping
    stays: np.ndarray
    cost: float
    best: np.ndarray
    best_stays: np.ndarray
    best_cost: float
    random: int


class KeepOffloadOrRecomputeSearch:
    """What is kept, and what stays on the device, for one question.

    Args:
        limits: as the search of choices has them.
        large: what can stay.
        small: see `KeepOrRecomputeSearch`.

    Attributes:
        tables: what a walk looks up.
        cut_short: whether a deadline has ended one of the searches.
        moves: how many have been tried so far.
    """

    def __init__(
        self, question: Question, limits: SearchLimits, large: Large, small: float = SMALL
    ):
        self._trace, self._limits, self._large = question.trace, limits, large
        self._kept = KeepOrRecomputeSearch(question, small)
        self.tables = self._kept.tables
        self._block = max(1, BLOCK // max(1, len(question.trace.calls)))
        self.cut_short, self.moves = False, 0

    def improve(
        self, runs: Sequence[Run], stays: np.ndarray, moves: int, *, seed: int, deadline: Deadline
    ) -> tuple[KeptRuns, np.ndarray] | None:
        """The fastest runs met while annealing, and what stays meanwhile; None if none fits.

        Args:
            stays: for each slot, whether what can leave in it stays while others can.
            moves: how many are tried at most.
        """
        found = self.begun(runs, stays, seed)
        for first in range(0, moves if self.tables.size.size else 0, self._block):
            if deadline.passed():
                self.cut_short = True
                break
            cooling = Cooling(first, min(first + self._block, moves), moves, HEAT)
            found = anneal_gaps_and_stays(self.tables, found, self._limits, self._large, cooling)
            self.moves += cooling.stop - first
        if found.best_cost >= IMPOSSIBLE:
            return None
        return KeptRuns(int(found.best_cost), self._runs(found.best)), found.best_stays

    def begun(self, runs: Sequence[Run], stays: np.ndarray, seed: int) -> GapAndStayAnnealing:
        """A search that has made no move."""
        keeping = self._kept.wishing(self._kept.wanted(runs))
        cost = evaluate_wishes(self.tables, keeping, stays, self._limits)
        best = keeping.wanted.copy()
        return GapAndStayAnnealing(keeping, stays.copy(), cost, best, stays.copy(), cost, seed)

    def _runs(self, wanted: np.ndarray) -> tuple[Run, ...]:
        """The runs of what is wanted."""
        tables, keeping = self.tables, self._kept.wishing(wanted)
        step = expand_wishes(tables.step, wishes_of(tables, keeping))
        return listed(self._trace, step.runs.tolist(), tables.column, keeping.there)


@compiled
def wishes_of(tables, keeping):
    """What a walk is asked for, and where it writes what comes of it."""
    return Wishes(tables.values, keeping.wanted, keeping.there, keeping.touched, keeping.time_ns)


@compiled
def evaluate_wishes(tables, keeping, stays, limits):
    """Makespan in ns, or a cost beyond `IMPOSSIBLE`; `keeping` is written, but for `wanted`."""
    step = expand_wishes(tables.step, wishes_of(tables, keeping))
    return evaluate_step(tables.step, step, stays, limits)


@compiled
def anneal_gaps_and_stays(tables, start, limits, large, cooling):
    """Some moves of a search.

    Args:
        tables: KeptTables.
        start: GapAndStayAnnealing so far; its keeping and what stays are changed.
        limits: SearchLimits.
        large: what can stay.
        cooling: which of the search's moves they are.

    Returns:
        GapAndStayAnnealing.
    """
    keeping, stays, cost = start.keeping, start.stays, start.cost
    best, best_stays, best_cost = start.best, start.best_stays, start.best_cost
    found = Keeping(
        keeping.wanted, keeping.there.copy(), keeping.held, keeping.touched.copy(),
        keeping.time_ns.copy(),
    )  # fmt: skip
    turned = nothing_turned(keeping)
    state = np.uint64(start.random)
    for number in range(cooling.first, cooling.stop):
        first = end = count = 0
        stayed = stays[:0]
        state, kind = draw(state, KINDS)
        if kind < STAYING and large.first.size:
            state, place = draw(state, large.first.size)
            first, end = large.first[place], large.end[place]
            stayed = stays[first:end].copy()
            stays[first:end] = 1 - stays[first]
        else:
            state, count = turn_gaps(state, tables, keeping, turned)
            if not count:
                continue
        other = evaluate_wishes(tables, found, stays, limits)
        temperature = cooling.heat * (1 - number / cooling.total) ** 2
        state, taken = is_taken(state, (other - cost) / max(cost, 1.0), temperature)
        if not taken:
            stays[first:end] = stayed
            undo(keeping, turned, count)
            continue
        take_over(keeping, found, 0, keeping.time_ns.size)
        cost = other
        if cost < best_cost:
            best, best_stays, best_cost = keeping.wanted.copy(), stays.copy(), cost
    return GapAndStayAnnealing(keeping, stays, cost, best, best_stays, best_cost, np.int64(state))  # type: ignore[arg-type]
