"""The bound for a host without room: a step time that no list without copies on the host beats.

Where nothing can be copied to the host, what does not fit is computed again. The LP (`lp_bound.py`)
computes fractions of values again, for which it charges neither the memory of their sources nor
that of what is there meanwhile; within small budgets that is far below every list. Here time is cut
into stages; each value is there or not as a stage ends, and each call that runs again takes all of
its memory. The program is solved by branch and bound (HiGHS) up to a number of nodes; what is
proved by then is the bound, so it is true though the search has not ended. It is never below the
LP's, which takes part.

Which calls stages end with decides how much is proved (`widest_ends`, `dearest_ends`); both choices
are tried, and both bounds are true. Nothing runs, for the first time or again, before the first
call has its inputs, so the wait for them comes on top.

Class of lists covered: nothing is copied to the host; persistent variables start the step on the
device, and inputs on the host; first runs come in trace order. Pure calls may run again, all or
(`backward=False`) those of the forward pass and the loss, at any time, in any order, as often as
they like. Where the host budget leaves room for the inputs alone, every list that the verifier
accepts copies nothing, and `backward=True` covers them all; no planner here but `checkmate`, in
steps of 30 calls and less, makes lists that `backward=False` does not cover. Sources: ours; the
stages, with R and S, are those of Checkmate (Jain et al., MLSys 2020), of which these rows are a
relaxation: they are fewer, and true of any order. Read next: `linear_program.py`;
`sched/planners/checkmate.py`, whose program makes lists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ooctrain.sched.bounds.closed import first_wait_us
from ooctrain.sched.bounds.linear_program import LinearProgram, Term, WholeSolution
from ooctrain.sched.bounds.lp_bound import TOLERANCE, fluid_bound
from ooctrain.sched.budget import input_bytes
from ooctrain.sched.planning.residency import always_resident
from ooctrain.sched.schedule import LowerBound
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Call, Trace


class Depth(NamedTuple):
    """How hard to try; the same depth proves the same with one version of HiGHS.

    Args:
        reads: how many of the widest calls stages end around, by the first choice; in steps of
            twice as many each call is a stage.
        nodes: most nodes of the search tree.
    """

    reads: int = 5
    nodes: int = 300


#: The default depth.
USUAL = Depth()


@dataclass(frozen=True, slots=True)
class RecomputeBound:
    """What the program proves.

    Args:
        lp_us: the LP bound of the same question.
        proved_us: bound of the program alone.
        backward: whether it covers lists that run calls of the backward pass again.
        ended: what ended the search: "optimal", or "nodes" where more of them may prove more.
    """

    makespan_us: float
    lp_us: float
    proved_us: float
    backward: bool
    ended: str

    @property
    def covers(self) -> str:
        """The class of lists, in words."""
        again = "any pure call" if self.backward else "any pure call of the forward pass"
        return f"nothing is copied to the host, {again} may run again, calls first run in order"

    def lower_bound(self) -> LowerBound:
        """As other bounds are given."""
        again = "recomputation" if self.backward else "recomputation of the forward pass"
        return LowerBound(self.makespan_us, f"MILP of {again}")


def recompute_bound(
    trace: Trace, budget_bytes: int, machine: Machine, *, backward: bool = True,
    depth: Depth = USUAL,
) -> RecomputeBound | None:  # fmt: skip
    """The bound; None where no list of the class fits the budget.

    Args:
        budget_bytes: device budget, to the byte.
        machine: for the times of calls, and the link on which inputs come.
        backward: whether it covers lists that run calls of the backward pass again.
        depth: number of stages, length of the search.

    Cost: LPs of some 300 rows for each stage: some 200 to choose the stages, one at each node.
    """
    fluid = fluid_bound(
        trace, budget_bytes, machine, resident=True, host_budget_bytes=input_bytes(trace)
    )
    if fluid is None:
        return None
    step, lp_us = StepValues(trace, budget_bytes, backward), fluid.makespan_us
    proved: list[tuple[float, str]] = []
    for ends in _choices(step, machine, fluid.memory_prices, depth.reads):
        program = RecomputeProgram(step, machine, ends)
        found = program.program.search(depth.nodes, guess=False)
        if found.ended == "infeasible":
            return None
        proved.append((_proved_us(program, found, first_wait_us(trace, machine)), found.ended))
    most_us, ended = max(proved)
    return RecomputeBound(max(most_us, lp_us), lp_us, most_us, backward, ended)


def _choices(
    step: StepValues, machine: Machine, prices: Mapping[int, float], reads: int
) -> list[list[int]]:
    """The stages that are tried; in a short step each call is one, and no choice proves more."""
    widest = widest_ends(step, reads)
    if len(widest) == len(step.trace.calls):
        return [widest]
    return [widest, dearest_ends(step, machine, prices)]


def _proved_us(program: RecomputeProgram, found: WholeSolution, wait_us: float) -> float:
    """The wait, the compute time, and what has to run again; of that a little is given away to
    rounding."""
    again = max(0.0, found.bound) * (1 - 10 * TOLERANCE)
    return wait_us + (sum(program.duration_ns) + again * program.unit_ns) / 1000


# The program. A stage ends with the first run of a call that `ends` names. `run[k, g]`: call k runs
# again in stage g; `there[v, g]`: value v is on the device while stage g ends; `kept[v, g]`: it has
# been there since stage g - 1 ended. A value that is there was kept or made again; what is read in
# a later stage than it was made in is found or made again; an output that takes over a storage
# destroys what was there. Whenever a call runs, what is kept throughout its stage, its sources,
# outputs and workspace fit the budget together. The order within a stage, how often a call runs in
# it, and what else is there, are left open; so every list obeys the rows and costs at least what
# they say. Bytes are shares of what never-moving values leave of the budget, times hundredths of
# the compute time.


FORWARD = ("forward", "loss")
#: Values of less than this share of the room are taken to be there at no cost.
SMALL = 0.004


class _Need(NamedTuple):
    """What a run takes by itself: a share of the room, and the variables that count in it."""

    share: float
    touched: frozenset[int]


class StepValues:
    """What the program is about: values that take room, and calls that may run again.

    Args:
        backward: whether calls of the backward pass may run again, too.
        small: values of at most this share of the room are left out.

    Attributes:
        room_bytes: budget without what never leaves the device; at least 1.
        size: size of each variable, as a share of it; 0 for what never leaves.
        values: computed in the step, not small, and not for the next step.
        until: {value: the last call for which it may be of use}.
        again: {call that may run again: the last call for which that may be of use}.
    """

    def __init__(self, trace: Trace, budget_bytes: int, backward: bool, small: float = SMALL):
        self.trace = trace
        fixed, _ = always_resident(trace)
        variables, producer = trace.variables, trace.producer
        left = budget_bytes - sum(variables[v].nbytes for v in fixed if producer[v] is None)
        self.room_bytes = max(1, left)
        self.size = [0.0 if v.id in fixed else v.nbytes / self.room_bytes for v in variables]
        lasting = fixed.union(trace.end_variables.values())
        self.values = [
            v for v, made in enumerate(producer)
            if made is not None and v not in lasting and self.size[v] > small
        ]  # fmt: skip
        self._backward = backward
        self.until: dict[int, int] = {}
        self.again: dict[int, int] = {}
        for v in sorted(self.values, key=lambda v: producer[v] or 0, reverse=True):
            self._add(v)

    def _add(self, value: int) -> None:
        """Finds how long a value is of use; all that is computed from it has been added."""
        calls, made = self.trace.calls, self.trace.producer[value]
        assert made is not None
        readers = self.trace.readers[value]
        outs = [out for c in readers if self.may_run(calls[c]) for out in calls[c].outs]
        self.until[value] = max([made, *readers, *(self.until.get(out, 0) for out in outs)])
        if self.may_run(calls[made]):
            self.again[made] = max(self.again.get(made, 0), self.until[value])

    def may_run(self, call: Call) -> bool:
        """Whether a call may run again."""
        return call.pure and (self._backward or call.phase in FORWARD)

    @cached_property
    def needs(self) -> list[_Need]:
        """Of each call: its sources, its outputs on storages of their own, its workspace."""
        return [self._need(call) for call in self.trace.calls]

    def _need(self, call: Call) -> _Need:
        claimed = {*call.ins, *(v for v in call.outs if v not in call.reuse)}
        share = sum(self.size[v] for v in claimed) + call.workspace_bytes / self.room_bytes
        return _Need(share, frozenset(call.ins) | frozenset(call.outs))


class RecomputeProgram:
    """The program of some stages. Cost: a row for each value or call in each stage, or two.

    Args:
        ends: the calls with which stages end, ascending; the last call of the step is one.

    Attributes:
        program: costs are hundredths of the compute time.
        run, there, kept: {(call or value, stage): its column}.
    """

    def __init__(self, step: StepValues, machine: Machine, ends: Sequence[int]):
        self.step, self.trace, self.ends = step, step.trace, ends
        self.program = LinearProgram()
        self.duration_ns = call_durations_ns(self.trace, machine)
        self.unit_ns = sum(self.duration_ns) / 100 or 1.0
        self.stage = _stages(len(self.trace.calls), ends)
        self.made = {v: self.stage[self.trace.producer[v] or 0] for v in step.values}
        self.run = dict(self._run_columns())
        self.there = dict(self._there_columns())
        self.kept = dict(self._kept_columns())
        self.program.whole.update(self.run.values(), self.there.values())
        self._remaining()
        self._reading()
        for stage in range(len(ends)):
            self._memory(stage)

    def _run_columns(self) -> Iterator[tuple[tuple[int, int], int]]:
        for call, until in self.step.again.items():
            for stage in range(self.stage[call] + 1, self.stage[until] + 1):
                cost = self.duration_ns[call] / self.unit_ns
                yield (call, stage), self.program.column(cost=cost, upper=1.0)

    def _there_columns(self) -> Iterator[tuple[tuple[int, int], int]]:
        for value, made in self.made.items():
            for stage in range(made, self.stage[self.step.until[value]] + 1):
                read = value in self.trace.calls[self.ends[stage]].ins
                yield (value, stage), self.program.column(lower=float(read), upper=1.0)

    def _kept_columns(self) -> Iterator[tuple[tuple[int, int], int]]:
        """A storage that is taken over in a stage, or as the one before ends, is not kept."""
        for value, stage in self.there:
            if stage > self.made[value]:
                taker = self.trace.taker.get(value)
                lost = taker is not None and stage == self.stage[taker] + self._at_end(taker)
                yield (value, stage), self.program.column(upper=0.0 if lost else 1.0)

    def _at_end(self, call: int) -> bool:
        return self.ends[self.stage[call]] == call

    def _found(self, value: int, stage: int) -> list[Term]:
        """In how far a value is there when a stage begins."""
        taker = self.trace.taker.get(value)
        if (value, stage - 1) not in self.there or taker == self.ends[stage - 1]:
            return []
        return [(self.there[value, stage - 1], 1.0)]

    def _again(self, value: int, stage: int) -> list[Term]:
        """In how far a value is made again in a stage."""
        column = self.run.get((self.trace.producer[value] or 0, stage))
        return [] if column is None else [(column, 1.0)]

    def _remaining(self) -> None:
        """What is there was kept, or made again; what is kept was there, and is."""
        for (value, stage), kept in self.kept.items():
            there = self.there[value, stage]
            again = _less(self._again(value, stage))
            self.program.at_most([(there, 1.0), (kept, -1.0), *again])
            self.program.at_most([(kept, 1.0), (self.there[value, stage - 1], -1.0)])
            self.program.at_most([(kept, 1.0), (there, -1.0)])

    def _reading(self) -> None:
        """What is read is found or made again; a storage that is taken over again is not kept."""
        for call in self.trace.calls:
            stage = self.stage[call.id]
            for value in self._from_before(call, stage):
                there = self._found(value, stage) + self._again(value, stage)
                self.program.at_most(_less(there), -1.0)
        for (number, stage), ran in self.run.items():
            call = self.trace.calls[number]
            for value in self._from_before(call, stage):
                there = self._found(value, stage) + self._again(value, stage)
                self.program.at_most([(ran, 1.0), *_less(there)])
            for source in call.reuse.values():
                if (source, stage) in self.kept:
                    self.program.at_most([(self.kept[source, stage], 1.0), (ran, 1.0)], 1.0)

    def _from_before(self, call: Call, stage: int) -> Iterator[int]:
        """The values that a call reads and that were made first in an earlier stage."""
        return (v for v in dict.fromkeys(call.ins) if self.made.get(v, stage) < stage)

    def _memory(self, stage: int) -> None:
        """What is there at the end of a stage fits, and so does what is kept during each run."""
        size, needs, end = self.step.size, self.step.needs, self.ends[stage]
        others = [v for v in self.made if (v, stage) in self.there and v not in needs[end].touched]
        held = [(self.there[v, stage], size[v]) for v in others]
        self.program.at_most(held, 1.0 - needs[end].share)
        kept = self.program.column()
        rest = [(self.kept[v, stage], size[v]) for v in self.made if (v, stage) in self.kept]
        self.program.equal([(kept, -1.0), *rest])
        for call in range(self.ends[stage - 1] + 1 if stage else 0, end):
            terms = self._untouched(kept, call, stage)
            self.program.at_most(terms, 1.0 - needs[call].share)
        for call in self.step.again:
            if (call, stage) in self.run:
                terms = self._untouched(kept, call, stage)
                self.program.at_most([*terms, (self.run[call, stage], needs[call].share)], 1.0)

    def _untouched(self, kept: int, call: int, stage: int) -> list[Term]:
        """What is kept throughout a stage and not touched by a call."""
        touched = [v for v in self.step.needs[call].touched if (v, stage) in self.kept]
        return [(kept, 1.0), *((self.kept[v, stage], -self.step.size[v]) for v in touched)]


def _stages(calls: int, ends: Sequence[int]) -> list[int]:
    """The stage of each call."""
    found: list[int] = []
    for stage, end in enumerate(ends):
        found += [stage] * (end + 1 - len(found))
    assert len(found) == calls, "the last stage ends with the last call"
    return found


def _less(terms: Sequence[Term]) -> list[Term]:
    return [(column, -share) for column, share in terms]


# With which calls stages end: two choices, each of few calls. More stages forbid more as long as
# numbers are whole, but the relaxation, from which branch and bound begins, may then prove less: a
# third of a run in each of three stages needs a third of its room. So few stages prove most, if
# they end where memory is short: around calls that need much by themselves (`widest_ends`), or
# where a byte more would be worth most by the LP's dual values (`dearest_ends`). Source: ours.


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
