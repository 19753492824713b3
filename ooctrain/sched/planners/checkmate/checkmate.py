"""checkmate: the least time to compute again on any graph, as a mixed-integer program.

Chains have dynamic programs (`rotor`). On a graph with branches the choice is what runs in which
stage and what is kept into the next, and memory depends on both; `checkmate_program.py` writes that
as linear rows over whole numbers, and branch and bound (HiGHS) solves it. Nothing is offloaded. The
search ends after a number of nodes, not of seconds, so the plan is the same on every machine; the
plan's notes state objective, bound and gap, and what ended it ("time" where the caller's limit did:
only then the plan depends on the machine). `checkmate-lp` solves the relaxation and rounds it in
two phases: what is kept, then what has to run for that.

Source: Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica and Gonzalez, Checkmate: breaking the
memory wall with optimal tensor rematerialization (MLSys 2020). Departures: long
steps are grouped (`checkmate_graph.py`), which costs optimality, as do their narrower choices: only
forward nodes run again, and only in the backward pass; there, and where the search ends before the
optimum, the answer is no worse than the relaxation rounded, `rotor`'s or `dtr`'s plan; the rounding
tries several thresholds and memory allowances, where the paper has one of each. What it cannot: run
a call twice in one stage, change the order of calls, offload. Inputs are fetched once. Read next:
`checkmate_graph.py`, `checkmate_program.py`; `../rotor.py` for chains.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.bounds.linear import WholeSolution
from ooctrain.sched.planners.checkmate.checkmate_graph import (
    RunGraph,
    grouped_calls,
    single_calls,
)
from ooctrain.sched.planners.checkmate.checkmate_program import Freedom, StageProgram
from ooctrain.sched.planners.dtr.dtr import Dtr
from ooctrain.sched.planners.rotor import Rotor
from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import Planner, check_whole_numbers, infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES, Granule, Plan, Run
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace

#: Shares from which on a fraction of a value is kept, and shares of memory that rounding may cost.
THRESHOLDS = (0.25, 0.5, 0.75)
ALLOWANCES = (0.0, 0.1, 0.25)
#: Whose plans stand in where the search ends before the optimum: they offload nothing either.
OTHERS: tuple[Planner, ...] = (Rotor(), Dtr())
#: A search tree has all its nodes up to this many whole columns.
USUAL_COLUMNS = 100


class TimedRuns(NamedTuple):
    """Some runs, and what they take."""

    time_ns: int
    need_bytes: int
    witness: str
    runs: tuple[Run, ...]


class ByStages(ABC):
    """What both planners are: a program over stages, and what becomes of its answer.

    Attributes:
        name, exact, most: of the planner.
    """

    __slots__ = ()
    name: ClassVar[str]
    exact: int
    most: int

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least need among keeping all, dropping all, the
        least of `rotor` and `dtr`, and what `least` finds.
        """
        question = Question(
            trace, budget_bytes, machine, granule, host_budget_bytes, seed, time_limit_s
        )
        step = limited(self.name, trace, granule, self.exact, self.most)
        return _Rematerialising(self.name, question, step, self).plan()

    @abstractmethod
    def least(self, asked: _Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Runs for the least memory that is found."""

    @abstractmethod
    def within(self, asked: _Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Runs for the budget, and what is known of them."""


@dataclass(frozen=True, slots=True)
class Checkmate(ByStages):
    """The program over whole numbers.

    Args:
        nodes: of the search tree at most; in proportion fewer from `USUAL_COLUMNS` on.
        exact: steps of more calls than this are grouped.
        most: more groups than this are refused.

    Cost: a search over (groups^2 / 2) whole columns and as many rows for each reader of a value.
    """

    name: ClassVar[str] = "checkmate"

    nodes: int = 200
    exact: int = 30
    most: int = 150

    def __post_init__(self) -> None:
        limits = {"nodes": self.nodes, "exact": self.exact, "most": self.most}
        check_whole_numbers(self.name, limits)

    def _tree(self, program: StageProgram) -> int:
        """Nodes of the search tree: fewer where each takes longer."""
        whole = max(len(program.run), USUAL_COLUMNS)
        return max(1, self.nodes * USUAL_COLUMNS // whole)

    def least(self, asked: _Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Runs for the least memory that is found."""
        program = asked.program(None)
        found = asked.searched(program, self._tree(program))
        if found.values:
            yield asked.graph.runs(program.chosen(found.values))

    def within(self, asked: _Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Runs for the budget, and what is known of them."""
        program = asked.program(asked.question.budget_bytes)
        found = asked.searched(program, self._tree(program))
        is_bound = found.ended != "infeasible"  # where groups do not fit, single calls may
        bound_us = max(found.bound, 0.0) * program.unit_ns / 1000 if is_bound else None
        notes = {"bound_us": bound_us, "ended": found.ended}
        runs = [asked.graph.runs(program.chosen(found.values))] if found.values else []
        if found.ended != "optimal" or not asked.backward:  # groups have an optimum of their own
            runs += [*roundings_within(asked)[0], *runs_of_others(asked.question)]
        return runs, notes


@dataclass(frozen=True, slots=True)
class CheckmateLp(ByStages):
    """The relaxation of the program, rounded.

    Args:
        exact, most: as `Checkmate`'s.

    Cost: a linear program for each allowance of memory, no search.
    """

    name: ClassVar[str] = "checkmate-lp"

    exact: int = 30
    most: int = 150

    def __post_init__(self) -> None:
        check_whole_numbers(self.name, {"exact": self.exact, "most": self.most})

    def least(self, asked: _Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Roundings of the relaxation for the least memory."""
        yield from roundings(asked, None)[0]

    def within(self, asked: _Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Roundings of the relaxation for the budget and for a little less."""
        found, cost_us = roundings_within(asked)
        bound_us = cost_us if math.isfinite(cost_us) else None
        return [*found, *self.least(asked)], {"bound_us": bound_us, "ended": "rounded"}


def roundings_within(asked: _Rematerialising) -> tuple[list[tuple[Run, ...]], float]:
    """Roundings for the budget and for a little less; and what the relaxation says is the least
    time, in us.
    """
    found: list[tuple[Run, ...]] = []
    bound_us, budget_bytes = math.inf, asked.question.budget_bytes
    for allowance in ALLOWANCES:
        spared = int((budget_bytes - asked.graph.resident_bytes) * allowance)
        rounded, cost_us = roundings(asked, budget_bytes - spared)
        found += rounded
        bound_us = min(bound_us, cost_us)
    return found, bound_us


def roundings(
    asked: _Rematerialising, budget_bytes: int | None
) -> tuple[list[tuple[Run, ...]], float]:
    """Roundings of the relaxation, and its optimum in us."""
    program = asked.program(budget_bytes, whole=False)
    found = asked.searched(program, 1)
    if not found.values:
        return [], math.inf
    chosen = [program.rounded(found.values, threshold) for threshold in THRESHOLDS]
    return [asked.graph.runs(pairs) for pairs in chosen], found.bound * program.unit_ns / 1000


def limited(
    name: str, trace: Trace, granule: Granule, exact: int, most: int
) -> tuple[RunGraph, bool]:
    """(the step as a graph, whether each node is a call: then all may run again).

    Raises:
        ConfigError: it has too many groups.
    """
    liveness = Liveness(trace, granule)
    is_short = len(trace.calls) <= exact
    rows = single_calls(trace) if is_short else grouped_calls(trace, liveness.size)
    if len(rows) > most:
        raise ConfigError(
            f"{name}: the step is too long for a program over all pairs of its calls",
            code="OOC-105",
            numbers=f"{len(trace.calls)} calls in {len(rows)} groups, at most {most}",
            fix=f"prefix or combined; {name}:most={len(rows)}, and much time; or the rewrite fuse",
        )
    return RunGraph(liveness, rows), is_short


class _Rematerialising:
    """One question, and the ways to answer it.

    Attributes:
        graph: the step by nodes.
        deadline: of all programs together.
        cut_short: whether the deadline has ended one of them.
    """

    def __init__(
        self, name: str, question: Question, step: tuple[RunGraph, bool],
        planner: ByStages,
    ):  # fmt: skip
        self.name, self.question, self.planner = name, question, planner
        self.graph, self.backward = step
        self.deadline = Deadline.after(question.time_limit_s)
        self.cut_short = False
        self.liveness = Liveness(question.trace, question.granule)
        self.call_ns = call_durations_ns(question.trace, question.machine)
        calls = question.trace.calls
        self.node_ns = [
            sum(self.call_ns[c] for c in node.calls if calls[c].pure or len(node.calls) == 1)
            for node in self.graph.nodes
        ]

    def program(self, budget_bytes: int | None, *, whole: bool = True) -> StageProgram:
        """The program for a budget, or for the least one, or its relaxation."""
        freedom = Freedom(whole, self.backward)
        return StageProgram(self.graph, self.node_ns, budget_bytes, freedom)

    def searched(self, program: StageProgram, nodes: int) -> WholeSolution:
        """What comes of a program, within a number of nodes and the time that is left."""
        found = program.program.search(nodes, self.deadline.left_s())
        self.cut_short |= found.ended == "time"
        return found

    def plan(self) -> Plan:
        """The fastest way that fits."""
        budget = self.question.budget_bytes
        ways = self._ways(_without_search(self.question))
        if ways[0].need_bytes <= budget:  # nothing is faster than to run each call once
            once_us = ways[0].time_ns / 1000
            return self._answer(ways[0], {"bound_us": once_us, "ended": "optimal"})
        if all(way.need_bytes > budget for way in ways):
            ways += self._ways(self.planner.least(self))
        least = min(ways, key=lambda way: way.need_bytes)
        if least.need_bytes > budget:
            raise infeasible(self.name, budget, least.need_bytes, least.witness)
        found, notes = self.planner.within(self)
        fitting = [w for w in ways + self._ways(found) if w.need_bytes <= budget]
        return self._answer(min(fitting, key=lambda way: way.time_ns), notes)

    def _ways(self, choices: Iterable[Sequence[Run]]) -> list[TimedRuns]:
        """What some runs take; those that cannot be are left out."""
        ways = []
        for runs in choices:
            try:
                need, witness = self.liveness.least_budget(runs)
            except ConfigError:  # they read what has been taken over
                continue
            time_ns = sum(self.call_ns[run.call] for run in runs)
            ways.append(TimedRuns(time_ns, need, witness, tuple(runs)))
        return ways

    def _answer(self, way: TimedRuns, notes: Mapping[str, Any]) -> Plan:
        """The plan, and how far it may be from the best. In groups `bound_us` is that of lists that
        run a group as a whole: one of single calls may be faster, then the gap is below 0.
        """
        objective_us, bound_us = way.time_ns / 1000, notes["bound_us"]
        numbers = {
            "objective_us": objective_us, "groups": len(self.graph.nodes),
            "runs_again": len(way.runs) - len(self.question.trace.calls),
        }  # fmt: skip
        notes = {name: value for name, value in notes.items() if name != "bound_us"}
        if bound_us is not None:
            if self.backward:
                bound_us = min(bound_us, objective_us)  # solvers round
            gap = (objective_us - bound_us) / objective_us if objective_us else 0.0
            numbers |= {"bound_us": bound_us, "gap": gap}
        cut_short = {"cut_short": True} if self.cut_short else {}
        notes = {**notes, **numbers, **cut_short}
        return plan_of(self.name, self.question, Decisions(way.runs), notes)


def _without_search(question: Question) -> Iterator[tuple[Run, ...]]:
    """Each call once, first; all that may be dropped, dropped once, and after each reader; and what
    `rotor` and `dtr` need least for.
    """
    trace = question.trace
    yield runs_once(trace)
    values = droppable(trace)
    yield rematerialise(trace, values)
    yield rematerialise(trace, values, again=values)
    for planner in OTHERS:
        try:
            replace(question, budget_bytes=0, host_budget_bytes=None).put_to(planner)
        except Infeasible as refusal:
            yield from runs_of_others(replace(question, budget_bytes=refusal.minimum_bytes))


def runs_of_others(question: Question) -> Iterator[tuple[Run, ...]]:
    """What `rotor` and `dtr` run, for a search that was cut short."""
    for planner in OTHERS:
        try:
            plan = replace(question, host_budget_bytes=None).put_to(planner)
        except Infeasible:
            continue
        yield tuple(i for i in plan.schedule.instructions if isinstance(i, Run))
