"""Recomputation on a chain: what chain planners write, and how it becomes runs of the trace.

In: chain operations, in order. Out: `Run`s. The one idea: literature on chains knows four
operations. F_all runs a stage and keeps all that its backward needs; F_ck runs it for its output
and keeps its input as a checkpoint; F_none does the same and lets the input go; B runs the backward
of a stage whose F_all was the last of it to run. Everything else follows: what is kept is what a
later operation reads before it is made again. A fifth one, D, lets a stage's input go although it
would be read again. Source: Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, Optimal
checkpointing for heterogeneous chains (rotor), section 3. Departure: calls that are not pure
(running statistics) run the first time only. Read next: `chen.py`, `rotor.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ooctrain.cost import Machine, call_durations_ns
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.base import check_host, infeasible
from ooctrain.sched.chain_view import ChainView, Stage
from ooctrain.sched.decisions import Decisions, lives, runs_once
from ooctrain.sched.profile import least_in_core
from ooctrain.sched.recompute import plan_of
from ooctrain.sched.schedule import Granule, Plan, Run


class Kind(Enum):
    """What is done with a stage."""

    ALL = "F_all"
    CHECKPOINT = "F_ck"
    NONE = "F_none"
    BACKWARD = "B"
    LET_GO = "D"


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on one stage."""

    kind: Kind
    stage: int


def lift(view: ChainView, steps: Iterable[Step]) -> tuple[Run, ...]:
    """The runs of a trace that some steps on its chain mean.

    Args:
        view: the trace as a chain.
        steps: such that every B finds what it needs.

    Cost: O(calls that run).
    """
    trace, alive, first = view.trace, set(view.trace.initial), set[int]()
    runs: list[Run] = []
    for step in steps:
        stage = view.stages[step.stage]
        for call_id in _calls(stage, step.kind):
            call = trace.calls[call_id]
            if call_id not in first:
                runs.append(Run(call_id))
                first.add(call_id)
                alive.update(call.outs)
            elif call.pure and not alive.issuperset(call.outs):
                runs.append(Run(call_id, tuple(v for v in call.outs if v not in alive)))
                alive.update(call.outs)
            alive.difference_update(call.reuse.values())
        if step.kind in (Kind.CHECKPOINT, Kind.NONE):
            alive.difference_update(v for v in stage.saved if v != stage.output)
        if step.kind in (Kind.NONE, Kind.LET_GO):
            alive.difference_update(_input_of(view, step.stage))
        if step.kind not in (Kind.BACKWARD, Kind.LET_GO):
            alive.difference_update(_passing(view, step.stage))
    return tuple(runs)


def letting_go(steps: Iterable[Step]) -> Iterator[Step]:
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
            yield Step(Kind.LET_GO, step.stage)


def fastest_that_fits(
    name: str, view: ChainView, choices: Iterable[Sequence[Step]], budget_bytes: int,
    machine: Machine, granule: Granule, host_budget_bytes: int | None,
) -> Plan:  # fmt: skip
    """Of some ways to run a chain the one with the least to compute that fits; nothing is
    offloaded. To keep everything is always among them.

    Raises:
        Infeasible: none fits; its minimum is the least of them.
    """
    durations = call_durations_ns(view.trace, machine)
    ways = [runs_once(view.trace), *(lift(view, steps) for steps in choices)]
    ways.sort(key=lambda runs: sum(durations[run.call] for run in runs))
    refusals: list[Infeasible] = []
    for runs in ways:
        try:
            least, witness = least_in_core(view.trace, runs, granule)
        except ConfigError:  # they read a parameter that has been updated
            continue
        if least <= budget_bytes:
            notes = {"stages": len(view), "runs_again": len(runs) - len(view.trace.calls)}
            plan = plan_of(Decisions(runs), view.trace, budget_bytes, machine, granule, notes)
            check_host(name, plan, host_budget_bytes)
            return plan
        refusals.append(infeasible(name, budget_bytes, least, witness))
    raise min(refusals, key=lambda refusal: refusal.minimum_bytes)


def is_possible(view: ChainView, runs: tuple[Run, ...]) -> bool:
    """Whether no run reads what is gone for good: a parameter that has been updated."""
    try:
        lives(view.trace, runs)
    except ConfigError:
        return False
    return True


def _calls(stage: Stage, kind: Kind) -> Iterable[int]:
    """What runs in an operation."""
    if kind is Kind.LET_GO:
        return ()
    return stage.backward if kind is Kind.BACKWARD else stage.forward


def _input_of(view: ChainView, stage: int) -> Iterable[int]:
    """What crosses into a stage; the chain's own input stays."""
    output = view.stages[stage - 1].output if stage else None
    return () if output is None else (output,)


def _passing(view: ChainView, stage: int) -> Iterable[int]:
    """What a stage makes and only itself reads: gone when it is through."""
    calls, kept = view.stages[stage].forward, set(view.stages[stage].saved)
    made = (v for call in calls for v in view.trace.calls[call].outs)
    return [v for v in made if v not in kept and view.trace.uses[v][-1] in calls]
