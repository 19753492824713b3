"""Notebooks of the tutorials and puzzles, executed: `make notebooks`.

    python docs/pages/notebooks.py build/notebooks --jobs 2

The library makes notebooks of scripts (`ooctrain/course/notebooks.py`). Here each is executed in a
folder of its own; what answers a prediction is folded away. A notebook remembers a digest of its
script and of the library, and is executed again only after one of them has changed. Read next:
`gallery.py`, which shows them on the site.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbconvert.preprocessors import CellExecutionError, ExecutePreprocessor
from nbformat import NotebookNode
from prose import library_digest

from ooctrain.course import notebooks

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "tutorials"
SECONDS = 900  # for one cell


def scripts() -> list[Path]:
    """Tutorials and puzzles, in the order of the course."""
    return [*sorted(TUTORIALS.glob("[0-9]*.py")), *sorted(TUTORIALS.glob("puzzles/[a-z][0-9]*.py"))]


def notebook_of(script: Path) -> NotebookNode:
    """A script as a notebook that has not been executed, and knows of what it was made."""
    made = nbformat.from_dict(notebooks.notebook_of(script))
    made.metadata["ooctrain"] = {"digest": digest(script)}
    return made


def digest(script: Path) -> str:
    """Of all that decides what a notebook shows."""
    return library_digest(Path(__file__), TUTORIALS / "lesson.py", script)


def build(script: Path, target: Path) -> str:
    """Writes the executed notebook of a script; returns what was done, in words. One that ends by
    itself, since a package is missing, is not written.
    """
    path = target / script.relative_to(TUTORIALS).with_suffix(".ipynb")
    if path.is_file() and _digest_in(path) == digest(script):
        return f"{path.name}: as it was"
    made = notebook_of(script)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tutorials"  # pictures are said to lie in "tutorials/pictures"
        folder.mkdir()
        runner = ExecutePreprocessor(timeout=SECONDS, kernel_name="python3")
        try:
            runner.preprocess(made, {"metadata": {"path": str(folder)}})
        except CellExecutionError as error:
            if error.ename != "SystemExit":
                raise
            return f"{path.name}: left out, it wants what is not installed here"
    for cell in made.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if "answer" in cell.metadata.get("tags", ()):
            cell.metadata["jupyter"] = {"outputs_hidden": True}
    nbformat.validate(made)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)
    return f"{path.name}: executed"


def _digest_in(path: Path) -> str:
    return nbformat.read(path, 4).metadata.get("ooctrain", {}).get("digest", "")


def main() -> int:
    """Builds all notebooks, or those whose names begin as told; status 1 where one fails."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    chosen = [path for path in scripts() if path.name.startswith(given.only)]
    failed = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for script, made in [(each, pool.submit(build, each, given.target)) for each in chosen]:
            try:
                print(made.result(), flush=True)
            except CellExecutionError as error:
                print(f"{script.name} fails: {error}", flush=True)
                failed += 1
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
