"""A grade: what a submission gets for each law, test and measure of an assignment, and why.

In: a rubric, a submission. Out: a `Grade`. The one idea: a row for everything that counts, each
with its points and, where some are missing, one line that says why; whatever a student's file does,
there is a grade. Source: what Gradescope and Otter get wrong (one failure that hides the rest,
other numbers at home than on the server). Read next: `checks.py`, `measures.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ooctrain.course.checks import LAW, Outcome, run_checks
from ooctrain.course.measures import ask, measured
from ooctrain.course.rubric import BOUND, Measure, Rubric
from ooctrain.units import format_us


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that counts.

    Args:
        kind: "law", "test", "measure", or "file" where it cannot even be loaded.
        name: of it.
        points, most_points: had, and to be had.
        reason: one line; "" where there is nothing to say.
        details: all that was said.
    """

    kind: str
    name: str
    points: float
    most_points: float
    reason: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True)
class Grade:
    """What a submission gets.

    Args:
        submission: as it was named.
        rows: laws first, then tests, then measures.
        pass_points: the least that passes.
    """

    submission: str
    rows: tuple[Row, ...]
    pass_points: float

    @property
    def points(self) -> float:
        """All points."""
        return round(sum(row.points for row in self.rows), 1)

    @property
    def most_points(self) -> float:
        """All that are to be had."""
        return round(sum(row.most_points for row in self.rows), 1)

    @property
    def passed(self) -> bool:
        """Whether they are enough."""
        return self.points >= self.pass_points


def grade(rubric: Rubric, submission: str, seed: int = 0) -> Grade:
    """Grades a submission.

    Args:
        submission: "/path/file.py:Class", or a planner's name.
        seed: of the laws' random cases.
    """
    loaded = ask(submission, rubric.time_limit_s)
    if "error" in loaded:
        row = Row("file", "can be loaded", 0.0, rubric.most_points, loaded["error"])
        return Grade(submission, (row,), rubric.pass_points)
    rows = [*_checked(rubric, submission, seed), *_measured(rubric, submission)]
    return Grade(submission, tuple(rows), rubric.pass_points)


def _checked(rubric: Rubric, submission: str, seed: int) -> Iterator[Row]:
    outcomes = run_checks(rubric, submission, seed)
    laws = [outcome for outcome in outcomes if outcome.function == LAW]
    for outcome in laws:
        name = outcome.name.removeprefix(f"{LAW}[").removesuffix("]").replace("_", " ")
        yield _row("law", name, rubric.laws.points / len(laws), outcome)
    for test, points in rubric.tests.points.items():
        cases = [outcome for outcome in outcomes if outcome.function == test]
        for outcome in cases:
            yield _row("test", outcome.name, points / len(cases), outcome)
        if not cases:
            yield Row("test", test, 0.0, points, f"{rubric.tests.file} has no such test")


def _row(kind: str, name: str, points: float, outcome: Outcome) -> Row:
    reason = outcome.why.splitlines()[0] if outcome.why else ""
    return Row(kind, name, points if outcome.passed else 0.0, points, reason, outcome.why)


def _measured(rubric: Rubric, submission: str) -> Iterator[Row]:
    for measure in rubric.measures:
        found = measured(measure, submission, rubric.time_limit_s)
        name = f"{measure.model}, batch {measure.batch}, {measure.budget}"
        if found.ratio is None or found.makespan_us is None:
            yield Row("measure", name, 0.0, measure.points, found.why)
        else:
            reason = f"{format_us(found.makespan_us)}, {found.ratio:.2f} x {_par_text(measure)}"
            points = measure.points_for(found.ratio)
            yield Row("measure", name, points, measure.points, reason)


def _par_text(measure: Measure) -> str:
    par = "the bound" if measure.par == BOUND else f"the library's {measure.par}"
    return f"{par}; all points up to {measure.full_ratio:g} x"
