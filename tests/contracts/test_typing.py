"""A user's type checker sees the library's types: right programs pass, wrong calls are named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a type checker reads the whole package
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "strangers" / "typed_user.py"
WRONG = """
oc.plan(oc.trace(Small(), (4, 3, 8, 8)), 1.5)
oc.plan(oc.trace(Small(), (4, 3, 8, 8)), "50%", planer="window")
Small()("no tensor")
Small().conv(1, 2, 3)
"""


def checked(program: Path, folder: Path) -> str:
    """What `mypy --strict` says of a program to a user who has installed the library."""
    (folder / "mypy.ini").write_text(
        f"[mypy]\nstrict = True\nmypy_path = {ROOT}\n[mypy-ooctrain.*]\nfollow_imports = silent\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(folder / "mypy.ini")]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, cwd=folder)
    return done.stdout


def test_a_user_s_program_has_no_error_in_strict_mode(tmp_path):
    assert "Success" in checked(PROGRAM, tmp_path)


def test_wrong_calls_are_named(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(PROGRAM.read_text() + WRONG)
    first = PROGRAM.read_text().count("\n") + 2
    said = checked(wrong, tmp_path)
    for line in range(first, first + 4):
        assert f"wrong.py:{line}: error" in said, said


def test_a_user_s_program_runs():
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_pyright_finds_no_error(tmp_path):
    pyright = shutil.which("pyright") or shutil.which("basedpyright")
    if pyright is None:
        pytest.skip("pyright is not installed (pip install pyright)")
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    shutil.copy(PROGRAM, tmp_path / "user.py")
    command = [pyright, "--pythonpath", sys.executable, "user.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "0 errors" in done.stdout, done.stdout
