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
optimum, the answer is no worse than the relaxation rounded; the rounding tries several thresholds
and memory allowances, where the paper has one of each. What its lists cannot: run a call twice in
one stage, change the order of calls, offload, fetch an input twice. Lists of other planners can,
and some are faster: so those of `rotor`, `dtr`, `prefix` and `combined` take part, made as if the
host had room for the inputs alone, and the note `from` says whose it is (`beside.py`;
`checkmate:combined=false` leaves out the last two, which search, too). Read next:
`by_stages.py`, `checkmate_graph.py`, `checkmate_program.py`, `beside.py`; `../rotor.py` for chains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ooctrain.sched.planners.checkmate.beside import ALONE, Companions
from ooctrain.sched.planners.checkmate.by_stages import ByStages, Rematerialising
from ooctrain.sched.planners.checkmate.checkmate_program import StageProgram
from ooctrain.sched.planning.effort import check_evaluations
from ooctrain.sched.planning.parameters import check_whole_numbers
from ooctrain.sched.schedule import Run
from ooctrain.step.trace import Trace

#: Shares from which on a fraction of a value is kept, and shares of memory that rounding may cost.
THRESHOLDS = (0.25, 0.5, 0.75)
ALLOWANCES = (0.0, 0.1, 0.25)
#: A search tree has all its nodes up to this many whole columns.
USUAL_COLUMNS = 100


@dataclass(frozen=True, slots=True)
class Checkmate(ByStages):
    """The program over whole numbers.

    Args:
        nodes: of the search tree at most; in proportion fewer from `USUAL_COLUMNS` on.
        exact: steps of more calls than this are grouped.
        most: more groups than this are refused.
        companions: whose lists take part.

    Cost: a search over (groups^2 / 2) whole columns and as many rows for each reader of a value;
    that of the others, for a few budgets more where nothing else fits.
    """

    name: ClassVar[str] = "checkmate"

    nodes: int = 200
    exact: int = 30
    most: int = 150
    companions: Companions = ALONE

    def __post_init__(self) -> None:
        limits = {"nodes": self.nodes, "exact": self.exact, "most": self.most}
        check_whole_numbers(self.name, limits)
        check_evaluations(self.name, self.companions.evaluations)

    def with_evaluations(self, evaluations: int) -> Checkmate:
        """See `SearchingPlanner`."""
        if self.companions.evaluations is not None:
            return self
        return replace(self, companions=replace(self.companions, evaluations=evaluations))

    def offered(self, steps: Mapping[str, Trace]) -> Checkmate:
        """See `OfferedPlanner`. The program is of the step as it is; companions may take a form."""
        return replace(self, companions=self.companions.offered(steps))

    def beside(self) -> Companions:
        """Whose lists take part."""
        return self.companions

    def _tree(self, program: StageProgram) -> int:
        """Nodes of the search tree: fewer where each takes longer."""
        whole = max(len(program.run), USUAL_COLUMNS)
        return max(1, self.nodes * USUAL_COLUMNS // whole)

    def least(self, asked: Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Runs for the least memory that is found."""
        program = asked.program(None)
        found = asked.searched(program, self._tree(program))
        if found.values:
            yield asked.graph.runs(program.chosen(found.values))

    def within(self, asked: Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Runs for the budget, and what is known of them."""
        program = asked.program(asked.question.budget_bytes)
        found = asked.searched(program, self._tree(program))
        is_bound = found.ended != "infeasible"  # where groups do not fit, single calls may
        bound_us = asked.at_least_once_us(found.bound * program.unit_ns / 1000)
        notes = {"bound_us": bound_us if is_bound else None, "ended": found.ended}
        runs = [asked.graph.runs(program.chosen(found.values))] if found.values else []
        if found.ended != "optimal":
            runs += roundings_within(asked)[0]
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

    def beside(self) -> Companions:
        """Nobody's: it is rounding that one wants to see."""
        return Companions()

    def least(self, asked: Rematerialising) -> Iterator[tuple[Run, ...]]:
        """Roundings of the relaxation for the least memory."""
        yield from roundings(asked, None)[0]

    def within(self, asked: Rematerialising) -> tuple[list[tuple[Run, ...]], Mapping[str, Any]]:
        """Roundings of the relaxation for the budget and for a little less."""
        found, cost_us = roundings_within(asked)
        bound_us = asked.at_least_once_us(cost_us) if math.isfinite(cost_us) else None
        return [*found, *self.least(asked)], {"bound_us": bound_us, "ended": "rounded"}


def roundings_within(asked: Rematerialising) -> tuple[list[tuple[Run, ...]], float]:
    """Roundings for the budget and for a little less; and what the relaxation says is the least
    time, in us.
    """
    found: list[tuple[Run, ...]] = []
    bound_us, budget_bytes = math.inf, asked.question.budget_bytes
    for allowance in ALLOWANCES:
        if asked.is_over():
            break
        spared = int((budget_bytes - asked.graph.resident_bytes) * allowance)
        rounded, cost_us = roundings(asked, budget_bytes - spared)
        found += rounded
        bound_us = min(bound_us, cost_us)
    return found, bound_us


def roundings(
    asked: Rematerialising, budget_bytes: int | None
) -> tuple[list[tuple[Run, ...]], float]:
    """Roundings of the relaxation, and its optimum in us."""
    program = asked.program(budget_bytes, whole=False)
    found = asked.searched(program, 1)
    if not found.values:
        return [], math.inf
    chosen = [program.rounded(found.values, threshold) for threshold in THRESHOLDS]
    return [asked.graph.runs(pairs) for pairs in chosen], found.bound * program.unit_ns / 1000
