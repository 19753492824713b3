"""The part of a grade that is right or wrong: the laws of all plug-ins, and the public tests.

Each law and test that the rubric counts gives a `CheckResult`. They are the same pytest tests that
the student runs, but here they run in a process that has never seen the submission: they try a
planner or an allocator that asks another process. If that process ends or is silent, only the test
that asked loses its points; the tests after it do not. Read next: `tests_process.py`, which starts
pytest; `outcomes.py`, its plug-in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ooctrain.course.outcomes import MOST_BROKEN
from ooctrain.course.rubric import Rubric
from ooctrain.course.tests_process import Ended, run_tests
from ooctrain.errors import OoctrainError
from ooctrain.testing.allocator_laws import OF_OTHER_KINDS


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How a law or a test went.

    Args:
        name: of the test, with its class and its parameters: "TestMine::test_it[3]".
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
        seed: of the random cases.

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
    if not names:
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
    told, ended = run_tests(arguments, asked, rubric.time_limit_s)
    names: list[str] = next((line["collected"] for line in told if "collected" in line), [])
    known.update({line["ends"]: _outcome(line) for line in told if "ends" in line})
    return names, [line["begins"] for line in told if "begins" in line], ended


def _outcome(line: Mapping) -> CheckResult:
    return CheckResult(line["ends"], line["passed"], line["why"], line.get("of_case", False))
