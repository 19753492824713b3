"""A grade as Gradescope reads it: `results.json`.

Each row of a grade is a test with its score and its reason. Public tests show all that they said;
what has hidden cases shows that it does not hold, and nothing of the case. The leaderboard has what
a submission's data is worth, the ratio to par, never how long its code took. A platform that finds
no file shows the student nothing, so there is one whatever happens: `not_graded` says why there is
no grade. Source: Gradescope, "Autograder Specifications", output format. Read next: `../grade.py`,
whose rows these are; `gradescope.py`, which packs the zip.
"""

from __future__ import annotations

from typing import Any

from ooctrain.course.grade import Grade, Row
from ooctrain.course.isolation import in_words

#: Gradescope cuts what is longer; a student reads the first lines.
MOST_LETTERS = 4000


def results_of(found: Grade) -> dict[str, Any]:
    """The object of results.json."""
    needed = "" if found.passed else f", and {found.pass_points:g} are needed to pass"
    if found.unsafe:
        needed = f"; nobody passes without: {found.unsafe}"
    said = f"{found.points:g} of {found.most_points:g} points{needed}"
    if found.isolation:
        said += f"\nisolation: {in_words(found.isolation)}"
    results: dict[str, Any] = {
        "score": found.points,
        "output": said,
        "output_format": "text",
        "test_output_format": "text",
        "stdout_visibility": "hidden",
        "tests": [_test(number, row) for number, row in enumerate(found.rows, 1)],
    }
    if found.ratio is not None:
        results["leaderboard"] = [
            {"name": "x par", "value": round(found.ratio, 4), "order": "asc"},
            {"name": "points", "value": found.points, "order": "desc"},
        ]
    return results


def not_graded(why: str) -> dict[str, Any]:
    """The object where there is no grade."""
    said = f"There is no grade yet: {why}. This is not your file's fault; tell your teacher."
    return {"score": 0.0, "output": said[:MOST_LETTERS], "stdout_visibility": "hidden", "tests": []}


def _test(number: int, row: Row) -> dict[str, Any]:
    full = row.points == row.most_points
    said = row.details if row.kind == "test" and row.details else row.reason
    said = said if row.public is None else row.public
    return {
        "name": f"{row.kind}: {row.name}",
        "number": str(number),
        "score": round(row.points, 2),
        "max_score": round(row.most_points, 2),
        "status": "passed" if full else "failed",
        "output": said[:MOST_LETTERS],
        "tags": [row.kind],
        "visibility": "visible",
    }
