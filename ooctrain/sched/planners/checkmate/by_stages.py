"""What both planners over stages share: a question, and the ways to answer it.

`ByStages` is what each planner is: runs for the budget, runs for the least memory, and whose lists
take part. `Rematerialising` is one question to it. Each call once comes first; then all dropped,
the least of `rotor` and `dtr`, and what the planner finds. The fastest list that fits becomes the
plan; lists of other planners are compared with it (`beside.py`), and the notes say how far its
computing may be from the least. Read next: `checkmate.py`, the two planners;
`checkmate_graph.py`, `beside.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from ooctrain.errors import ConfigError
from ooctrain.sched.bounds.closed import arrivals_us
from ooctrain.sched.bounds.linear import WholeSolution
from ooctrain.sched.planners.checkmate.beside import (
    SIMPLE,
    Companions,
    least_plans,
    plans_of,
    runs_for_least,
)
from ooctrain.sched.planners.checkmate.checkmate_graph import (
    RunGraph,
    grouped_calls,
    single_calls,
)
from ooctrain.sched.planners.checkmate.checkmate_program import Freedom, StageProgram
from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import check_host, infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES, Granule, Plan, Run
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace

#: Of a time limit: what is kept for others that search.
KEPT = 0.5
#: By what share of it a solver's optimum may be above the true one.
ROUNDING = 1e-6


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
        least of `rotor` and `dtr`, what `least` finds, and `least_plans` of companions.
        """
        question = Question(
            trace, budget_bytes, machine, granule, host_budget_bytes, seed, time_limit_s,
            self.beside().evaluations,
        )  # fmt: skip
        step = limited(self.name, trace, granule, self.exact, self.most)
        return Rematerialising(self.name, question, step, self).plan()

    @abstractmethod
    def beside(self) -> Companions:
        """Whose lists take part."""

    @abstractmethod
    def least(self, asked: Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Runs for the least memory that is found."""

    @abstractmethod
    def within(self, asked: Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Runs for the budget, and what is known of them."""


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


class Rematerialising:
    """One question, and the ways to answer it.

    Attributes:
        graph: the step by nodes.
        search_too: whether others that search take part.
        deadline: of all; that of the programs is earlier, if others search, too.
        cut_short: whether a deadline has ended one of them.
    """

    def __init__(
        self, name: str, question: Question, step: tuple[RunGraph, bool],
        planner: ByStages,
    ):  # fmt: skip
        self.name, self.question, self.planner = name, question, planner
        self.graph, self.backward = step
        self.deadline = self._programs = Deadline.after(question.time_limit_s)
        self.search_too = bool(planner.beside().for_least)
        if self.search_too:
            self._programs = self.deadline.earlier(KEPT * (question.time_limit_s or 0.0))
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
        found = program.program.search(nodes, self._programs.left_s())
        self.cut_short |= found.ended == "time"
        return found

    def is_over(self) -> bool:
        """Whether the time for programs is over; the plan says so if it is."""
        passed = self._programs.passed()
        self.cut_short |= passed
        return passed

    def at_least_once_us(self, bound_us: float) -> float:
        """A bound, or what it takes to run each call once, which is one too."""
        return max(bound_us, sum(self.call_ns) / 1000)

    def plan(self) -> Plan:
        """The fastest plan that fits: of the program, or of the others."""
        question, companions = self.question, self.planner.beside()
        budget, lists = question.budget_bytes, list[Plan]()
        ways = self._ways(_without_search(question))
        if all(way.need_bytes > budget for way in ways):
            ways += self._ways(self.planner.least(self))
        if all(way.need_bytes > budget for way in ways):
            least = min(ways, key=lambda way: way.need_bytes)
            if self.search_too:
                asked = companions.for_least
                lists = least_plans(asked, question, least.need_bytes, self.deadline)
            needs = [(least.need_bytes, least.witness), *((p.peak_bytes, "") for p in lists)]
            least_bytes, witness = min(needs)
            if least_bytes > budget:
                raise infeasible(self.name, budget, least_bytes, witness)
        best, notes = self._own(ways)
        plans = [] if best is None else [best]
        if best is None or best.makespan_us > arrivals_us(question.trace, question.machine):
            plans += [plan for plan in lists if plan.peak_bytes <= budget]
            asked = companions.planners
            known, self.cut_short = plans_of(asked, question, self.deadline, self.cut_short)
            plans += known
        fastest = min(plans, key=lambda plan: plan.makespan_us)
        check_host(self.name, fastest, question.host_budget_bytes)
        return self._noted(fastest, notes)

    def _own(self, ways: Sequence[TimedRuns]) -> tuple[Plan | None, Mapping[str, Any]]:
        """The plan of what computes least, of these and of what the program finds; and what is
        known of all that the program allows.
        """
        budget = self.question.budget_bytes
        if ways[0].need_bytes <= budget:  # nothing computes less than to run each call once
            found = list[tuple[Run, ...]]()
            notes: Mapping[str, Any] = {"bound_us": ways[0].time_ns / 1000, "ended": "optimal"}
        else:
            found, notes = self.planner.within(self)
        fitting = [w for w in [*ways, *self._ways(found)] if w.need_bytes <= budget]
        if not fitting:
            return None, notes
        decisions = Decisions(min(fitting, key=lambda way: way.time_ns).runs)
        return plan_of(self.name, self.question, decisions), notes

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

    def _noted(self, plan: Plan, notes: Mapping[str, Any]) -> Plan:
        """The plan, and how far its computing may be from the least of what the program allows:
        where calls are grouped, of lists that run a group as a whole. A list of another kind, or of
        another form of the step, may compute less; then the gap is below 0.
        """
        runs = [i.call for i in plan.schedule.instructions if isinstance(i, Run)]
        call_ns = call_durations_ns(plan.trace, self.question.machine)
        objective_us, bound_us = sum(map(call_ns.__getitem__, runs)) / 1000, notes["bound_us"]
        numbers = {
            "objective_us": objective_us, "groups": len(self.graph.nodes),
            "runs_again": len(runs) - len(plan.trace.calls),
        }  # fmt: skip
        if bound_us is not None:
            if objective_us < bound_us <= objective_us * (1 + ROUNDING):  # solvers round
                bound_us = objective_us
            gap = (objective_us - bound_us) / objective_us if objective_us else 0.0
            numbers |= {"bound_us": bound_us, "gap": gap}
        whose = {"from": plan.notes["from"]} if "from" in plan.notes else {}
        cut_short = {"cut_short": True} if self.cut_short else {}
        return replace(plan, notes={"ended": notes["ended"], **whose, **numbers, **cut_short})


def _without_search(question: Question) -> Iterator[tuple[Run, ...]]:
    """Each call once, first; all that may be dropped, dropped once, and after each reader; and what
    `rotor` and `dtr` need least for.
    """
    trace = question.trace
    yield runs_once(trace)
    values = droppable(trace)
    yield rematerialise(trace, values)
    yield rematerialise(trace, values, again=values)
    yield from runs_for_least(SIMPLE, question)
