"""The pytest plug-in of a grader: puts a submission into the tests, and tells how each test goes.

`--grading FILE` names a JSON object: what counts, what is known already, where to write, what is
tried. The plug-in writes a line of JSON for each test that begins and for each that ends, and
provides the fixtures `planner`, `allocator`, `bands` and `law`. The tests run in this process and
the submission does not: the fixtures ask another process (`submitted.py`). If that process ends or
is silent, the test that asked fails, even if it catches the error. A grader that is ended takes
this process with it (on Linux), and that the submission's. Read next: `checks.py`, which reads the
lines.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ooctrain.course.cage.process_limits import end_with_parent
from ooctrain.course.interview import Interview
from ooctrain.course.remote import AllocatorsOf, RemoteBands, RemoteLaw, RemotePlanner
from ooctrain.course.submitted import is_file

NAME = "ooctrain-outcomes"
#: Before what an error says; `ooctrain explain` has no page for a student's own.
_CODE = re.compile(r"^\[OOC-\d+\] ")
#: How many tests may end the submission's process before the others are left out.
MOST_BROKEN = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option by which a grader is distinguished from a person."""
    parser.addoption("--grading", metavar="FILE", help="for `ooctrain grade`")


def pytest_configure(config: pytest.Config) -> None:
    """Listens where a grader asks."""
    path = config.getoption("--grading")
    if not path:
        return
    asked = json.loads(Path(path).read_text(encoding="utf-8"))
    end_with_parent()
    interview = None
    if is_file(asked["submission"]):
        interview = Interview(asked["submission"], asked["kind"], asked["limit_s"])
        config.pluginmanager.register(_Submitted(interview), f"{NAME}-submitted")
    config.pluginmanager.register(_Outcomes(asked, interview), NAME)


class _Submitted:
    """The fixtures of a person's own tests, with a submission instead of theirs."""

    def __init__(self, interview: Interview):
        self._interview = interview
        self._allocator = AllocatorsOf(interview)

    @pytest.fixture
    def planner(self) -> RemotePlanner:
        """The planner that is graded."""
        return RemotePlanner(self._interview)

    @pytest.fixture
    def allocator(self) -> Any:
        """What makes the allocator that is graded."""
        return self._allocator

    @pytest.fixture
    def bands(self) -> RemoteBands:
        """The bands that are graded."""
        return RemoteBands(self._interview)

    @pytest.fixture
    def law(self) -> RemoteLaw:
        """The law that is graded."""
        return RemoteLaw(self._interview)

    def pytest_unconfigure(self) -> None:
        """Nothing outlives the tests."""
        self._interview.close()


class _Outcomes:
    """Tells what happens.

    Args:
        asked: `wanted` (names of test functions), `hidden` (those with hidden cases), `known`
            (names of tests), `broken` (how many of them were ended), `out` (a descriptor to write
            to).
        interview: interview of the submission, if it is a file.
    """

    def __init__(self, asked: Mapping[str, Any], interview: Interview | None):
        self.wanted, self.known, self.out = asked["wanted"], asked["known"], asked["out"]
        self.interview, self.broken = interview, asked["broken"]
        self.hidden, self.was_hidden = asked["hidden"], False
        self.purposes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the tests that count."""
        counted = [item for item in items if getattr(item, "originalname", "") in self.wanted]
        self._send(collected=[_name(item.nodeid) for item in counted])
        self.purposes = {item.nodeid: _in_words(item) for item in counted}
        items[:] = [item for item in counted if _name(item.nodeid) not in self.known]

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Leaves out what comes after too many ends."""
        if self.broken < MOST_BROKEN:
            return None
        why = f"not tried: {MOST_BROKEN} others had to be ended"
        self._send(ends=_name(item.nodeid), passed=False, why=why)
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins, and its time. What a hidden case has shown is forgotten before a test
        whose report shows what a submission says.
        """
        if self.interview is not None:
            hidden = _name(nodeid).partition("[")[0].rpartition("::")[2] in self.hidden
            if self.was_hidden and not hidden:
                self.interview.close()
            self.was_hidden = hidden
            self.interview.begin()
        self._send(begins=_name(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test ends: in its own part, or before where it could not begin."""
        if report.when == "call" or (report.when == "setup" and not report.passed):
            fault = self.interview.fault if self.interview is not None else ""
            self.broken += bool(fault)
            passed = report.passed and not fault
            why = fault or _why(report, self.purposes.get(report.nodeid, ""))
            self._send(ends=_name(report.nodeid), passed=passed, why=why, of_case=not fault)

    def _send(self, **message: Any) -> None:
        rest = memoryview(json.dumps(message).encode() + b"\n")
        while rest:
            rest = rest[os.write(self.out, rest) :]


def _name(nodeid: str) -> str:
    """A test's class, if it has one, its function and its parameters."""
    return nodeid.partition("::")[2]


def _in_words(item: pytest.Item) -> str:
    """What a test is for: the first line of its docstring, or its name in words."""
    written = getattr(getattr(item, "function", None), "__doc__", None) or ""
    name = _name(item.nodeid).partition("[")[0].rpartition("::")[2].removeprefix("test_")
    return next(iter(written.strip().splitlines()), "") or name.replace("_", " ")


def _why(report: pytest.TestReport, purpose: str) -> str:
    """What a test that fails says, without the way there: a sentence in the first line.

    Args:
        purpose: what the test is for; said where an assertion has no words of its own.
    """
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # skipped: file, line, reason
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    said = str(crash.message if crash else report.longrepr)
    said = said.removeprefix("Failed: ").removeprefix("AssertionError: ")
    if said.startswith(("assert ", "AssertionError")):
        return f"{purpose.rstrip('.')}: this does not hold\n{said}"
    return _CODE.sub("", said)
