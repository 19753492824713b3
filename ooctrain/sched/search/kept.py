"""The interface of the search over what is kept from call to call, for a host without room.

`KeptSearch` takes the runs of any plan that copies nothing, says call by call what they keep
(`Keeping`), lets `anneal_kept` change that, and gives runs again. A fate of a value (`choice.py`)
is the same for all the times that it comes back between two of its uses; here it may die after the
first of them and stay after the second. That is what lists within small budgets need where nothing
can wait on the host. Calls of the backward pass run once. Source: ours; docs/planners.md says what
it gains. Read next: `sched/planners/combined.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import Use
from ooctrain.sched.schedule import Run
from ooctrain.sched.search.anneal import Cooling
from ooctrain.sched.search.kept_anneal import KeptAnnealing, anneal_kept
from ooctrain.sched.search.kept_walk import Keeping, KeptTables, beginning, walk, walk_call
from ooctrain.sched.search.tables import COMPUTED, INPUT, Tables, tables_of
from ooctrain.step.trace import Call, Trace

#: Values of at most this share of the budget stay; below 0 none do.
SMALL, NOTHING = 0.002, -1.0
#: The first temperature, as a share of the time of all runs: of a search from a choice, and of one
#: from the best that those found.
HEAT, LESS_HEAT = 0.002, 0.0006
#: Moves times calls between two looks at the clock.
BLOCK = 500_000


class KeptRuns(NamedTuple):
    """A list of runs.

    Args:
        time_ns: that the step takes.
        runs: of its calls.
        stays: what can leave after these uses stays while others can.
    """

    time_ns: int
    runs: tuple[Run, ...]
    stays: tuple[Use, ...] = ()


class KeptSearch:
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
        self.tables = _kept_tables(question, small)
        self._block = max(1, BLOCK // max(1, len(question.trace.calls)))
        self.cut_short, self.moves = False, 0

    def improve(
        self, runs: Sequence[Run], moves: int, *, seed: int, deadline: Deadline,
        further: bool = False,
    ) -> KeptRuns | None:  # fmt: skip
        """The fastest runs met while annealing, None if those given do not fit as they are taken
        here: what is small stays, and each value comes back just before it is read.

        Args:
            runs: where it begins.
            moves: how many are tried at most.
            seed: of the random numbers.
            deadline: interrupts the search.
            further: it begins with what other searches found, so at a lower temperature.
        """
        begun, place = self.keeping(runs), beginning(self.tables)
        if begun is None:
            return None
        found = KeptAnnealing(begun, begun.wanted.copy(), int(begun.time_ns.sum()), seed)
        heat = LESS_HEAT if further else HEAT
        for first in range(0, moves if self.tables.size.size else 0, self._block):
            if deadline.passed():
                self.cut_short = True
                break
            cooling = Cooling(first, min(first + self._block, moves), moves, heat)
            found = anneal_kept(self.tables, found, cooling, place)
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
        column: of each variable; below 0: it is there from when it is made.
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


def _may_run(call: Call) -> bool:
    """Whether a call runs again here."""
    return call.pure and call.phase in ("forward", "loss")


def _kept_tables(question: Question, small: float) -> KeptTables:
    trace = question.trace
    t = tables_of(trace, question.machine, question.granule)
    until, calls = _until(trace, t), len(trace.calls)
    values = [
        v for v, made in enumerate(trace.producer)
        if made is not None and _may_run(trace.calls[made]) and t.last_use[v] < calls
        and t.granted[v] > small * question.budget_bytes
    ]  # fmt: skip
    values.sort(key=lambda v: (trace.producer[v] or 0, v))
    column = np.full(len(trace.variables), -1, np.int64)
    column[values] = np.arange(len(values))
    for var, taker in trace.taker.items():
        if column[var] < 0:
            until[var] = min(until[var], taker)
    near = _near(trace, values)
    claim, base = _others(trace, t, column, until)
    return KeptTables(
        t, question.budget_bytes, _ints(values), column, _ints(until), t.granted[values],
        claim, base, t.producer[values] + 1, _ints([until[v] for v in values]),
        _ints([column[v] for row in near for v in row]),
        _ints([0, *accumulate(len(row) for row in near)]),
    )  # fmt: skip


def _until(trace: Trace, t: Tables) -> list[int]:
    """The last call for which each variable may be of use."""
    until = t.last_use.tolist()
    for call in reversed(trace.calls):
        if _may_run(call):
            last = max((until[out] for out in call.outs), default=-1)
            for var in call.ins:
                until[var] = max(until[var], last)
    return [len(trace.calls) if t.origin[v] == INPUT else last for v, last in enumerate(until)]


def _others(
    trace: Trace, t: Tables, column: np.ndarray, until: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """What each call claims, and what is there as it begins, of variables without a column."""
    calls = len(trace.calls)
    claim, base = t.workspace.copy(), np.zeros(calls + 1, np.int64)
    for var in np.flatnonzero(column < 0).tolist():
        size_bytes, made = t.granted[var], trace.producer[var]
        if t.origin[var] == INPUT:
            claim[list(trace.readers[var])] += size_bytes
            continue
        if t.reused[var] < 0 and made is not None:
            claim[made] += size_bytes
        if t.last_use[var] >= 0:
            first = 0 if t.origin[var] != COMPUTED or made is None else made + 1
            base[first : until[var] + 1] += size_bytes
    return claim, base


def _near(trace: Trace, values: Sequence[int]) -> list[list[int]]:
    """Of each value those that are computed from it, or from which it is, by a call or by two."""
    near: dict[int, set[int]] = {v: set() for v in values}
    for var in values:
        outs = {out for call in trace.readers[var] for out in trace.calls[call].outs}
        outs |= {o for v in outs for call in trace.readers[v] for o in trace.calls[call].outs}
        for out in outs.intersection(values):
            near[var].add(out)
            near[out].add(var)
    return [sorted(near[v].difference([v])) for v in values]


def _ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int64)
