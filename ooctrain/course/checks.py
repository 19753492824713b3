"""The part of a grade that is right or wrong: the laws of all plug-ins, then the public tests.

Each law and test that the rubric counts gives a `CheckResult`. They are the same pytest tests that
the student runs, but here they run in a process that has never seen the submission: they try a
planner or an allocator whose methods are calls to another process. If that process ends or is
silent, only the test that called it loses its points; the tests after it do not. Read next:
`outcomes.py`, the plug-in of pytest.
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

from ooctrain.course.interview import Patience
from ooctrain.course.outcomes import MOST_BROKEN
from ooctrain.course.rubric import Rubric
from ooctrain.errors import OoctrainError
from ooctrain.testing.allocator_laws import OF_OTHER_KINDS


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How a law or a test went.

    Args:
        name: name of the test, with its class and its parameters: "TestMine::test_it[3]".
        why: what it says where it fails, in full.
        of_case: that is of the case that was tried, and not of how the submission's process ended.
    """

    name: str
    passed: bool
    why: str = ""
    of_case: bool = False

    @property
    def function(self) -> str:
        """Name of the test without its class and its parameters."""
        return self.name.partition("[")[0].rpartition("::")[2]


def law_test(rubric: Rubric) -> str:
    """The test, and its module, that holds a plug-in of this kind to the laws."""
    return f"test_{rubric.kind}"


def run_checks(rubric: Rubric, submission: str, seed: int) -> list[CheckResult]:
    """How a submission does in everything that counts, the laws first.

    Args:
        submission: "/path/file.py:Class", or a name.
        seed: seed of the random cases.

    Raises:
        OoctrainError: the tests themselves cannot be run.
    """
    known: dict[str, CheckResult] = {}
    broken = 0
    while True:
        names, begun, ended = _session(rubric, submission, seed, known, broken)
        # The tests themselves were ended: one of them met data that takes too long to judge.
        open_test = next((name for name in begun if name not in known), None)
        if open_test is None:
            break
        broken += 1
        known[open_test] = CheckResult(open_test, False, ended.why(rubric.time_limit_s))
        if broken == MOST_BROKEN:
            break
    if broken < MOST_BROKEN and not (names and known.keys() >= set(names)):
        raise OoctrainError(
            f"the tests of {rubric.folder} cannot be run: {ended.last_line}", code="OOC-119",
            fix=f"pytest {rubric.folder / rubric.tests.file} shows why",
        )  # fmt: skip
    why = f"not tried: {MOST_BROKEN} others had to be ended"
    found = [known.get(name, CheckResult(name, False, why)) for name in names]
    return [outcome for outcome in found if OF_OTHER_KINDS not in outcome.why]


def _session(
    rubric: Rubric, submission: str, seed: int, known: dict[str, CheckResult], broken: int
) -> tuple[list[str], list[str], Ended]:
    """Runs what is not known yet, and adds it: (all that counts, what was begun, how it ended)."""
    asked: dict[str, Any] = {
        "wanted": [law_test(rubric), *rubric.tests.points], "known": [*known], "broken": broken,
        "hidden": [law_test(rubric), *rubric.tests.hidden],
        "submission": submission, "kind": rubric.kind, "limit_s": rubric.time_limit_s,
    }  # fmt: skip
    arguments = [
        f"--{rubric.kind}", submission, "--law-examples", str(rubric.laws.examples),
        "--law-seed", str(seed), "--law-seconds", "inf",
        "--law-briefly", "--pyargs", f"ooctrain.laws.{law_test(rubric)}",
        str((rubric.folder / rubric.tests.file).resolve()),
    ]  # fmt: skip
    messages, ended = run_tests(arguments, asked, rubric.time_limit_s)
    names: list[str] = next((line["collected"] for line in messages if "collected" in line), [])
    known.update({line["ends"]: _outcome(line) for line in messages if "ends" in line})
    return names, [line["begins"] for line in messages if "begins" in line], ended


def _outcome(line: Mapping) -> CheckResult:
    return CheckResult(line["ends"], line["passed"], line["why"], line.get("of_case", False))


# pytest in a process of its own, which runs only the teacher's code and the library's. It is
# started with pytest's arguments and with the grader's request (`outcomes.py`). The outcomes come
# back through a pipe without a name, so there is no file into which other code could write.

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
#: Until a process sends something: it imports the library; and what a test may take beyond the
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
    """Runs pytest until it ends, or sends nothing for too long.

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
    messages = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return messages, Ended(status, out_of_time, lines[-1] if lines else "")


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
