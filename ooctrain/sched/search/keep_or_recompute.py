"""Between two uses a value is kept or computed again: simulated annealing over that.

For a host without room. `KeepOrRecomputeSearch` takes the runs of any plan that copies nothing,
says call by call what they keep (`Keeping`), lets `anneal_gaps` change that, and gives runs again.
A fate of a value (`choice.py`) is the same for all the times that it comes back between two of its
uses; here it may die after the first of them and stay after the second. That is what lists within
small budgets need where nothing can wait on the host. What does not fit is refused; else the time
of all runs decides. Calls of the backward pass run once. Source: ours, docs/planners.md says what
it gains; Kirkpatrick, Gelatt and Vecchi (1983) for annealing. Read next: `kept_gaps.py`, then
`keep_offload_or_recompute.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import Use
from ooctrain.sched.schedule import Run
from ooctrain.sched.search.anneal import Cooling, is_taken
from ooctrain.sched.search.jit import compiled, inner
from ooctrain.sched.search.kept_gaps import (
    Keeping,
    beginning,
    kept_tables,
    nothing_turned,
    turn_gaps,
    undo,
    walk,
    walk_call,
)
from ooctrain.step.trace import Trace

#: Values of at most this share of the budget stay; below 0 none do.
SMALL, NOTHING = 0.002, -1.0
#: The first temperature, as a share of the time of all runs: of a search from a choice, and of one
#: from the best that those found.
HEAT, LESS_HEAT = 0.002, 0.0006
#: Moves times calls between two looks at the clock.
BLOCK = 500_000


class GapAnnealing(NamedTuple):
    """Where a search stands.

    Args:
        keeping: the one from which the next move goes.
        best: `wanted` of the fastest met.
        best_ns: its time.
        random: state of the random numbers.
    """

    keeping: Keeping
    best: np.ndarray
    best_ns: int
    random: int


class KeptRuns(NamedTuple):
    """A list of runs.

    Args:
        time_ns: duration of the step.
        runs: runs of its calls.
        stays: what can leave after these uses stays while others can.
    """

    time_ns: int
    runs: tuple[Run, ...]
    stays: tuple[Use, ...] = ()


class KeepOrRecomputeSearch:
    """Keepings for one question.

    Args:
        question: the host budget is not looked at, as nothing is copied.
        small: values of at most this share of the budget stay as long as they are of use; below 0:
            none do.

    Attributes:
        tables: what a walk looks up.
        cut_short: whether a deadline has ended one of the searches.
        moves: how many have been tried so far.
    """

    def __init__(self, question: Question, small: float = SMALL):
        self._trace = question.trace
        self.tables = kept_tables(question, small)
        self._block = max(1, BLOCK // max(1, len(question.trace.calls)))
        self.cut_short, self.moves = False, 0

    def improve(
        self, runs: Sequence[Run], moves: int, *, seed: int, deadline: Deadline,
        further: bool = False,
    ) -> KeptRuns | None:  # fmt: skip
        """The fastest runs met while annealing, None if those given do not fit as they are taken
        here: what is small stays, and each value comes back just before it is read.

        Args:
            moves: how many are tried at most.
            further: it begins with what other searches found, so at a lower temperature.
        """
        begun, place = self.keeping(runs), beginning(self.tables)
        if begun is None:
            return None
        found = GapAnnealing(begun, begun.wanted.copy(), int(begun.time_ns.sum()), seed)
        heat = LESS_HEAT if further else HEAT
        for first in range(0, moves if self.tables.size.size else 0, self._block):
            if deadline.passed():
                self.cut_short = True
                break
            cooling = Cooling(first, min(first + self._block, moves), moves, heat)
            found = anneal_gaps(self.tables, found, cooling, place)
            self.moves += cooling.stop - first
        return KeptRuns(int(found.best_ns), self.runs(found.best))

    def fits(self, runs: Sequence[Run]) -> bool:
        """Whether `improve` can begin with these runs."""
        return self.keeping(runs) is not None

    def improve_all(
        self, begun: Sequence[Sequence[Run]], moves: int, *, seed: int, deadline: Deadline
    ) -> list[KeptRuns]:
        """What comes of several lists, the fastest first: half of the moves go to them, and half to
        what came of the best of them.
        """
        fitting = list(filter(self.fits, begun))
        each = moves // (2 * max(1, len(fitting)))
        lists = [
            self.improve(runs, each, seed=seed + place, deadline=deadline)
            for place, runs in enumerate(fitting)
        ]
        found = sorted(filter(None, lists), key=lambda found: found.time_ns)
        if found:
            last, half = seed + len(begun), moves // 2
            lists = [self.improve(found[0].runs, half, seed=last, deadline=deadline, further=True)]
        return [*filter(None, lists), *found]

    def keeping(self, runs: Sequence[Run]) -> Keeping | None:
        """What runs keep, and what comes of it, None if that does not fit."""
        kept, place = self.wishing(self.wanted(runs)), beginning(self.tables)
        stop = walk(self.tables, (0, len(self._trace.calls) + 1), kept, kept, place)
        return None if stop < 0 else kept

    def wishing(self, wanted: np.ndarray) -> Keeping:
        """A keeping of which only the wishes are known."""
        calls, columns = len(self._trace.calls), self.tables.size.size
        return Keeping(
            wanted, np.zeros((calls + 1, columns), np.int8), np.zeros(calls + 1, np.int64),
            np.zeros((calls, columns), np.int8), np.zeros(calls, np.int64),
        )  # fmt: skip

    def wanted(self, runs: Sequence[Run]) -> np.ndarray:
        """Whether runs keep a column as a call begins: from a run that writes it until the last
        that reads it.
        """
        wanted = np.zeros((len(self._trace.calls) + 1, self.tables.size.size), np.int8)
        column, open_lives = self.tables.column, dict[int, tuple[int, int]]()

        def close(var: int) -> None:
            first, last = open_lives.pop(var, (0, 0))
            if column[var] >= 0:
                wanted[first + 1 : last + 1, column[var]] = True

        for run, next_call in zip(runs, _for_calls(runs), strict=True):
            call = self._trace.calls[run.call]
            for var in call.ins:
                if var in open_lives:
                    open_lives[var] = open_lives[var][0], next_call
            for var in call.reuse.values():
                close(var)
            for var in call.outs if run.keep is None else run.keep:
                close(var)
                open_lives[var] = next_call, next_call
        for var in list(open_lives):
            close(var)
        return wanted

    def runs(self, wanted: np.ndarray) -> tuple[Run, ...]:
        """The runs of what is wanted; it fits."""
        place = beginning(self.tables)
        touched, numbers = np.zeros(self.tables.size.size, np.int8), list[int]()
        there = np.zeros_like(wanted)
        for call in range(len(self._trace.calls)):
            _, _, count = walk_call(self.tables, call, wanted[call + 1], touched, place)
            numbers += place.runs[:count].tolist()
            there[call + 1] = place.there
        return listed(self._trace, numbers, self.tables.column, there)


def listed(
    trace: Trace, numbers: Sequence[int], column: np.ndarray, there: np.ndarray
) -> tuple[Run, ...]:
    """The runs of some calls, in which a value that is there is not made again.

    Args:
        numbers: the calls, each once or more.
        column: column of each variable; below 0: it is there from when it is made.
        there: whether a column is there as each call begins.
    """
    found, ran, present = list[Run](), set[int](), set(trace.initial)
    for number in numbers:
        call, again = trace.calls[number], number in ran
        keep = tuple(v for v in call.outs if v not in present) if again else call.outs
        found.append(Run(number, None if len(keep) == len(call.outs) else keep))
        present = present.union(call.outs).difference(call.reuse.values())
        if not again:
            ran.add(number)
            present = {v for v in present if column[v] < 0 or there[number + 1, column[v]]}
    return tuple(found)


def _for_calls(runs: Sequence[Run]) -> list[int]:
    """Of each run the next call that runs for the first time, itself if it does."""
    found, ran, waiting = list[int](), set[int](), 0
    for run in runs:
        waiting += 1
        if run.call not in ran:
            ran.add(run.call)
            found += [run.call] * waiting
            waiting = 0
    return found


@compiled
def anneal_gaps(tables, start, cooling, place):
    """Some moves of a search. A move that does not fit is refused.

    Args:
        tables: KeptTables.
        start: GapAnnealing so far; its keeping is changed.
        cooling: which of the search's moves they are.
        place: to work in.

    Returns:
        GapAnnealing.

    Cost: a move walks the calls between its gaps, a tenth of an evaluation in `anneal.py`.
    """
    keeping, best, best_ns = start.keeping, start.best, start.best_ns
    found = Keeping(
        keeping.wanted, keeping.there.copy(), keeping.held.copy(), keeping.touched.copy(),
        keeping.time_ns.copy(),
    )  # fmt: skip
    turned = nothing_turned(keeping)
    state, cost = np.uint64(start.random), keeping.time_ns.sum()
    for number in range(cooling.first, cooling.stop):
        state, count = turn_gaps(state, tables, keeping, turned)
        if not count:
            continue
        first = max(0, turned.span[0] - 1)
        stop = walk(tables, (first, turned.span[1]), keeping, found, place)
        more = 0
        for call in range(first, stop):
            more += found.time_ns[call] - keeping.time_ns[call]
        temperature = cooling.heat * (1 - number / cooling.total) ** 2 * max(cost, 1)
        state, taken = is_taken(state, more, temperature)
        if stop < 0 or not taken:
            undo(keeping, turned, count)
            continue
        take_over(keeping, found, first, stop)
        cost += more
        if cost < best_ns:
            best, best_ns = keeping.wanted.copy(), cost
    return GapAnnealing(keeping, best, best_ns, np.int64(state))  # type: ignore[arg-type]


@inner
def take_over(keeping, found, first, stop):
    """Writes what a walk has found from one call on, and before another, into the keeping."""
    for call in range(first, stop):
        keeping.time_ns[call] = found.time_ns[call]
        keeping.touched[call, :] = found.touched[call]
        keeping.there[call + 1, :] = found.there[call + 1]
        keeping.held[call + 1] = found.held[call + 1]
