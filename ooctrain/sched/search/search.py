"""The interface of the compiled search: from runs to what is kept, and from that to runs.

`Search` prices what is kept (`Kept`), improves it by annealing in rounds, and says which runs come
of it. A round is a mixture of moves and a temperature: the first one gives values fates, which
crosses a large space in few moves; what it finds is where gaps are turned one by one. Read next:
`kept.py` for what is searched, `anneal.py` for how.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.host_gaps import is_short_of_host
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import Use
from ooctrain.sched.planning.swap import piece_bytes
from ooctrain.sched.schedule import Run
from ooctrain.sched.search.anneal import IMPOSSIBLE, Annealing, Cooling, anneal, evaluate
from ooctrain.sched.search.expand import expand
from ooctrain.sched.search.field import field_of
from ooctrain.sched.search.jit import SLOWER
from ooctrain.sched.search.kept import Kept, nothing_kept, unseen, want_all
from ooctrain.sched.search.moves import DROP, UNREAD, Mix, give_all, unchanged
from ooctrain.sched.search.play import SearchLimits, link_of
from ooctrain.sched.search.tables import tables_of
from ooctrain.step.chain import chain
from ooctrain.step.presets import v100_pcie

#: Between two looks at the clock: moves times calls. Some 50 ms.
BLOCK = 150_000
#: More moves than this for each value that can be changed find nothing new; where host memory is
#: short, they find more.
ENOUGH, ENOUGH_SHORT = 400, 2000
#: How many starts are worth annealing.
STARTS = 2
#: Where nothing is copied: how many searches there are at most, of how many moves at least.
MANY, EACH = 10, 500


class Round(NamedTuple):
    """A part of a search.

    Args:
        mix: its moves.
        heat: the first temperature, as a share of the makespan.
        share: how many moves it gets, as a share of those of all.
        each: whether it goes on from each that the round before it found and that fits; else from
            the best of all.
    """

    mix: Mix
    heat: float
    share: float
    each: bool


FATES = Mix(stays=4, shifts=4, neighbours=2, pairs=2, singles=4, gaps=0)
BOTH = Mix(stays=4, shifts=4, neighbours=2, pairs=2, singles=2, gaps=2)
GAPS = Mix(stays=3, shifts=3, neighbours=0, pairs=0, singles=1, gaps=8)
#: From fates, which cross a large space in few moves, to gaps one by one, which find what is left.
ROUNDS: tuple[Round, ...] = (
    Round(FATES, 0.004, 1.0, each=True),
    Round(BOTH, 0.0015, 1.0, each=False),
    Round(GAPS, 0.0005, 1.0, each=False),
)
#: Where nothing can wait on the host, from where gaps are turned matters more than how good that
#: is: many short searches come first.
WITHOUT_HOST: tuple[Round, ...] = (
    Round(FATES, 0.004, 0.5, each=True),
    Round(BOTH, 0.004, 0.5, each=True),
    Round(GAPS, 0.002, 2.0, each=True),
    Round(GAPS, 0.0006, 2.0, each=False),
)
FIRST = ROUNDS[0]


class Search:
    """What may be kept, for one question.

    Attributes:
        tables, field: what is looked up.
        limits: those of every list.
        evaluations: how many lists have been priced, or moves made, so far.
        short_of_host: whether host memory may be too small.
        copies_nothing: whether it holds only the inputs.
        cut_short: whether a deadline has ended one of the searches.
    """

    def __init__(self, question: Question):
        self.trace, budget_bytes = question.trace, question.budget_bytes
        self.tables = tables_of(self.trace, question.machine, question.granule)
        piece = piece_bytes(budget_bytes, question.machine)
        chunk = question.granule.granted(piece) if question.granule.ranges else 0
        host_bytes = _host_bytes(question)
        self.short_of_host, self.copies_nothing = host_bytes >= 0, host_bytes == 0
        self.limits = SearchLimits(
            budget_bytes, chunk, link_of(question.machine), host_bytes, question.granule.size_bytes
        )
        self.field = field_of(self.trace, self.tables, budget_bytes, piece if host_bytes else None)
        self.evaluations, self.cut_short = 0, False

    def dropping(self, values: Iterable[int], *, repeatedly: bool = False) -> Kept:
        """Keeps all that is read again, but values that are dropped after their last use in the
        forward pass.

        Args:
            repeatedly: whether they are dropped again whenever the next call does not read them.
        """
        kept, fate = self._nothing(), UNREAD if repeatedly else DROP
        last = self.tables.last_use[self.tables.values]
        want_all(kept, np.stack([np.arange(last.size), self.field.first, last], axis=1))
        columns = self.tables.column[list(values)]
        give_all(self.field, kept, columns[columns >= 0], fate)
        return kept

    def keeping(self, runs: Sequence[Run], stays: Iterable[Use] = ()) -> Kept:
        """Keeps what some runs keep: from a run that writes it until the last that reads it."""
        column, spans = self.tables.column, list[tuple[int, int, int]]()
        open_lives = dict[int, tuple[int, int]]()

        def close(var: int) -> None:
            first, last = open_lives.pop(var, (0, 0))
            if column[var] >= 0 and last > first:
                spans.append((column[var], first + 1, last))

        for run, next_call in zip(runs, _for_calls(runs), strict=True):
            call = self.trace.calls[run.call]
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
        kept = self._nothing()
        want_all(kept, np.array(spans, np.int64).reshape(-1, 3))
        for var, use in stays:
            kept.stays[self.tables.slot_at[var] + self.trace.uses[var].index(use)] = True
        return kept

    def cost(self, kept: Kept) -> float:
        """Makespan in ns, or a cost beyond `IMPOSSIBLE`."""
        self.evaluations += 1
        return evaluate(self.tables, kept, self.limits)

    def fits(self, kept: Kept) -> bool:
        """Whether it is a schedule."""
        return self.cost(kept) < IMPOSSIBLE

    def best_first(self, starts: Iterable[Kept]) -> list[Kept]:
        """The most promising of some starts."""
        found = sorted(map(self._with_what_is_small, starts), key=lambda start: start[1])
        return [kept for kept, _ in found[:STARTS]]

    def best_of(
        self, starts: Sequence[Kept], moves: int, *, seed: int, deadline: Deadline
    ) -> list[Kept]:
        """What all rounds find, the best first.

        Args:
            starts: the most promising first.
            moves: of a round whose share is 1.
        """
        rounds, width = ROUNDS, len(starts)
        if self.copies_nothing:
            rounds, width = WITHOUT_HOST, max(width, min(MANY, moves // EACH))
        best, now = list[tuple[float, Kept]](), [starts[n % len(starts)] for n in range(width)]
        for part in rounds:
            chosen = now if part.each else [best[0][1]]
            found = list[tuple[float, Kept]]()
            for start in chosen:
                number = int(part.share * moves) // len(chosen)
                kept = self.improve(start, number, part, seed=seed, deadline=deadline)
                found.append((self.cost(kept), kept))
                seed += 1
            best = sorted([*found, *best], key=lambda one: one[0])
            now = [kept for cost, kept in found if cost < IMPOSSIBLE] or [best[0][1]]
        return [kept for _, kept in best]

    def improve(
        self, start: Kept, moves: int, part: Round, *, seed: int, deadline: Deadline
    ) -> Kept:
        """The best met while annealing; while nothing fits, what has the least bytes missing.

        Args:
            start: it is not changed.
            moves: how many are made at most.
            part: which ones, and how hot.
        """
        values, calls = self.field.places.size, len(self.trace.calls)
        enough = ENOUGH_SHORT if self.short_of_host else ENOUGH
        moves = min(moves // SLOWER, enough * values)
        start, cost = self._with_what_is_small(start)
        block = max(1, BLOCK // max(1, calls))
        walk = Annealing(
            start, cost, _copied(start), cost, seed,
            unseen(self.tables.values.size, calls), unchanged(calls + 2),
        )  # fmt: skip
        for first in range(0, moves, block):
            if deadline.passed():
                self.cut_short = True
                break
            stop = min(first + block, moves)
            cooling = Cooling(first, stop, moves, part.heat)
            walk = anneal(self.tables, walk, self.field, part.mix, self.limits, cooling)
            self.evaluations += stop - first
        return walk.best

    def _with_what_is_small(self, kept: Kept) -> tuple[Kept, float]:
        """A copy, and its cost, in which what is small stays as long as it is of use, if that is no
        slower.
        """
        cost, fuller, field = self.cost(kept), _copied(kept), self.field
        small = np.setdiff1d(np.arange(self.tables.values.size), field.turned)
        want_all(fuller, np.stack([small, field.first[small], field.end[small]], axis=1))
        with_small = self.cost(fuller)
        return (fuller, with_small) if with_small <= cost else (_copied(kept), cost)

    def runs(self, kept: Kept) -> tuple[Run, ...]:
        """The runs of what is kept; it is a schedule."""
        step = expand(self.tables, kept.until)
        written: list[list[int]] = [[] for _ in step.runs]
        for var, first in zip(step.life_var.tolist(), step.life_first.tolist(), strict=True):
            if first >= 0:
                written[first].append(var)
        return tuple(
            Run(call, None if len(keeps) == len(self.trace.calls[call].outs) else tuple(keeps))
            for call, keeps in zip(step.runs.tolist(), written, strict=True)
        )

    def stays(self, kept: Kept) -> tuple[Use, ...]:
        """The uses after which a value stays on the device while others can leave."""
        return tuple(
            (var, use)
            for var, uses in enumerate(self.trace.uses)
            for slot, use in enumerate(uses, int(self.tables.slot_at[var]))
            if kept.stays[slot]
        )

    def _nothing(self) -> Kept:
        return nothing_kept(
            self.tables.values.size, len(self.trace.calls), int(self.tables.slot_at[-1])
        )


def _copied(kept: Kept) -> Kept:
    return Kept(kept.until.copy(), kept.stays.copy())


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


def _host_bytes(question: Question) -> int:
    """What the inputs leave of the host budget; below 0: enough for all."""
    left_bytes = question.host_left_bytes
    return max(0, left_bytes) if left_bytes is not None and is_short_of_host(question) else -1


# Compilation in advance, for tests and `execution/compile_apart.py`: each function is compiled by
# its first call, so a short search of a chain of three stages calls all of them.


def compile_search() -> None:
    """Searches a little, in each round."""
    trace = chain([4] * 4, [4] * 4, [1] * 3, [1] * 3, [0] * 3, [0] * 3)
    search = Search(Question(trace, trace_peak_bytes(trace), v100_pcie()))
    kept, never = search.dropping(()), Deadline.after(None)
    kept = search.best_of([kept], 12, seed=0, deadline=never)[0]
    search.runs(search.keeping(search.runs(kept)))
