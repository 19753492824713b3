"""Notebooks of the tutorials and puzzles, executed: `make notebooks`.

    python docs/pages/notebooks.py build/notebooks --jobs 2

The scripts stay the only source. jupytext cuts a script into cells; a first cell is added that
installs the package where it is missing (Colab). A cell that asks for a prediction has an input box
where somebody can answer, and goes on without one while it is executed here. Each notebook runs in
a folder of its own. It remembers a digest of its script and of the library, and is executed again
only after one of them has changed. Read next: `gallery.py`, which shows them on the site.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jupytext
import nbformat
from nbconvert.preprocessors import ExecutePreprocessor
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from prose import library_digest

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "tutorials"
SECONDS = 900  # for one cell
FIRST_CELL = """\
# Installs the package where it is missing, and finds what the tutorials share (lesson.py).
import sys
from pathlib import Path

try:
    import ooctrain
except ImportError:  # a wheel beside this notebook, else the newest release
    wheels = sorted(map(str, Path.cwd().glob("ooctrain-*.whl")))
    if wheels:
        %pip install --quiet "{wheels[-1]}"
    else:
        %pip install --quiet ooctrain
from ooctrain.course.lessons import lessons_folder

sys.path.append(str(lessons_folder()))
import lesson

lesson.PICTURES = Path.cwd() / "pictures"
"""


def scripts() -> list[Path]:
    """Tutorials and puzzles, in the order of the course."""
    return [*sorted(TUTORIALS.glob("[0-9]*.py")), *sorted(TUTORIALS.glob("puzzles/[a-z][0-9]*.py"))]


def notebook_of(script: Path) -> NotebookNode:
    """A script as a notebook that has not been executed."""
    made = jupytext.read(script, fmt="py:percent")
    cells = [new_code_cell(FIRST_CELL, metadata={"tags": ["first"]}), *made.cells]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
        if cell.cell_type == "code" and number:
            cell["source"] = without_a_result(cell.source)
        if cell.cell_type == "code" and "lesson.predict(" in cell.source:
            cell.metadata["tags"] = ["prediction"]
    made.cells = cells
    made.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python", "pygments_lexer": "python"},
        "colab": {"provenance": []},
        "ooctrain": {"digest": digest(script)},
    }
    return made


def without_a_result(source: str) -> str:
    """A cell that ends with an exercise, closed by ";": a notebook would show what the call returns
    (False as long as nobody has answered) below what it prints.
    """
    last = ast.parse(source).body[-1:]
    if not last or not ast.unparse(last[0]).startswith("lesson.exercise("):
        return source
    lines = source.encode().splitlines()  # ast counts columns in bytes
    end, column = last[0].end_lineno - 1, last[0].end_col_offset
    lines[end] = lines[end][:column] + b";" + lines[end][column:]
    return b"\n".join(lines).decode()


def digest(script: Path) -> str:
    """Of all that decides what a notebook shows."""
    return library_digest(Path(__file__), TUTORIALS / "lesson.py", script)


def build(script: Path, target: Path) -> str:
    """Writes the executed notebook of a script; returns what was done, in words."""
    path = target / script.relative_to(TUTORIALS).with_suffix(".ipynb")
    if path.is_file() and _digest_in(path) == digest(script):
        return f"{path.name}: as it was"
    made = notebook_of(script)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tutorials"  # pictures are said to lie in "tutorials/pictures"
        folder.mkdir()
        runner = ExecutePreprocessor(timeout=SECONDS, kernel_name="python3")
        runner.preprocess(made, {"metadata": {"path": str(folder)}})
    for cell in made.cells:
        cell.metadata.pop("execution", None)  # when it ran
    nbformat.validate(made)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)
    return f"{path.name}: executed"


def _digest_in(path: Path) -> str:
    return nbformat.read(path, 4).metadata.get("ooctrain", {}).get("digest", "")


def main() -> int:
    """Builds all notebooks, or those whose names begin as told."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    chosen = [path for path in scripts() if path.name.startswith(given.only)]
    with ThreadPoolExecutor(given.jobs) as pool:
        for said in pool.map(partial(build, target=given.target), chosen):
            print(said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
