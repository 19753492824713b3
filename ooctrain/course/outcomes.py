"""The pytest plug-in that tells a grader how each test goes, while it goes.

In: `--grading FILE`, a JSON object: which tests count, which are known already, where to write.
Out: a line of JSON for each test that begins and for each that ends. The one idea: a test that
never ends is known by a beginning without an end, so both are written at once and not at the end of
the session. Read next: `checks.py`, which reads the lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

NAME = "ooctrain-outcomes"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option by which a grader is told apart from a person."""
    parser.addoption("--grading", metavar="FILE", help="for `ooctrain grade`")


def pytest_configure(config: pytest.Config) -> None:
    """Listens where a grader asks."""
    path = config.getoption("--grading")
    if path:
        asked = json.loads(Path(path).read_text(encoding="utf-8"))
        config.pluginmanager.register(_Outcomes(asked), NAME)


class _Outcomes:
    """Writes what happens.

    Args:
        asked: `wanted` (names of test functions), `known` (names of tests), `out` (a path).
    """

    def __init__(self, asked: Mapping[str, Any]):
        self.wanted, self.known, self.out = asked["wanted"], asked["known"], Path(asked["out"])

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the tests that count."""
        counted = [item for item in items if getattr(item, "originalname", "") in self.wanted]
        self._tell(collected=[_name(item.nodeid) for item in counted])
        items[:] = [item for item in counted if _name(item.nodeid) not in self.known]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._tell(begins=_name(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test ends: in its own part, or before where it could not begin."""
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self._tell(ends=_name(report.nodeid), passed=report.passed, why=_why(report))

    def _tell(self, **told: Any) -> None:
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


def _name(nodeid: str) -> str:
    """A test's class, if it has one, its function and its parameters."""
    return nodeid.partition("::")[2]


def _why(report: pytest.TestReport) -> str:
    """What a test that fails says, without the way there."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # skipped: file, line, reason
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)
