"""Scripts of the course as notebooks without output: for Jupyter, for VS Code, for Colab.

The scripts stay the only source. A script is cut at its lines `# %%`; a first cell is added which
installs the package where it is missing, and finds what the tutorials share. A cell that asks for a
prediction has an input box where somebody can answer. What comes out is plain data, as a file
NAME.ipynb holds it (nbformat 4.5), so nothing but the library is needed. Read next: `lessons.py`,
which copies them; docs/pages/notebooks.py, which executes them for the site.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Nothing is installed by a name: on PyPI it would be somebody else's, as long as nobody has
#: registered it.
FIRST_CELL = """\
# Installs the package where it is missing, and finds what the tutorials share (lesson.py).
import sys
from pathlib import Path

try:
    import ooctrain
except ImportError:  # it is not on PyPI: from its wheel, which lies beside this notebook
    wheels = [*Path.cwd().glob("ooctrain-*.whl"), *Path.cwd().glob("../ooctrain-*.whl")]
    if not wheels and "google.colab" in sys.modules:
        from google.colab import files

        print("choose the file ooctrain-...-py3-none-any.whl")
        wheels = [Path(name) for name in files.upload()]
    if not wheels:
        raise SystemExit("put ooctrain-...-py3-none-any.whl beside this notebook") from None
    %pip install --quiet "{max(wheels)}"
from ooctrain.course.lessons import lessons_folder

sys.path.append(str(lessons_folder()))
import lesson

lesson.PICTURES = Path.cwd() / "pictures"
"""
KERNEL = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python", "pygments_lexer": "python"},
    "colab": {"provenance": []},
}  # fmt: skip
_CELL = re.compile(r"^# %%( \[markdown\])?[^\n]*\n", re.MULTILINE)
PREDICTS, REVEALS = "lesson.predict(", "lesson.reveal("


def notebook_of(script: Path) -> dict[str, Any]:
    """A script as a notebook that has not been executed.

    Cells have tags: "first", "prediction" where one is asked for, "answer" from there to where it
    is compared with what was measured.
    """
    cells = [("code", FIRST_CELL, ["first"])]
    predicted = False
    for kind, source in cells_of(script.read_text(encoding="utf-8")):
        tags = []
        if kind == "code":
            source = without_a_result(source)
            asks = PREDICTS in source
            tags = ["prediction"] if asks else ["answer"] if predicted else []
            predicted = asks or (predicted and REVEALS not in source)
        cells.append((kind, source, tags))
    return notebook([_tagged(f"cell-{number}", *cell) for number, cell in enumerate(cells)])


def notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Cells as a notebook of Python."""
    return {"cells": cells, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}


def plain_cell(name: str, kind: str, source: str) -> dict[str, Any]:
    """A cell without output.

    Args:
        name: another one for each cell.
        kind: "markdown" or "code".
    """
    cell: dict[str, Any] = {"id": name, "cell_type": kind, "metadata": {}, "source": source}
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}


def notebook_text(script: Path) -> str:
    """The same as its file has it."""
    return json.dumps(notebook_of(script), indent=1, ensure_ascii=False) + "\n"


def cells_of(text: str) -> Iterator[tuple[str, str]]:
    """("markdown" or "code", source) of each cell of a script in the percent format."""
    marks = [*_CELL.finditer(text)]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=True):
        source = text[mark.end() : end].strip("\n")
        if mark[1]:
            yield "markdown", re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        elif source:
            yield "code", source


def without_a_result(source: str) -> str:
    """A cell that ends with an exercise, closed by ";": a notebook would show what the call returns
    (False as long as nobody has answered) below what it prints.
    """
    last = ast.parse(source).body[-1:]
    if not last or not ast.unparse(last[0]).startswith("lesson.exercise("):
        return source
    lines = source.encode().splitlines()  # ast counts columns in bytes
    end, column = (last[0].end_lineno or 0) - 1, last[0].end_col_offset
    lines[end] = lines[end][:column] + b";" + lines[end][column:]
    return b"\n".join(lines).decode()


def _tagged(name: str, kind: str, source: str, tags: list[str]) -> dict[str, Any]:
    cell = plain_cell(name, kind, source)
    return {**cell, "metadata": {"tags": tags}} if tags else cell
