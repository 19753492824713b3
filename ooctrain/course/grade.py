"""A grade: what a submission gets for each law, test and measure of an assignment, and why.

A `Grade` has a row for everything that the rubric counts, with its points and, where some are
missing, one line that says why. There is a grade whatever a student's file does. Source: what
Gradescope and Otter get wrong (one failure that hides the rest, other numbers at home than on the
server). Read next: `checks.py`, `measures.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from ooctrain.course.checks import CheckResult, law_test, run_checks
from ooctrain.course.footprints import counted
from ooctrain.course.hunt import BUGS, hunted
from ooctrain.course.measures import measured
from ooctrain.course.par import ParComparison
from ooctrain.course.replays import replayed
from ooctrain.course.rubric import BOUND, SAFETY, Compared, Rubric, name_of, points_for
from ooctrain.course.submitted import introduced
from ooctrain.testing.allocator_laws import LAWS
from ooctrain.units import format_bytes, format_us

HIDDEN = "the case is hidden; with a --seed of your own `ooctrain grade` shows such cases"
#: Kinds of rows that have a ratio to par.
COMPARED = ("measure", "replay", "footprint")


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that counts.

    Args:
        kind: "law", "test", "measure", "replay", "footprint", "bug", or "file" where it cannot even
            be loaded.
        name: of it.
        points, most_points: reached, and possible.
        reason: one line; "" where there is nothing to say.
        details: all that was said.
        ratio: how many times par, where it is compared with par.
        public: the reason without what is hidden of the cases; None: nothing of it is hidden.
        unsafe: it is required, and not kept: no submission passes with it.
    """

    kind: str
    name: str
    points: float
    most_points: float
    reason: str = ""
    details: str = ""
    ratio: float | None = None
    public: str | None = None
    unsafe: bool = False


@dataclass(frozen=True, slots=True)
class Grade:
    """What a submission gets.

    Args:
        submission: as it was named.
        rows: what is required and not kept; then laws, tests, what is measured.
        pass_points: the least that passes.
        isolation: what was in force while its code ran, as in `isolation.IN_WORDS`; empty for a
            name of the library's, whose code needs none.
    """

    submission: str
    rows: tuple[Row, ...]
    pass_points: float
    isolation: tuple[str, ...] = ()

    @property
    def points(self) -> float:
        """All points; where something required is not kept, fewer than are needed to pass."""
        total = sum(row.points for row in self.rows)
        return round(min(total, max(0.0, self.pass_points - 1)) if self.unsafe else total, 1)

    @property
    def unsafe(self) -> str:
        """Names of what is required and not kept, with commas; "" where all of it is."""
        return ", ".join(row.name for row in self.rows if row.unsafe)

    @property
    def most_points(self) -> float:
        """The sum of all possible points."""
        return round(sum(row.most_points for row in self.rows), 1)

    @property
    def ratio(self) -> float | None:
        """The geometric mean of all ratios to par; None where one is missing, or there is none."""
        compared = [row.ratio for row in self.rows if row.kind in COMPARED]
        found = [ratio for ratio in compared if ratio is not None]
        return geometric_mean(found) if found and len(found) == len(compared) else None

    @property
    def passed(self) -> bool:
        """Whether they are enough, and nothing that is required is broken."""
        return self.points >= self.pass_points and not self.unsafe


def grade(rubric: Rubric, submission: str, seed: int = 0) -> Grade:
    """Grades a submission.

    Args:
        submission: "/path/file.py:Class", or a name.
        seed: seed of the laws' random cases.
    """
    known = introduced(submission, rubric.kind, rubric.time_limit_s)
    if known.fault:
        rows = [Row("file", "can be loaded", 0.0, rubric.most_points, known.fault)]
    else:
        rows = [
            *_checked(rubric, submission, seed), *_compared(rubric, submission),
            *_hunted(rubric, submission, seed),
        ]  # fmt: skip
    rows.sort(key=lambda row: not row.unsafe)
    return Grade(submission, tuple(rows), rubric.pass_points, known.isolation)


def _checked(rubric: Rubric, submission: str, seed: int) -> Iterator[Row]:
    outcomes = run_checks(rubric, submission, seed)
    law = law_test(rubric)
    laws = [outcome for outcome in outcomes if outcome.function == law]
    for outcome in laws:
        name = outcome.name.removeprefix(f"{law}[").removesuffix("]").replace("_", " ")
        number = name.rpartition(" ")[2]
        required = {name, number} & {*SAFETY[rubric.kind], *rubric.laws.required}
        if rubric.kind == "allocator" and number in LAWS:
            name = f"{name}: {LAWS[number]}"
        elif name == "law none names it":
            name = "no error that no law names"
        yield _row("law", name, rubric.laws.points / len(laws), outcome, hidden=True,
                   required=bool(required))  # fmt: skip
    for test, points in rubric.tests.points.items():
        cases = [outcome for outcome in outcomes if outcome.function == test]
        for outcome in cases:
            yield _row(
                "test", outcome.name, points / len(cases), outcome,
                hidden=test in rubric.tests.hidden, required=test in rubric.tests.required,
            )  # fmt: skip
        if not cases:
            yield Row("test", test, 0.0, points, f"{rubric.tests.file} has no such test")


def _row(
    kind: str, name: str, points: float, outcome: CheckResult, *, hidden: bool, required: bool
) -> Row:
    reason = outcome.why.splitlines()[0] if outcome.why else ""
    return Row(
        kind, name, points if outcome.passed else 0.0, points, reason, outcome.why,
        public=f"{name}: {HIDDEN}" if hidden and outcome.of_case and reason else None,
        unsafe=required and not outcome.passed,
    )  # fmt: skip


def _compared(rubric: Rubric, submission: str) -> Iterator[Row]:
    for measure in rubric.measures:
        taken = measured(measure, submission, rubric.time_limit_s)
        yield _compared_row("measure", measure, taken, format_us)
    for part in rubric.replays:
        taken = replayed(part, submission, rubric.time_limit_s)
        yield _compared_row("replay", part, taken, format_bytes)
    for share in rubric.footprints:
        taken = counted(share, submission, rubric.time_limit_s)
        in_words = format_bytes if share.counts == "peak" else _in_rows
        yield _compared_row("footprint", share, taken, in_words)


def _hunted(rubric: Rubric, submission: str, seed: int) -> Iterator[Row]:
    for hunt in rubric.hunts:
        most = hunt.points / len(BUGS)
        for found in hunted(hunt, submission, rubric.time_limit_s, seed):
            points = most * found.killed / found.draws
            killed = f"{found.killed} of {found.draws} killed"
            reason = f"{killed}; {found.why}" if found.why else ""
            public = f"a false alarm: {HIDDEN}" if found.false_alarm else f"{killed}; {HIDDEN}"
            yield Row("bug", found.bug, points, most, reason, public=public if reason else None)


def _compared_row(
    kind: str, part: Compared, found: ParComparison, in_words: Callable[[Any], str]
) -> Row:
    name = name_of(part)
    if found.ratio is None:
        return Row(kind, name, 0.0, part.points, found.why, unsafe=found.unsafe)
    par = "the bound" if part.par == BOUND else f"the library's {part.par}"
    needed = f"{in_words(found.needed)}, {found.ratio:.2f} x {par}"
    reason = f"{needed}; all points up to {part.full_ratio:g} x"
    points = points_for(part, found.ratio)
    return Row(kind, name, points, part.points, reason, ratio=found.ratio)


def _in_rows(work: float) -> str:
    return f"{work:.2f} x the untiled work"
