"""The same grader for courses on notebooks: Otter-Grader and nbgrader.

Both platforms run a cell of a notebook, or a test function, and count points. So the wrapper is
small: the student's cell writes the file, and each graded part fetches the points of that part,
which `part_points` takes from one grade. nbgrader takes a number below a cell's maximum as partial
credit. Otter's test cases have all of their points or none, so a part is cut into fifths. On either
platform the notebook itself runs without a cage and could read the seed; the submission's file runs
in the cage as always. Where that matters, `ooctrain grade` over the collected files is the safe
way. Sources: nbgrader, "Autograder tests", and utils.determine_grade; Otter-Grader, "Test files",
exception-based tests. Read next: `../grade.py`.
"""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

from ooctrain.course.grade import Grade, grade
from ooctrain.course.notebooks import notebook, plain_cell
from ooctrain.course.pages import without_dead_links
from ooctrain.course.rubric import Rubric, name_of, read_rubric

#: Cases into which Otter's points of one part are cut.
STEPS = 5


def part_points(assignment: str, file: str, part: str, seed: int = 0) -> float:
    """The points of a file for a part of a rubric.

    Args:
        assignment: the folder.
        file: file of the submission; its class is the rubric's.
        part: a test's name, "laws", "hunts", or a measure's, replay's or footprint's name.
    """
    rubric = read_rubric(Path(assignment))
    path = Path(file).resolve()
    content = path.read_bytes() if path.is_file() else b""
    found = _grade_of(assignment, str(path), content, seed)
    rows, total = found.rows, sum(row.points for row in found.rows)
    kind = {"laws": "law", "hunts": "bug"}.get(part)
    own = [
        row
        for row in rows
        if row.kind == kind or part in (row.name, row.name.partition("[")[0].rpartition("::")[2])
    ]
    # Parts are counted alone: where something required is broken each is worth as much less.
    share = found.points / total if found.unsafe and total else 1.0
    return min(round(share * sum(row.points for row in own), 2), parts_of(rubric)[part])


@lru_cache(maxsize=8)
def _grade_of(assignment: str, file: str, content: bytes, seed: int) -> Grade:
    rubric = read_rubric(Path(assignment))
    return grade(rubric, f"{file}:{rubric.submission.partition(':')[2]}", seed)


def parts_of(rubric: Rubric) -> dict[str, float]:
    """{part: points}: laws together, each test, each thing that is compared with par."""
    found = {"laws": rubric.laws.points, **rubric.tests.points}
    found |= {name_of(part): part.points for part in rubric.compared}
    if rubric.hunts:
        found["hunts"] = sum(hunt.points for hunt in rubric.hunts)
    return {part: float(points) for part, points in found.items() if points > 0}


def write_nbgrader(folder: Path, rubric: Rubric, seed: int) -> None:
    """Writes NAME.ipynb, to be put into nbgrader's source/NAME, and the assignment beside it."""
    name, file = rubric.folder.resolve().name, rubric.submission.partition(":")[0]
    _copy(rubric, folder)
    handout = (rubric.folder / "README.md").read_text(encoding="utf-8")
    handout = without_dead_links(handout, folder)
    stub = (rubric.folder / file).read_text(encoding="utf-8")
    cells = [
        _cell("handout", "markdown", handout),
        # No solution cell: nbgrader would release it without the stub.
        plain_cell("your-file", "code", f"%%writefile {file}\n{stub}"),
    ]
    for number, (part, points) in enumerate(parts_of(rubric).items(), 1):
        source = (
            f"# {part}: {points:g} points\n"
            "from ooctrain.course.autograders.notebook_graders import part_points\n"
            f"### BEGIN HIDDEN TESTS\nSEED = {seed}\n### END HIDDEN TESTS\n"
            f'part_points("assignment", {file!r}, {part!r}, globals().get("SEED", 0))'
        )
        cells.append(_cell(f"part-{number}", "code", source, points=points))
    text = json.dumps(notebook(cells), indent=1) + "\n"
    (folder / f"{name}.ipynb").write_text(text, encoding="utf-8")


def _cell(name: str, kind: str, source: str, points: float | None = None) -> dict[str, Any]:
    """A cell that students cannot change; with points, one that is graded."""
    nbgrader = {
        "schema_version": 3, "grade_id": name, "locked": True, "solution": False,
        "grade": points is not None, "task": False, **({"points": points} if points else {}),
    }  # fmt: skip
    return {**plain_cell(name, kind, source), "metadata": {"nbgrader": nbgrader}}


def write_otter(folder: Path, rubric: Rubric, seed: int) -> None:
    """Writes tests/<name>.py, Otter's test file, and the assignment beside it."""
    name, file = rubric.folder.resolve().name, rubric.submission.partition(":")[0]
    pieces = [
        f'"""Otter-Grader\'s tests of {name}: each part of its rubric in fifths."""\n\n'
        "from otter.test_files import test_case\n\n"
        "from ooctrain.course.autograders.notebook_graders import part_points\n\n"
        f"OK_FORMAT = False\nname = {name!r}\npoints = None\n"
    ]
    for number, (part, points) in enumerate(parts_of(rubric).items(), 1):
        for step in range(1, STEPS + 1):
            least = points * step / STEPS
            pieces.append(
                f"\n\n@test_case(points={points / STEPS:g}, "
                f"name={f'{part}, {step} of {STEPS}'!r})\n"
                f"def test_part_{number}_{step}():\n"
                f'    had = part_points("assignment", {file!r}, {part!r}, {seed})\n'
                f'    assert had >= {least - 0.01:.4g}, f"{{had:g}} of {points:g} points"\n'
            )
    _copy(rubric, folder)
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests" / f"{name}.py").write_text("".join(pieces), encoding="utf-8")


def _copy(rubric: Rubric, folder: Path) -> None:
    """The assignment, as folder/assignment."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(rubric.folder, folder / "assignment", ignore=ignored, dirs_exist_ok=True)
