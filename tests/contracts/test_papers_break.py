"""Each row of docs/papers.md names a test that fails when the function it names does not work.

A test that passes although the function raises says nothing about it
(`support/broken.py`, where also what a class and a table without their work are).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from contracts.test_papers_map import PAPER_ROWS, quoted

ROOT = Path(__file__).resolve().parents[2]
#: What computes values on the cpu device, whatever the operation.
KERNELS = "ooctrain.layers.kernels.kernel_table.KernelTable.run"
#: Their tests start ranks, which are processes of their own and not broken with this one.
IN_OTHER_PROCESSES = {"004 Section 6.4, T_epoch"}


def named() -> dict[tuple[str, tuple[str, ...]], list[str]]:
    """{(function, its tests): the rows that name both}."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for row in PAPER_ROWS:
        tests = tuple(quoted(row.cells[3]))
        for function in quoted(row.cells[2]) if tests else ():
            found.setdefault((function, tests), []).append(str(row))
    return found


def broken(pairs: Sequence[tuple[str, Sequence[str]]]) -> list[bool]:
    """For each pair of a function and tests whether one of them fails without the function."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-m", "support.broken"], input=json.dumps(pairs), cwd=ROOT, text=True,
        capture_output=True, check=True, env={**os.environ, "PYTHONPATH": paths, "CI": "1"},
    )  # fmt: skip
    found: list[bool] = json.loads(done.stdout)
    return found


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@needs_fork
@pytest.mark.slow
def test_each_row_has_a_test_that_fails_without_its_function() -> None:
    pairs = named()
    assert len(pairs) > 90
    noticed = dict(zip(pairs, broken(list(pairs)), strict=True))
    silent = [(row, *pair) for pair, rows in pairs.items() for row in rows if not noticed[pair]]
    assert not silent, "\n".join(map(str, silent))


@needs_fork
@pytest.mark.slow
def test_a_test_of_something_else_is_found_out() -> None:
    """LMS's levels need no window; the sum of a list's sizes needs no machine."""
    levels = ["tests/unit/test_swap_planners.py::test_swapin_ahead_starts_so_many_levels_before_the_reader"]  # noqa: E501  # fmt: skip
    printed = ["tests/unit/test_printed_tables.py::test_table_1_of_paper_000"]
    walk = "ooctrain.sched.planners.window.walk"
    trips = "ooctrain.sched.planners.lms.LevelGraph.trips"
    table = "ooctrain.experiments.paper_004.split_accuracy.PRINTED"
    assert broken([(walk, levels), (trips, levels), (table, printed)]) == [False, True, False]


@needs_fork
@pytest.mark.slow
def test_what_a_row_calls_executed_on_cpu_one_of_its_tests_computes_there() -> None:
    """A test that passes while no kernel of the cpu device can be called has computed nothing."""
    rows = [
        row for row in PAPER_ROWS
        if row.cells[6].startswith("executed on ") and str(row) not in IN_OTHER_PROCESSES
    ]  # fmt: skip
    idle = {str(row): quoted(row.cells[3]) for row in rows}
    # The last one named, which many rows share, mostly computes; then all of the row.
    for pick in (lambda tests: tests[-1:], lambda tests: tests):
        asked = sorted({tuple(pick(tests)) for tests in idle.values()})
        computes = dict(zip(asked, broken([(KERNELS, each) for each in asked]), strict=True))
        idle = {row: tests for row, tests in idle.items() if not computes[tuple(pick(tests))]}
    assert len(rows) > 40
    assert not idle, "\n".join(idle)
