"""A linear program, written row by row, and HiGHS to solve it.

A program has columns with bounds and costs, and rows with bounds; the solver returns the optimum
from both sides. Columns may have to be whole numbers: then branch and bound searches for them, up
to a number of nodes, so that the result does not depend on how busy the machine is. Rows are
collected in the sparse form that the solver takes, so the author of a program writes only its
inequalities. HiGHS (Huangfu and Hall 2018) is loaded when a program is solved. Read next:
`lp_bound.py`; `sched/planners/checkmate.py`, for one with whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Term = tuple[int, float]  # (column, coefficient)
INFINITE = float("inf")
#: HiGHS's searches for solutions that have a switch of their own.
GUESSES = (
    "mip_heuristic_run_rins", "mip_heuristic_run_rens", "mip_heuristic_run_root_reduced_cost"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LpSolution:
    """An optimum: the objective values of the primal and of the dual program.

    The optimum lies between them, rounding aside.

    Attributes:
        prices: for each row, by how much the optimum grows with its bound.
    """

    primal: float
    dual: float
    prices: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WholeSolution:
    """The best that a search for whole numbers found.

    Attributes:
        values: one for each column; empty where none were found.
        objective: their cost; infinite where it found none.
        bound: no solution costs less.
        ended: "optimal", "infeasible", "nodes" or "time": what ended the search.
    """

    values: tuple[float, ...]
    objective: float
    bound: float
    ended: str

    @property
    def gap(self) -> float:
        """How far the bound is below the objective, as a share of it."""
        if not self.values:
            return INFINITE
        return max(0.0, self.objective - self.bound) / max(abs(self.objective), 1e-12)


@dataclass(slots=True)
class LinearProgram:
    """Minimise costs over columns >= 0, subject to rows."""

    costs: list[float] = field(default_factory=list)
    uppers: list[float] = field(default_factory=list)
    lowers: list[float] = field(default_factory=list)
    row_lowers: list[float] = field(default_factory=list)
    row_uppers: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    whole: set[int] = field(default_factory=set)

    def column(
        self, *, cost: float = 0.0, upper: float = INFINITE, lower: float = 0.0, whole: bool = False
    ) -> int:
        """A new column; returns its number. A `whole` one takes whole numbers only."""
        if whole:
            self.whole.add(len(self.costs))
        self.costs.append(cost)
        self.uppers.append(upper)
        self.lowers.append(lower)
        return len(self.costs) - 1

    def at_most(self, terms: Iterable[Term], bound: float = 0.0) -> None:
        """A row: the sum of the terms is at most `bound`."""
        self._row(terms, -INFINITE, bound)

    def equal(self, terms: Iterable[Term], value: float = 0.0) -> None:
        """A row: the sum of the terms is `value`."""
        self._row(terms, value, value)

    def _row(self, terms: Iterable[Term], lower: float, upper: float) -> None:
        merged: dict[int, float] = {}
        for column, coefficient in terms:
            merged[column] = merged.get(column, 0.0) + coefficient
        self.starts.append(len(self.indices))
        self.indices += merged.keys()
        self.values += merged.values()
        self.row_lowers.append(lower)
        self.row_uppers.append(upper)

    def solve(self) -> LpSolution | None:
        """The optimum, whole numbers or not; None where no columns satisfy all rows."""
        highspy, solver = self._run({})
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        prices = tuple(solver.getSolution().row_dual)
        return LpSolution(solver.getInfo().objective_function_value, self._dual(solver), prices)

    def search(
        self, nodes: int, time_limit_s: float | None = None, *, guess: bool = True
    ) -> WholeSolution:
        """The best whole numbers that branch and bound finds.

        Without whole columns this is the optimum itself, with the values of its columns.

        Args:
            nodes: most nodes of the search tree.
            time_limit_s: ends it before; then the result depends on the machine.
            guess: whether it looks for good solutions by heuristics, too; False: all work goes to
                the bound.
        """
        limits: dict[str, float] = {"mip_max_nodes": nodes, "mip_rel_gap": 0.0}
        if not guess:
            limits |= {"mip_heuristic_effort": 0.0, "mip_allow_restart": False}
            limits |= dict.fromkeys(GUESSES, False)
        if time_limit_s is not None:
            limits["time_limit"] = time_limit_s
        highspy, solver = self._run(limits)
        info, status = solver.getInfo(), solver.getModelStatus()
        names = highspy.HighsModelStatus
        ended = {names.kOptimal: "optimal", names.kInfeasible: "infeasible"}.get(
            status, "time" if status == names.kTimeLimit else "nodes"
        )
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        values = tuple(solver.getSolution().col_value) if found else ()
        objective = info.objective_function_value if found else INFINITE
        bound = info.mip_dual_bound if self.whole else objective
        return WholeSolution(values, objective, bound, ended)

    def _run(self, limits: Mapping[str, float]) -> tuple[Any, Any]:
        """(highspy, the solver after its work)."""
        import highspy  # late: it takes long to load, and most planning solves no program

        solver = _silent_solver(highspy)
        solver.setOptionValue("threads", 1)
        for name, value in limits.items():
            solver.setOptionValue(name, value)
        solver.passModel(self._as_highs(highspy))
        if limits and self.whole:
            kinds = [highspy.HighsVarType.kInteger] * len(self.whole)
            columns = np.array(sorted(self.whole), np.int32)
            solver.changeColsIntegrality(len(columns), columns, np.array(kinds))
        solver.run()
        return highspy, solver

    def _as_highs(self, highspy: Any) -> Any:
        """The program in the solver's form: columns, rows, and the matrix row by row."""
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(self.costs), len(self.row_lowers)
        program.col_cost_ = np.array(self.costs)
        program.col_lower_, program.col_upper_ = np.array(self.lowers), np.array(self.uppers)
        program.row_lower_ = np.array(self.row_lowers)
        program.row_upper_ = np.array(self.row_uppers)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.array([*self.starts, len(self.indices)])
        program.a_matrix_.index_ = np.array(self.indices)
        program.a_matrix_.value_ = np.array(self.values)
        return program

    def _dual(self, solver: object) -> float:
        """The dual objective: the bound that the multipliers of rows and columns prove."""
        solution = solver.getSolution()  # type: ignore[attr-defined]
        rows, columns = np.array(solution.row_dual), np.array(solution.col_dual)
        total = _proved(rows, np.array(self.row_lowers), np.array(self.row_uppers))
        return total + _proved(columns, np.array(self.lowers), np.array(self.uppers))


def _silent_solver(highspy: Any) -> Any:
    """A solver that prints nothing.

    Version 1.16 prints its banner on standard output while the constructor enables callbacks, which
    is before a caller can call `silent`.
    """

    class SilentSolver(highspy.Highs):
        def enableCallbacks(self) -> None:
            self.silent()
            super().enableCallbacks()

    solver = SilentSolver()
    solver.silent()
    return solver


def _proved(multipliers: np.ndarray, lowers: np.ndarray, uppers: np.ndarray) -> float:
    """Sum of multiplier times bound: a positive one belongs to the lower, a negative to the upper.

    Multipliers of infinite bounds are rounding errors of zero, and left out.
    """
    bounds = np.where(multipliers > 0, lowers, uppers)
    finite = np.isfinite(bounds)
    return float((multipliers[finite] * bounds[finite]).sum())
