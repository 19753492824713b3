"""Recomputation on a chain: what chain planners write, and how it becomes runs of the trace.

The literature on chains knows four operations, which this file turns into `Run`s. F_all runs a
stage and keeps all that its backward needs; F_ck runs it for its output and keeps its input as a
checkpoint; F_none does the same and lets the input go; B runs the backward of a stage whose F_all
was the last of it to run. Everything else follows: a value is kept if a later operation reads it
before it is made again. A fifth one, D, lets a stage's input go although it would be read again.
Source: Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, Optimal checkpointing for heterogeneous
chains (rotor), section 3. Departure: calls that are not pure (running statistics) run the first
time only. Read next: `sched/planners/chen.py`, `sched/planners/rotor.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.planning.chain_view import ChainStage, ChainView
from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import infeasible, least_of
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan, Run
from ooctrain.step.machine import call_durations_ns
from ooctrain.step.trace import Call, Trace


class Kind(Enum):
    """What is done with a stage."""

    ALL = "F_all"
    CHECKPOINT = "F_ck"
    NONE = "F_none"
    BACKWARD = "B"
    LET_GO = "D"


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One operation on one stage."""

    kind: Kind
    stage: int


class Lift:
    """From steps on a chain to runs of its trace."""

    def __init__(self, view: ChainView):
        self.trace = view.trace
        self.forward = [[view.trace.calls[k] for k in stage.forward] for stage in view.stages]
        self.backward = [[view.trace.calls[k] for k in stage.backward] for stage in view.stages]
        self.saved = [set(stage.saved) - {stage.output} for stage in view.stages]
        self.passing = [_passing(view.trace, stage) for stage in view.stages]
        # What crosses into a stage; the chain's own input stays.
        self.input = [(), *([s.output] if s.output is not None else () for s in view.stages)]
        self.runs_whole = [Run(call.id) for call in view.trace.calls]

    def runs(self, steps: Iterable[ChainStep]) -> tuple[Run, ...]:
        """The runs that some steps mean, such that every B finds what it needs.

        Cost: O(calls that run).
        """
        alive, first = set(self.trace.initial), set[int]()
        runs: list[Run] = []
        for step in steps:
            for call in self._calls(step):
                if call.id not in first:
                    runs.append(self.runs_whole[call.id])
                    first.add(call.id)
                    alive.update(call.outs)
                elif call.pure and not alive.issuperset(call.outs):
                    runs.append(Run(call.id, tuple([v for v in call.outs if v not in alive])))
                    alive.update(call.outs)
                if call.reuse:
                    alive.difference_update(call.reuse.values())
            self._let_go(step, alive)
        return tuple(runs)

    def _calls(self, step: ChainStep) -> Iterable[Call]:
        """What runs in an operation."""
        if step.kind is Kind.LET_GO:
            return ()
        return (self.backward if step.kind is Kind.BACKWARD else self.forward)[step.stage]

    def _let_go(self, step: ChainStep, alive: set[int]) -> None:
        """What is not kept after an operation."""
        if step.kind in (Kind.CHECKPOINT, Kind.NONE):
            alive -= self.saved[step.stage]
        if step.kind in (Kind.NONE, Kind.LET_GO):
            alive.difference_update(self.input[step.stage])
        if step.kind not in (Kind.BACKWARD, Kind.LET_GO):
            alive.difference_update(self.passing[step.stage])


def letting_go(steps: Iterable[ChainStep]) -> Iterator[ChainStep]:
    """The steps, and after each B that its stage's input goes if F_all will make it again.

    Without it the input stays, so that the last calls of the stage before need not run again: less
    time than the literature counts, and more memory.
    """
    whole: set[int] = set()
    for step in steps:
        yield step
        if step.kind is Kind.ALL:
            whole.add(step.stage)
        elif step.kind is not Kind.BACKWARD:
            whole.discard(step.stage)
        elif step.stage - 1 not in whole:
            yield ChainStep(Kind.LET_GO, step.stage)


def fastest_that_fits(
    name: str, question: Question, view: ChainView, choices: Iterable[Sequence[ChainStep]]
) -> Plan:
    """Of some ways to run a chain the one with the least to compute that fits; nothing is
    offloaded. To keep everything is always among them.

    Raises:
        Infeasible: none fits; its minimum is the least of them.
    """
    durations = call_durations_ns(view.trace, question.machine)
    ways = [runs_once(view.trace), *map(Lift(view).runs, choices)]
    ways.sort(key=lambda runs: sum(durations[run.call] for run in runs))
    refusals = list[Infeasible]()
    for runs in ways:
        try:
            least, witness = question.liveness.least_budget(runs)
        except ConfigError:  # they read a parameter that has been updated
            continue
        if least <= question.budget_bytes:
            notes = {**view.notes(), "runs_again": len(runs) - len(view.trace.calls)}
            return plan_of(name, question, Decisions(runs), notes)
        refusals.append(infeasible(name, question.budget_bytes, least, witness))
    raise least_of(refusals)


def _passing(trace: Trace, stage: ChainStage) -> list[int]:
    """What a stage makes and only itself reads: gone when it is through."""
    made = (v for call in stage.forward for v in trace.calls[call].outs)
    kept = set(stage.saved)
    return [v for v in made if v not in kept and trace.uses[v][-1] in stage.forward]
