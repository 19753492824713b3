"""Notebooks of the tutorials and puzzles, executed: `make notebooks`.

    python docs/pages/notebooks.py build/notebooks --jobs 2

The scripts stay the only source. jupytext cuts a script into cells; a first cell is added that
installs the package where it is missing (Colab), and before each prediction a cell with the guess,
so that a reader changes a number and not the experiment. Each notebook is then executed in a folder
of its own. A notebook remembers a digest of its script and of the library; it is executed again
only after one of them has changed. Read next: `gallery.py`, which shows them on the site.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from collections.abc import Iterator
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
except ImportError:
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
    cells = [new_code_cell(FIRST_CELL, metadata={"tags": ["first"]})]
    for cell in made.cells:
        cells += with_guesses(cell, len(cells)) if cell.cell_type == "code" else [cell]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    made.cells = cells
    made.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python", "pygments_lexer": "python"},
        "colab": {"provenance": []},
        "ooctrain": {"digest": digest(script)},
    }
    return made


def with_guesses(cell: NotebookNode, number: int) -> Iterator[NotebookNode]:
    """A cell, and before it one for each prediction in it."""
    guesses = list(_predictions(cell.source))
    lines = cell.source.splitlines(keepends=True)
    for order, (what, guess) in enumerate(guesses):
        name = f"guess_{number}_{order}"
        value = _number(ast.get_source_segment(cell.source, guess) or "")
        form = ' # @param {type:"number"}' if isinstance(value, int | float) else ""
        text = f"# Your prediction: {what}. Change the number, then run.\n{name} = {value}{form}"
        yield new_code_cell(text, metadata={"tags": ["prediction"], "cellView": "form"})
    for order, (_, guess) in reversed(list(enumerate(guesses))):
        line = lines[guess.lineno - 1].encode()
        named = f"guess_{number}_{order}".encode()
        lines[guess.lineno - 1] = (
            line[: guess.col_offset] + named + line[guess.end_col_offset :]
        ).decode()
    cell.source = "".join(lines)
    yield cell


def _predictions(source: str) -> Iterator[tuple[str, ast.expr]]:
    """(what, guess) of each `lesson.predict(what, guess=...)`, whose guess is on one line."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "lesson.predict"):
            continue
        guesses = [word.value for word in node.keywords if word.arg == "guess"] or node.args[1:]
        if guesses and guesses[0].lineno == guesses[0].end_lineno:
            yield ast.unparse(node.args[0]).strip("'\""), guesses[0]


def _number(text: str) -> object:
    """A guess worked out, where it is made of numbers alone: a form of Colab takes no more."""
    if any(isinstance(node, ast.Name | ast.Call) for node in ast.walk(ast.parse(text))):
        return text
    return eval(text, {})


def digest(script: Path) -> str:
    """Of all that decides what a notebook shows."""
    return library_digest(Path(__file__), TUTORIALS / "lesson.py", script)


def build(script: Path, target: Path) -> str:
    """Writes the executed notebook of a script; returns what was done, in words."""
    path = target / script.relative_to(TUTORIALS).with_suffix(".ipynb")
    if path.is_file() and _digest_in(path) == digest(script):
        return f"{path.name}: as it was"
    made = notebook_of(script)
    with tempfile.TemporaryDirectory() as folder:
        runner = ExecutePreprocessor(timeout=SECONDS, kernel_name="python3")
        runner.preprocess(made, {"metadata": {"path": folder}})
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
