"""The wheel alone is enough for a student: lessons come out of it, run, and hold no solution."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import handouts, puzzle_solutions

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr[-300:]}")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder into which the wheel was unpacked, and one into which its lessons were copied."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    lessons = tmp_path_factory.mktemp("student") / "course"
    run(folder, lessons.parent, "-m", "ooctrain", "tutorials", "copy", str(lessons))
    return folder, lessons


def run(installed, cwd, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(installed)}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_every_lesson_and_no_test(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for path in (ROOT / "tutorials").rglob("*"):
        if path.suffix in (".py", ".md", ".toml", ".gz"):
            assert f"ooctrain/{path.relative_to(ROOT).as_posix()}" in names
    docs = ROOT / "docs"
    for path in (*docs.glob("*.md"), *docs.glob("howto/*.md"), *docs.glob("pictures/*")):
        assert f"ooctrain/{path.relative_to(ROOT).as_posix()}" in names
    for path in (ROOT / "ooctrain" / "explain").glob("*.md"):
        assert path.relative_to(ROOT).as_posix() in names
    assert all(name.startswith(("ooctrain/", "ooctrain-")) for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".c", ".h"))]


def test_the_wheel_has_no_solution(wheel):
    archive = zipfile.ZipFile(wheel)
    texts = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")]
    found = vars(puzzle_solutions).values()
    functions = [f for f in found if getattr(f, "__module__", "") == puzzle_solutions.__name__]
    solutions = ["\n".join(inspect.getsource(f).splitlines()[2:]).strip() for f in functions]
    solutions += [handouts.SOLUTION, handouts.FITTING, handouts.IN_BANDS]
    for solution in solutions:
        if len(solution) > 120:
            assert not [text for text in texts if solution.strip() in text], solution


@pytest.mark.parametrize(
    "name", ["01_autograd_from_nothing.py", "04_swapping.py", "puzzles/a2_swap_in_time.py"]
)
def test_a_script_runs_from_its_copy_with_the_wheel_alone(name, installed, tmp_path):
    package, lessons = installed
    where = run(package, tmp_path, "-c", "import ooctrain; print(ooctrain.__file__)")
    assert Path(where.strip()).is_relative_to(package)
    shown = run(package, tmp_path, str(lessons / name))
    assert "all asserts passed" in shown or "yours" in shown
    assert not list((package / "ooctrain" / "tutorials").rglob("__pycache__"))


def test_the_documentation_is_small_and_is_shown(wheel, installed, tmp_path):
    entries = zipfile.ZipFile(wheel).infolist()
    pages = [entry for entry in entries if entry.filename.startswith("ooctrain/docs/")]
    assert sum(entry.compress_size for entry in pages) < 512 << 10
    package, _ = installed
    assert run(package, tmp_path, "-m", "ooctrain", "docs", "pocket").startswith("# The whole")


def test_the_pocket_system_trains_from_its_copy(installed, tmp_path):
    package, lessons = installed
    shown = run(package, tmp_path, str(lessons / "pocket" / "train.py"))
    assert "the same bits" in shown


def test_a_stub_is_graded_from_its_copy(installed, tmp_path):
    package, lessons = installed
    command = f"""
import sys
from ooctrain.cli import main
sys.exit(main(["grade", {str(lessons / "assignments" / "tiling")!r}]) - 4)  # 4: not passed
"""
    assert "of 100 points, not passed" in run(package, tmp_path, "-c", command)
