"""checkmate: the least time to compute again on any graph, as a mixed-integer program.

Chains have dynamic programs (`rotor`). On a graph with branches the choice is what runs in which
stage and what is kept into the next, and memory depends on both; `checkmate_program.py` writes that
as linear rows over whole numbers, and branch and bound (HiGHS) solves it. Nothing is offloaded. The
search ends after a number of nodes, not of seconds, so the plan is the same on every machine; the
plan's notes state objective, bound and gap. `checkmate-lp` solves the relaxation and rounds it in
two phases: what is kept, then what has to run for that.

Source: Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica and Gonzalez, Checkmate: breaking the
memory wall with optimal tensor rematerialization (MLSys 2020). Departures: the answer is never
worse than keeping all values or dropping all, which are tried besides; long steps are grouped
(`checkmate_graph.py`), and then only forward nodes run again, in the backward pass; the rounding
tries several thresholds and memory allowances, where the paper has one of each. What it cannot: run
a call twice in one stage, change the order of calls, offload. Inputs are fetched once. Read next:
`checkmate_graph.py`, `checkmate_program.py`; `rotor.py` for chains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ooctrain.errors import ConfigError
from ooctrain.sched.planners.checkmate.checkmate_graph import (
    RunGraph,
    grouped_calls,
    single_calls,
)
from ooctrain.sched.planners.checkmate.checkmate_program import Freedom, StageProgram
from ooctrain.sched.planning.decisions import Decisions, runs_once
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import check_whole_numbers, infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.schedule import BYTES, Granule, Plan, Run
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace

#: Shares from which on a fraction of a value is kept, and shares of memory that rounding may cost.
THRESHOLDS = (0.25, 0.5, 0.75)
ALLOWANCES = (0.0, 0.1, 0.25)


class Way(NamedTuple):
    """Some runs, and what they take."""

    time_ns: int
    need_bytes: int
    witness: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Checkmate:
    """The program over whole numbers.

    Args:
        nodes: of the search tree at most.
        exact: steps of more calls than this are grouped.
        most: more groups than this are refused.

    Cost: a search over (groups^2 / 2) whole columns and as many rows for each reader of a value.
    """

    name = "checkmate"

    nodes: int = 200
    exact: int = 30
    most: int = 150

    def __post_init__(self) -> None:
        limits = {"nodes": self.nodes, "exact": self.exact, "most": self.most}
        check_whole_numbers(self.name, limits)

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least need among keeping all, dropping all, and what
        the same program finds for the least memory.
        """
        question = Question(
            trace, budget_bytes, machine, granule, host_budget_bytes, seed, time_limit_s
        )
        step = limited(self.name, trace, granule, self.exact, self.most)
        return _Rematerialising(self.name, question, step, self).plan()

    def least(self, asked: _Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Runs for the least memory that is found."""
        program = asked.program(None)
        found = program.program.search(self.nodes, asked.question.time_limit_s)
        if found.values:
            yield asked.graph.runs(program.chosen(found.values))

    def within(self, asked: _Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Runs for the budget, and what is known of them."""
        program = asked.program(asked.question.budget_bytes)
        found = program.program.search(self.nodes, asked.question.time_limit_s)
        notes = {
            "bound_us": max(found.bound, 0.0) * program.unit_ns / 1000, "ended": found.ended,
        }  # fmt: skip
        runs = [asked.graph.runs(program.chosen(found.values))] if found.values else []
        return runs, notes


@dataclass(frozen=True, slots=True)
class CheckmateLp:
    """The relaxation of the program, rounded.

    Args:
        exact, most: as `Checkmate`'s.

    Cost: a linear program for each allowance of memory, no search.
    """

    name = "checkmate-lp"

    exact: int = 30
    most: int = 150

    def __post_init__(self) -> None:
        check_whole_numbers(self.name, {"exact": self.exact, "most": self.most})

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least need among keeping all, dropping all, and the
        roundings of the relaxation for the least memory.
        """
        question = Question(
            trace, budget_bytes, machine, granule, host_budget_bytes, seed, time_limit_s
        )
        graph, freedom = limited(self.name, trace, granule, self.exact, self.most)
        relaxed = graph, Freedom(whole=False, backward=freedom.backward)
        return _Rematerialising(self.name, question, relaxed, self).plan()

    def least(self, asked: _Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Roundings of the relaxation for the least memory."""
        yield from self._roundings(asked, None)[0]

    def within(self, asked: _Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Roundings of the relaxation for the budget and for a little less."""
        found, bound_us = list(self.least(asked)), math.inf
        for allowance in ALLOWANCES:
            left = asked.question.budget_bytes - asked.graph.resident_bytes
            budget = asked.question.budget_bytes - int(left * allowance)
            roundings, cost_us = self._roundings(asked, budget)
            found += roundings
            bound_us = min(bound_us, cost_us)
        return found, {"bound_us": bound_us, "ended": "rounded"}

    def _roundings(
        self, asked: _Rematerialising, budget_bytes: int | None
    ) -> tuple[list[tuple[Run, ...]], float]:
        program = asked.program(budget_bytes)
        found = program.program.search(1, asked.question.time_limit_s)
        if not found.values:
            return [], math.inf
        chosen = [program.rounded(found.values, threshold) for threshold in THRESHOLDS]
        return [asked.graph.runs(pairs) for pairs in chosen], found.bound * program.unit_ns / 1000


def limited(
    name: str, trace: Trace, granule: Granule, exact: int, most: int
) -> tuple[RunGraph, Freedom]:
    """The step as a graph, by calls or grouped.

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
    return RunGraph(liveness, rows), Freedom(backward=is_short)


class _Rematerialising:
    """One question, and the ways to answer it.

    Attributes:
        graph: the step by nodes.
    """

    def __init__(
        self, name: str, question: Question, step: tuple[RunGraph, Freedom],
        planner: Checkmate | CheckmateLp,
    ):  # fmt: skip
        self.name, self.question, self.planner = name, question, planner
        self.graph, self.freedom = step
        self.liveness = Liveness(question.trace, question.granule)
        self.call_ns = call_durations_ns(question.trace, question.machine)
        calls = question.trace.calls
        self.node_ns = [
            sum(self.call_ns[c] for c in node.calls if calls[c].pure or len(node.calls) == 1)
            for node in self.graph.nodes
        ]

    def program(self, budget_bytes: int | None) -> StageProgram:
        """The program for a budget, or for the least one."""
        return StageProgram(self.graph, self.node_ns, budget_bytes, self.freedom)

    def plan(self) -> Plan:
        """The fastest way that fits."""
        trace, budget = self.question.trace, self.question.budget_bytes
        ways = self._ways(_without_search(trace))
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

    def _ways(self, choices: Iterable[Sequence[Run]]) -> list[Way]:
        """What some runs take; those that cannot be are left out."""
        ways = []
        for runs in choices:
            try:
                need, witness = self.liveness.least_budget(runs)
            except ConfigError:  # they read what has been taken over
                continue
            time_ns = sum(self.call_ns[run.call] for run in runs)
            ways.append(Way(time_ns, need, witness, tuple(runs)))
        return ways

    def _answer(self, way: Way, notes: Mapping[str, Any]) -> Plan:
        objective_us = way.time_ns / 1000
        bound_us = min(notes["bound_us"], objective_us)
        numbers = {
            "objective_us": objective_us, "bound_us": bound_us,
            "gap": (objective_us - bound_us) / objective_us if objective_us else 0.0,
            "groups": len(self.graph.nodes),
            "runs_again": len(way.runs) - len(self.question.trace.calls),
        }  # fmt: skip
        return plan_of(self.name, self.question, Decisions(way.runs), {**notes, **numbers})


def _without_search(trace: Trace) -> Iterator[tuple[Run, ...]]:
    """Each call once, first; then all that may be dropped, dropped once, and after each reader."""
    yield runs_once(trace)
    values = droppable(trace)
    yield rematerialise(trace, values)
    yield rematerialise(trace, values, again=values)
