"""The zip that Gradescope runs: it builds a machine with the library, then grades a submission.

The zip holds `setup.sh` and `run_autograder` at its root, as Gradescope wants them, the whole
library as a wheel, the assignment's folder and the secret seed of its hidden cases.
`run_autograder` first leaves a `results.json` that says that there is no grade, and the grade
replaces it; so there is one even if Python does not start, or is killed. The library runs the
submission's file in a cage of its own, so it sees neither the tests nor the results. Source:
Gradescope, "Autograder Specifications" and "Best Practices". Read next: `notebook_graders.py`.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from ooctrain.course.grade import Grade, Row
from ooctrain.course.handout import write_wheel
from ooctrain.course.isolation import in_words
from ooctrain.course.rubric import Rubric

# The zip.

_TIME = (1980, 1, 1, 0, 0, 0)
SETUP = """\
#!/usr/bin/env bash
# Prepares the image: Python 3.11 or later (choose Ubuntu 24.04 as the base image), the library.
set -eu
HERE="${AUTOGRADER:-/autograder}"
apt-get update -y
apt-get install -y python3 python3-venv
for PYTHON in python3.14 python3.13 python3.12 python3.11 python3; do
  if command -v "$PYTHON" > /dev/null; then break; fi
done
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed")'
"$PYTHON" -m venv "$HERE/venv"
"$HERE/venv/bin/python" -m pip install "$HERE"/source/*.whl
"""
RUN = """\
#!/usr/bin/env bash
# Grades the one file that was handed in, and leaves results/results.json whatever happens.
HERE="${{AUTOGRADER:-/autograder}}"
PYTHON="${{PYTHON:-$HERE/venv/bin/python}}"
RESULTS="$HERE/results/results.json"
mkdir -p "$HERE/results"
cp "$HERE/source/not_graded.json" "$RESULTS"
FILE="$HERE/submission/{file}"
if [ ! -f "$FILE" ] || [ -L "$FILE" ]; then
  for FOUND in "$HERE"/submission/*.py; do
    if [ -f "$FOUND" ] && [ ! -L "$FOUND" ]; then FILE="$FOUND"; fi
  done
fi
SUBMISSION="$FILE:{name}"
if [ ! -f "$FILE" ] || [ -L "$FILE" ]; then
  if [ -z "$(ls -A "$HERE/submission" 2> /dev/null)" ]; then
    cp "$HERE/source/no_file.json" "$RESULTS"
    exit 0
  fi
  SUBMISSION="$HERE/submission"  # a notebook, a folder, an archive
fi
"$PYTHON" -m ooctrain grade "$HERE/source/assignment" "$SUBMISSION" \\
  --seed {seed} --gradescope "$RESULTS"
exit 0
"""


def write_zip(path: Path, rubric: Rubric, seed: int) -> None:
    """Writes the autograder of an assignment.

    Args:
        seed: for its hidden cases; it can be read from the zip.
    """
    file, _, name = rubric.submission.partition(":")
    missing = not_graded("")
    missing["output"] = f"No file was handed in: {file} is expected, with a class {name}."
    texts = {
        "setup.sh": SETUP,
        "run_autograder": RUN.format(file=file, name=name, seed=seed),
        "not_graded.json": json.dumps(not_graded("the autograder did not come to its end")),
        "no_file.json": json.dumps(missing),
    }
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path, "w") as packed:
        wheel = write_wheel(Path(folder), {})
        for inner, text in texts.items():
            _put(
                packed,
                inner,
                text.encode(),
                0o755 if inner in ("setup.sh", "run_autograder") else 0o644,
            )
        _put(packed, wheel.name, wheel.read_bytes(), 0o644)
        for source in sorted(rubric.folder.rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                inner = source.relative_to(rubric.folder).as_posix()
                _put(packed, f"assignment/{inner}", source.read_bytes(), 0o644)


def _put(packed: zipfile.ZipFile, name: str, content: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, mode << 16
    packed.writestr(entry, content)


# `results.json`: each row of a grade is a test with its score and its reason. Public tests show
# their whole output; a test with hidden cases shows only that it does not hold, and nothing of the
# case. The leaderboard has what a submission's data is worth, the ratio to par, never how long its
# code took. A platform that finds no file shows the student nothing, so `not_graded` says why there
# is no grade. Source: Gradescope, "Autograder Specifications", output format.

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
