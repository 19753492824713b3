"""The interface of the compiled search: choices as sets of uses.

Compiled code works on arrays; all other code works on sets of uses, of which a `Choice` consists: a
use (variable, call) stands for the time after it, a slot of the arrays. `Search` translates between
them, and counts evaluations. Read next: `tables.py`, `anneal.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ooctrain.sched.budget import input_bytes, trace_peak_bytes
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.host_gaps import is_short_of_host
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import (
    Use,
    droppable_uses,
    last_forward_use,
    rematerialise_after,
)
from ooctrain.sched.planning.swap import piece_bytes
from ooctrain.sched.schedule import Run
from ooctrain.sched.search.anneal import (
    FATE,
    IMPOSSIBLE,
    STAYS,
    Cooling,
    Field,
    anneal,
    annealing_from,
    evaluate,
)
from ooctrain.sched.search.expand import DROP, DROP_UNREAD, HELD
from ooctrain.sched.search.jit import SLOWER
from ooctrain.sched.search.keep_offload_or_recompute import KeepOffloadOrRecomputeSearch, Large
from ooctrain.sched.search.keep_or_recompute import NOTHING, KeepOrRecomputeSearch, KeptRuns
from ooctrain.sched.search.play import SearchLimits, link_of
from ooctrain.sched.search.tables import tables_of
from ooctrain.step.chain import chain
from ooctrain.step.presets import v100_pcie
from ooctrain.step.trace import Trace

#: The first temperature, as a share of the makespan: of a search from a start, and of the last one,
#: from the best that those found.
HEAT, LESS_HEAT = 0.004, 0.0015
#: Between two looks at the clock: evaluations times calls. Some 50 ms.
BLOCK = 150_000
#: More evaluations than this for each value that can be changed find nothing new; where host memory
#: is short, they find more.
ENOUGH, ENOUGH_SHORT = 400, 2000
_NO_SLOTS = np.zeros(0, np.int64)
#: How many starts are worth annealing.
STARTS = 2
#: For the search over what is kept: moves for each evaluation, where nothing is copied; evaluations
#: for each move, where copies are.
CHEAP, COSTLY = 2, 2


@dataclass(frozen=True, slots=True)
class Choice:
    """What `rematerialise_after` and `offload` take, ascending."""

    dropped: tuple[Use, ...]
    unread: tuple[Use, ...] = ()
    held: tuple[int, ...] = ()
    stays: tuple[Use, ...] = ()


class Search:
    """Choices for one question.

    Attributes:
        evaluations: number so far, moves of the search over what is kept included.
        short_of_host: whether host memory may be too small.
        copies_nothing: whether it holds only the inputs.
        cut_short: whether a deadline has ended one of the searches.
        limits: limits of every choice.
    """

    def __init__(self, question: Question):
        trace, budget_bytes = question.trace, question.budget_bytes
        machine, granule = question.machine, question.granule
        self._tables = tables_of(trace, machine, granule)
        piece = piece_bytes(budget_bytes, machine)
        chunk = granule.granted(piece) if granule.ranges else 0
        host_bytes = _host_bytes(question)
        self.short_of_host, self.copies_nothing = host_bytes >= 0, host_bytes == 0
        self.limits = SearchLimits(
            budget_bytes, chunk, link_of(machine), host_bytes, granule.size_bytes
        )  # fmt: skip
        self._question, self._trace = question, trace
        self._field = self._written(trace, _large(trace, piece) if host_bytes else [])
        self._block = max(1, BLOCK // max(1, len(trace.calls)))
        self.evaluations, self.cut_short = 0, False

    def _written(self, trace: Trace, large: list[int]) -> Field:
        """What a search may change."""
        at = self._tables.slot_at
        may_drop, may_change = np.zeros(at[-1], np.bool_), np.zeros(at[-1], np.bool_)
        may_drop[[self._slot(use) for use in droppable_uses(trace)]] = True
        may_change |= may_drop
        first, end, place = list[int](), list[int](), dict[int, int]()
        for var in _computed_forward(trace):
            slot, last = self._slot((var, last_forward_use(trace, var))), at[var + 1] - 1
            may_change[slot] |= slot == last  # it may be held
            if not self.short_of_host and slot != last:
                may_drop[slot] = may_change[slot] = True
            if may_change[slot]:
                place[var] = len(first)
                first.append(slot)
                end.append(last + 1)
        large_at = np.array(large, np.int64)
        return Field(
            np.array(first, np.int64), np.array(end, np.int64),
            np.flatnonzero(may_change & self.short_of_host),
            may_drop, at[large_at], at[large_at + 1],
            _linked(trace, place if self.short_of_host else {}),
        )  # fmt: skip

    def _slot(self, use: Use) -> int:
        var, call = use
        return int(self._tables.slot_at[var]) + self._trace.uses[var].index(call)

    def dropping(self, values: Iterable[int], *, repeatedly: bool = False) -> Choice:
        """The choice that drops values after their last use in the forward pass, or after each
        from then on.
        """
        dropped, unread = list[Use](), list[Use]()
        for var in sorted(values):
            first = last_forward_use(self._trace, var)
            for use in self._trace.uses[var]:
                if use >= first and self._field.may_drop[self._slot((var, use))]:
                    unread.append((var, use))
                    if repeatedly or use == first:
                        dropped.append((var, use))
        return Choice(tuple(dropped), tuple(unread) if repeatedly else ())

    def call_by_call(
        self, begun: Sequence[tuple[Choice, Sequence[Run]]], evaluations: int, *, seed: int,
        deadline: Deadline,
    ) -> list[KeptRuns]:  # fmt: skip
        """The fastest lists met by the search of what is kept from call to call, the best first.

        Args:
            begun: choices and their runs, the best first. Where nothing is copied it goes on from
                each of them, else from the first.
            evaluations: what it may cost, in evaluations of choices.
        """
        evaluations //= SLOWER
        if not self.copies_nothing:
            choice, runs = begun[0]
            copied = self._with_copies(choice, runs, evaluations // COSTLY, seed, deadline)
            return [] if copied is None else [copied]
        lists = [runs for _, runs in begun]
        kept = self.kept_from_call_to_call(lists[0])
        found = kept.improve_all(lists, CHEAP * evaluations, seed=seed, deadline=deadline)
        self.cut_short |= kept.cut_short
        self.evaluations += kept.moves
        return found

    def kept_from_call_to_call(self, runs: Sequence[Run]) -> KeepOrRecomputeSearch:
        """The search that goes on from choices where nothing is copied.

        Args:
            runs: those of the best choice; what is small stays only if they have room for it.
        """
        kept = KeepOrRecomputeSearch(self._question)
        return kept if kept.fits(runs) else KeepOrRecomputeSearch(self._question, small=NOTHING)

    def _with_copies(
        self, choice: Choice, runs: Sequence[Run], moves: int, seed: int, deadline: Deadline
    ) -> KeptRuns | None:
        large = Large(self._field.large_first, self._field.large_end)
        copies = KeepOffloadOrRecomputeSearch(self._question, self.limits, large)
        now = self._array(choice)
        found = copies.improve(runs, now[STAYS], moves, seed=seed, deadline=deadline)
        self.cut_short |= copies.cut_short
        self.evaluations += copies.moves
        if found is None:
            return None
        kept, now[STAYS] = found
        return kept._replace(stays=self._choice(now).stays)

    def best_first(self, choices: Iterable[Choice]) -> list[Choice]:
        """The most promising of some choices."""
        return sorted(choices, key=lambda choice: (self.cost(choice), choice.dropped))[:STARTS]

    def fits(self, choice: Choice) -> bool:
        """Whether it is a schedule."""
        return self.cost(choice) < IMPOSSIBLE

    def cost(self, choice: Choice) -> float:
        """Makespan in ns, or a cost beyond `IMPOSSIBLE`."""
        self.evaluations += 1
        return evaluate(self._tables, self._array(choice), self.limits)

    def improve(
        self, start: Choice, evaluations: int, *, seed: int, deadline: Deadline,
        further: bool = False,
    ) -> Choice:  # fmt: skip
        """The best choice met while annealing; while none fits, the one with the least bytes
        missing.

        Args:
            evaluations: how many choices are tried at most.
            further: it begins with what other searches found, so at a lower temperature. Where host
                memory is short only such a search changes single uses, and begins as hot as the
                others, in which a value has one fate after all of its uses.
        """
        walk = annealing_from(self._tables, self._array(start), self.limits, seed)
        field = self._field if further else self._field._replace(slots=_NO_SLOTS)
        heat = LESS_HEAT if further and not self.short_of_host else HEAT
        values = field.first.size
        if not values:
            return start
        enough = ENOUGH_SHORT if self.short_of_host else ENOUGH
        evaluations = min(evaluations // SLOWER, enough * values)
        for first in range(0, evaluations, self._block):
            if deadline.passed():
                self.cut_short = True
                break
            stop = min(first + self._block, evaluations)
            cooling = Cooling(first, stop, evaluations, heat)
            walk = anneal(self._tables, walk, field, self.limits, cooling)
            self.evaluations += stop - first
        return self._choice(walk.best)

    def _array(self, start: Choice) -> np.ndarray:
        choice = np.zeros((2, self._field.may_drop.size), np.int8)
        choice[FATE, [self._slot(use) for use in start.dropped]] = DROP
        choice[FATE, [self._slot(use) for use in start.unread]] = DROP_UNREAD
        choice[FATE, [self._tables.slot_at[var + 1] - 1 for var in start.held]] = HELD
        choice[STAYS, [self._slot(use) for use in start.stays]] = True
        return choice

    def _choice(self, found: np.ndarray) -> Choice:
        dropped, unread, held, stays = [], [], [], []
        for var, uses in enumerate(self._trace.uses):
            for slot, use in enumerate(uses, int(self._tables.slot_at[var])):
                if found[STAYS, slot]:
                    stays.append((var, use))
                if found[FATE, slot] and use == uses[-1]:
                    held.append(var)
                elif found[FATE, slot]:
                    dropped.append((var, use))
                    if found[FATE, slot] == DROP_UNREAD:
                        unread.append((var, use))
        return Choice(tuple(dropped), tuple(unread), tuple(held), tuple(stays))


def _host_bytes(question: Question) -> int:
    """What the inputs leave of the host budget; below 0: enough for all."""
    left_bytes = question.host_left_bytes
    return max(0, left_bytes) if left_bytes is not None and is_short_of_host(question) else -1


def _computed_forward(trace: Trace) -> list[int]:
    """Activations of pure forward calls: dropped or kept if they are read in the backward pass,
    else held or not.
    """
    found = []
    for variable in trace.variables:
        producer = trace.producer[variable.id]
        if producer is not None and variable.kind == "activation" and variable.nbytes:
            call = trace.calls[producer]
            if call.pure and call.phase == "forward":
                found.append(variable.id)
    return found


def _linked(trace: Trace, place: Mapping[int, int]) -> np.ndarray:
    """The places of all values of which one is computed from the other, by a call or by two."""
    rows = list[tuple[int, int]]()
    for var in place:
        near = dict.fromkeys(out for call in trace.readers[var] for out in trace.calls[call].outs)
        for out in list(near):
            near |= dict.fromkeys(o for call in trace.readers[out] for o in trace.calls[call].outs)
        rows += [(place[var], place[out]) for out in near if out in place]
    return np.array(rows, np.int64).reshape(-1, 2)


def _large(trace: Trace, piece_bytes: int) -> list[int]:
    """Values for which staying is a choice: computed in the step, and no smaller than a piece."""
    return [
        variable.id
        for variable in trace.variables
        if trace.producer[variable.id] is not None
        and not variable.persistent
        and variable.nbytes >= piece_bytes
    ]


# Compilation in advance, for tests and `execution/compile_apart.py`: each function is compiled by
# its first call, so three short searches of a chain of three stages call all of them.


#: Evaluations of each search.
FEW = 12


def compile_search() -> None:
    """Searches for choices, and from one of them for what is kept: where the host holds all, and
    where it holds the inputs alone.
    """
    trace = chain([4] * 4, [4] * 4, [1] * 3, [1] * 3, [0] * 3, [0] * 3)
    budget_bytes, never = trace_peak_bytes(trace), Deadline.after(None)
    for host_bytes in (None, input_bytes(trace)):
        question = Question(trace, budget_bytes, v100_pcie(), host_budget_bytes=host_bytes)
        search = Search(question)
        found = search.improve(search.dropping(()), FEW, seed=0, deadline=never)
        runs = rematerialise_after(trace, found.dropped, unread=found.unread, held=found.held)
        search.call_by_call([(found, runs)], FEW, seed=0, deadline=never)
