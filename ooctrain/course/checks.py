"""The part of a grade that is right or wrong: the laws of all plug-ins, and the public tests.

In: a rubric, a submission. Out: a `CheckResult` for each law and test that counts. The one idea:
these are the same pytest tests that the student runs; here they run in a process of their own, and
one that hangs or tears the process down costs its own points and not those of the tests behind it.
They share that process with the submission, so a file that sets out to deceive pytest could; what
`measures.py` counts it cannot. Read next: `outcomes.py`, `../laws/plugin.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ooctrain.course.child import Ended, run_child
from ooctrain.course.rubric import Rubric
from ooctrain.errors import OoctrainError
from ooctrain.testing.allocator_laws import OF_OTHER_KINDS

#: After so many tests that had to be ended from outside the others are not tried.
MOST_BROKEN = 3


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How a law or a test went.

    Args:
        name: of the test, with its class and its parameters: "TestMine::test_it[3]".
        why: what it says where it fails, in full.
    """

    name: str
    passed: bool
    why: str = ""

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
        seed: of the random cases.

    Raises:
        OoctrainError: the tests themselves cannot be run.
    """
    known: dict[str, CheckResult] = {}
    broken = 0
    while True:
        names, begun, ended = _session(rubric, submission, seed, known)
        open_test = next((name for name in begun if name not in known), None)
        if open_test is None:
            break
        broken += 1
        known[open_test] = CheckResult(open_test, False, ended.why(rubric.time_limit_s))
        if broken == MOST_BROKEN:
            break
    if not names:
        raise OoctrainError(
            f"the tests of {rubric.folder} cannot be run: {ended.last_line}", code="OOC-119",
            fix=f"pytest {rubric.folder / rubric.tests.file} shows why",
        )  # fmt: skip
    why = f"not tried: {MOST_BROKEN} others had to be ended"
    found = [known.get(name, CheckResult(name, False, why)) for name in names]
    return [outcome for outcome in found if OF_OTHER_KINDS not in outcome.why]


def _session(
    rubric: Rubric, submission: str, seed: int, known: dict[str, CheckResult]
) -> tuple[list[str], list[str], Ended]:
    """Runs what is not known yet, and adds it: (all that counts, what was begun, how it ended)."""
    with TemporaryDirectory(prefix="ooctrain-grade-") as folder:
        asked, out = Path(folder) / "asked.json", Path(folder) / "outcomes.jsonl"
        wanted = [law_test(rubric), *rubric.tests.points]
        asked.write_text(json.dumps({"wanted": wanted, "known": [*known], "out": str(out)}))
        arguments = [
            "-p", "ooctrain.laws.plugin", "-p", "ooctrain.course.outcomes",
            "-p", "no:cacheprovider", "--grading", str(asked), f"--{rubric.kind}", submission,
            "--law-examples", str(rubric.laws.examples), "--law-seed", str(seed),
            "--pyargs", f"ooctrain.laws.{law_test(rubric)}",
            str((rubric.folder / rubric.tests.file).resolve()),
        ]  # fmt: skip
        ended = run_child("pytest", arguments, out, rubric.time_limit_s)
        told = [json.loads(line) for line in _lines(out)]
    names: list[str] = next((line["collected"] for line in told if "collected" in line), [])
    known.update({line["ends"]: _outcome(line) for line in told if "ends" in line})
    return names, [line["begins"] for line in told if "begins" in line], ended


def _outcome(line: Mapping) -> CheckResult:
    return CheckResult(line["ends"], line["passed"], line["why"])


def _lines(path: Path) -> list[str]:
    """The whole lines of a file that may have been written by a process that was ended."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
