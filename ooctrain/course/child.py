"""A process of its own for a student's code, with limits of time and memory.

In: a module to run, or a question. Out: how it ended, or the answer. The one idea: code that nobody
has read may print, crash, exit or never end; in another process none of that reaches the one that
gives points, and a process that has shown no progress for too long is ended together with all that
it started. Read next: `cage.py`, its own limits; `checks.py` and `measures.py`, which run it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
#: Until a process writes for the first time: it imports the library, on a machine that may be busy.
START_LIMIT_S = 120.0
_POLL_S = 0.05
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
            return f"it did not end within {limit_s:g} s"
        return f"its process ended with status {self.status}: {self.last_line or 'no word'}"


def run_child(module: str, arguments: Sequence[str], progress: Path, limit_s: float) -> Ended:
    """Runs `python -m module` until it ends, or makes no progress for too long.

    Args:
        progress: a file that it writes to as it goes, for the first time when it has started.
        limit_s: for each time from then on that this file does not change its size.
    """
    command = [sys.executable, "-m", "ooctrain.course.cage", module, *arguments]
    paths = [str(PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=printed, stderr=subprocess.STDOUT,
            cwd=progress.parent, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            out_of_time = not _ends_in_time(process, progress, limit_s)
        finally:
            _end_group(process)
        # The child wrote through the same open file, so its place is the end of what was printed.
        printed.seek(max(0, printed.tell() - LAST_BYTES))
        lines = printed.read().decode(errors="replace").strip().splitlines()
    return Ended(process.wait(), out_of_time, lines[-1] if lines else "")


def ask(submission: str, limit_s: float, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer of a submission in a process of its own (`answer.py`).

    Args:
        asked: what `answer.py` is told besides the submission.

    Returns:
        What it says; where it says nothing, why, as "error".
    """
    with tempfile.TemporaryDirectory(prefix="ooctrain-grade-") as folder:
        question, answer = Path(folder) / "asked.json", Path(folder) / "answer.json"
        question.write_text(json.dumps({**asked, "submission": submission}), encoding="utf-8")
        paths = [str(question), str(answer)]
        ended = run_child("ooctrain.course.answer", paths, answer, limit_s)
        try:
            found = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
    answered = isinstance(found, dict) and isinstance(found.get("error", ""), str)
    return found if answered else {"error": ended.why(limit_s)}


def _ends_in_time(process: subprocess.Popen, progress: Path, limit_s: float) -> bool:
    before, since = 0, time.monotonic()
    while process.poll() is None:
        now = progress.stat().st_size if progress.exists() else 0
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > (limit_s if before else START_LIMIT_S):
            return False
        time.sleep(_POLL_S)
    return True


def _end_group(process: subprocess.Popen) -> None:
    """Ends a process and whatever it has started."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()  # closes its input, too
