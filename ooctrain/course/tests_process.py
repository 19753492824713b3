"""pytest in a process of its own, which runs only the teacher's code and the library's.

It is started with pytest's arguments and with what a grader asks (`outcomes.py`). What comes back
is what the plug-in told, and how the process ended. The outcomes come through a pipe without a
name, so there is no file into which other code could write. Read next: `outcomes.py`, the plug-in
in that process; `checks.py`.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooctrain.course.patience import Patience

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
#: Until a process tells something: it imports the library; and what a test may take beyond the
#: limit of what it asks.
START_LIMIT_S = 120.0
#: Of what a process printed: its last line is somewhere in them.
LAST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended.

    Args:
        status: its exit status; below 0: the signal that ended it.
        out_of_time: it was ended from outside.
        last_line: of all that it printed.
    """

    status: int
    out_of_time: bool
    last_line: str

    def why(self, limit_s: float) -> str:
        """The end in words."""
        if self.out_of_time:
            return f"what it answers could not be judged within {limit_s + START_LIMIT_S:g} s"
        return f"the tests ended with status {self.status}: {self.last_line or 'no word'}"


def run_tests(
    arguments: Sequence[str], asked: Mapping[str, Any], limit_s: float
) -> tuple[list[dict[str, Any]], Ended]:
    """Runs pytest until it ends, or tells nothing for too long.

    Args:
        asked: what the plug-in is asked, but for where to write.
        limit_s: what a submission may take for a test.
    """
    heard, said = os.pipe()
    with tempfile.TemporaryDirectory(prefix="ooctrain-tests-") as folder:
        question = Path(folder) / "asked.json"
        question.write_text(json.dumps({**asked, "out": said}), encoding="utf-8")
        command = [
            sys.executable, "-m", "pytest", "-p", "ooctrain.laws.plugin",
            "-p", "ooctrain.course.outcomes", "-p", "no:cacheprovider",
            "--grading", str(question), *arguments,
        ]  # fmt: skip
        paths = [str(PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")]
        with tempfile.TemporaryFile() as printed:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                cwd=folder, pass_fds=(said,),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )  # fmt: skip
            os.close(said)
            text, out_of_time = "", True
            try:
                text, out_of_time = _heard(heard, limit_s + START_LIMIT_S, process.pid)
            finally:
                # A cage whose grader is gone ends itself.
                if out_of_time or _hangs(process):
                    process.kill()
                os.close(heard)
            status = process.wait()
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = printed.read().decode(errors="replace").strip().splitlines()
    told = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return told, Ended(status, out_of_time, lines[-1] if lines else "")


def _heard(pipe: int, limit_s: float, pid: int) -> tuple[str, bool]:
    """All that is said until the pipe is closed, or until nothing is said for too long."""
    pieces: list[bytes] = []
    patience = Patience(limit_s, pid)
    while True:
        left_s = patience.until() - time.monotonic()
        if left_s <= 0:
            return b"".join(pieces).decode(), True
        if select.select([pipe], [], [], left_s)[0]:
            piece = os.read(pipe, 1 << 16)
            if not piece:
                return b"".join(pieces).decode(), False
            pieces.append(piece)
            patience = Patience(limit_s, pid)


def _hangs(process: subprocess.Popen) -> bool:
    """Whether it does not end by itself, though it has nothing more to say."""
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        return True
    return False
