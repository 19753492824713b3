"""A step that runs calls again, as a step in which nothing runs twice; and the way back.

With this file any planner that lists each call once can plan runs (from `rematerialise`) that
repeat calls. The idea is paper 001's graph edit: copy the calls that run again, with variables of
their own for what they write, and let the later reader read from the copy. The planner of the
copied step knows nothing of recomputation; its list, with each copy named by its original, is a
list of the step. That is legal because two copies of a value are never alive at once, and hold the
same bits.

Source: paper 001, section 2.2 and figure 2 (edit for recomputation first, then swap what is there).
Read next: `sched/planners/tflms_hybrid.py`, `sched/planners/bn_recompute.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ooctrain.errors import Infeasible
from ooctrain.sched.planning.fastest import Candidate
from ooctrain.sched.planning.planner import (
    Planner,
    check_host,
    infeasible,
    make_plan,
)
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import End, Fence, Instruction, Plan, Run, Schedule
from ooctrain.step.trace import Call, Trace, Variable


@dataclass(frozen=True, slots=True)
class Unrolled:
    """A step in which every run is a call of its own.

    Args:
        runs: for each of its calls the run that it stands for.
        original: for each of its variables that of the step it was made from.
        scratch: those of them that their run does not keep.
    """

    trace: Trace
    runs: tuple[Run, ...]
    original: tuple[int, ...]
    scratch: frozenset[int]

    def fold(self, schedule: Schedule) -> Schedule:
        """A list of the unrolled step as a list of the step. Each call of it runs once."""
        return Schedule(
            tuple(self._folded(schedule.instructions)),
            tuple((self.original[var], lo, hi) for var, lo, hi in schedule.start_device),
            tuple((self.original[var], lo, hi) for var, lo, hi in schedule.start_host),
            schedule.granule,
        )

    def _folded(self, instructions: Sequence[Instruction]) -> Iterator[Instruction]:
        for instruction in instructions:
            if isinstance(instruction, Run):
                yield self.runs[instruction.call]
            elif isinstance(instruction, End):
                yield End(self.runs[instruction.call].call)
            elif isinstance(instruction, Fence):
                yield instruction
            elif instruction.var not in self.scratch:  # the End of its run releases scratch
                var, kind = self.original[instruction.var], type(instruction)
                same = var == instruction.var
                yield instruction if same else kind(var, instruction.lo, instruction.hi)


def unroll(trace: Trace, runs: Sequence[Run]) -> Unrolled:
    """The step in which some runs are calls of their own. Cost: O(uses by the runs)."""
    variables = [replace(trace.variables[v], id=k) for k, v in enumerate(trace.initial)]
    original, scratch = list(trace.initial), set[int]()
    now = {var: k for k, var in enumerate(trace.initial)}  # which copy of a variable is alive
    calls: list[Call] = []
    first: dict[int, int] = {}
    times: dict[int, int] = {}
    for run in runs:
        call = trace.calls[run.call]
        times[call.id] = times.get(call.id, 0) + 1
        copies = {out: len(variables) + k for k, out in enumerate(call.outs)}
        variables += [_copy(trace.variables[v], k, times[call.id]) for v, k in copies.items()]
        original += call.outs
        if run.keep is not None:
            scratch |= {k for v, k in copies.items() if v not in run.keep}
        first.setdefault(call.id, len(calls))
        ins, outs = tuple([now[v] for v in call.ins]), tuple(copies.values())
        forward_of = None if call.forward_of is None else first[call.forward_of]
        takes_over = {copies[v]: now[source] for v, source in call.reuse.items()}
        # Written out: `replace` takes three times as long, and a step has thousands of calls.
        calls.append(
            Call(
                len(calls), _name(call.name, times[call.id]), call.op, ins, outs,
                call.workspace_bytes, MappingProxyType(takes_over), call.pure, call.phase,
                forward_of, call.duration_ns,
            )
        )  # fmt: skip
        now |= {v: k for v, k in copies.items() if k not in scratch}
    unrolled = Trace(
        tuple(variables),
        tuple(calls),
        MappingProxyType({now[new]: now[old] for new, old in trace.carries.items()}),
        MappingProxyType({name: now[var] for name, var in trace.outputs.items()}),
        trace.threads,
        trace.device,
    )
    unrolled.check()
    return Unrolled(unrolled, tuple(runs), tuple(original), frozenset(scratch))


def plan_runs(
    name: str, question: Question, runs: Sequence[Run], planner: Planner, notes: Mapping[str, Any]
) -> Plan:
    """What a planner that lists each call once makes of some runs.

    Raises:
        Infeasible: the planner's, with calls of the step for witnesses.
    """

    def write(step: Trace) -> Candidate:
        plan = planner.plan(replace(question, trace=step))
        return Candidate(plan.schedule, {**plan.notes, **notes})

    found = list_runs(name, question, runs, write)
    plan = make_plan(found.schedule, question.trace, question.machine, found.notes)
    check_host(name, plan, question.host_budget_bytes)
    return plan


def list_runs(
    name: str, question: Question, runs: Sequence[Run], write: Callable[[Trace], Candidate]
) -> Candidate:
    """What a writer of lists that run each call once makes of some runs.

    Raises:
        Infeasible: the writer's, with calls of the step for witnesses.
    """
    trace = question.trace
    unrolled = unroll(trace, runs)
    try:
        found = write(unrolled.trace)
    except Infeasible as refusal:
        least = refusal.minimum_bytes
        if least is None:
            raise
        witness = _original_name(unrolled, trace, refusal.witness_call)
        raise infeasible(name, question.budget_bytes, least, witness) from refusal
    again = {"runs_again": len(runs) - len(trace.calls)}
    return Candidate(unrolled.fold(found.schedule), {**found.notes, **again})


def _copy(variable: Variable, new_id: int, time: int) -> Variable:
    v = variable
    if time == 1 and new_id == v.id:
        return v
    name = _name(v.name, time)
    return Variable(new_id, name, v.shape, v.dtype, v.nbytes, v.kind, v.pinned)


def _name(name: str, time: int) -> str:
    return name if time == 1 else f"{name}, run {time}"


def _original_name(unrolled: Unrolled, trace: Trace, call: str) -> str:
    names = (c.name for c in unrolled.trace.calls)
    found = {
        copy: trace.calls[run.call].name for copy, run in zip(names, unrolled.runs, strict=True)
    }
    return found.get(call, call)
