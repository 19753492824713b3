"""The rows that every list without copies on the host obeys, stage by stage.

A stage ends with the first run of a call that `ends` names. `run[k, g]` says that call k runs again
in stage g, `there[v, g]` that value v is on the device while stage g ends, `kept[v, g]` that it has
been there throughout, since stage g - 1 ended. A value that is there was kept or made again; a call
that reads a value in a later stage than that in which it was made first finds it or has it made
again, and so does a call that runs again; an output that takes over a storage destroys what was
there. Whenever a call runs, what is kept throughout its stage, its sources, its outputs and its
workspace fit the budget together. In which order calls run within a stage, how often, and what else
is there meanwhile, the rows leave open; so every list obeys them, and what it computes again costs
at least what the program says. Bytes are shares of what the budget leaves beside what never moves,
times hundredths of the step's compute time. Source: the stages and R, S of Checkmate (Jain et al.,
MLSys 2020), of which these rows are a relaxation: they are fewer, and true of any order. Read next:
`recompute.py`; `sched/planners/checkmate/checkmate_program.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from ooctrain.sched.bounds.linear import LinearProgram, Term
from ooctrain.sched.planning.residency import always_resident
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Call, Trace

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
        trace: the step.
        budget_bytes: of the device.
        backward: whether calls of the backward pass may run again, too.
        small: values of at most this share of the room are left out.

    Attributes:
        room_bytes: of the budget, beside what never leaves the device; at least 1.
        size: of each variable, as a share of it; 0 for what never leaves.
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
        step: its values.
        machine: for the times of calls.
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
        """What is there at the end of a stage fits, and so does what is kept beside each run."""
        size, needs, end = self.step.size, self.step.needs, self.ends[stage]
        beside = [v for v in self.made if (v, stage) in self.there and v not in needs[end].touched]
        held = [(self.there[v, stage], size[v]) for v in beside]
        self.program.at_most(held, 1.0 - needs[end].share)
        kept = self.program.column()
        rest = [(self.kept[v, stage], size[v]) for v in self.made if (v, stage) in self.kept]
        self.program.equal([(kept, -1.0), *rest])
        for call in range(self.ends[stage - 1] + 1 if stage else 0, end):
            terms = self._beside(kept, call, stage)
            self.program.at_most(terms, 1.0 - needs[call].share)
        for call in self.step.again:
            if (call, stage) in self.run:
                terms = self._beside(kept, call, stage)
                self.program.at_most([*terms, (self.run[call, stage], needs[call].share)], 1.0)

    def _beside(self, kept: int, call: int, stage: int) -> list[Term]:
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
