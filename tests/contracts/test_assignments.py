"""The assignments are fair: a stub fails the expected tests only, and solutions pass all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ooctrain.cli import main

FOLDER = Path(__file__).parents[2] / "tutorials" / "assignments" / "lru_planner"
#: What the handout asks for, and the stub does not do yet.
EXPECTED = {
    "test_the_least_budget_is_the_largest_call",
    "test_it_plans_with_the_least",
    "test_the_least_recently_used_leaves",
    "test_a_value_with_a_copy_leaves_without_another",
    "test_par[25%]",
    "test_par[50%]",
}
#: Whole variables by `ListWriter`, as the handout suggests.
SOLUTION = '''
class Solved(Lru):
    """Evicts."""

    def plan(self, trace, budget_bytes, machine, *, granule=BYTES, **rest):
        least = self.write(trace, 0, granule)
        if least.peak_bytes > budget_bytes:
            raise infeasible(self.name, budget_bytes, least.peak_bytes, least.peak_call)
        return super().plan(trace, budget_bytes, machine, granule=granule, **rest)

    def write(self, trace, budget_bytes, granule):
        writer, recent = writer_with_resident_parameters(trace, granule), {}

        def make_room(size_bytes, call):
            for victim in [v for v in recent if v not in call.touched()]:
                if writer.ledger_bytes + size_bytes > budget_bytes:
                    writer.swap_out(victim)
                    writer.free(victim)
                    del recent[victim]

        for call in trace.calls:
            for variable in dict.fromkeys(call.ins):
                if variable not in writer.resident:
                    make_room(writer.granted(variable), call)
                    writer.swap_in(variable)
            make_room(writer.claim_bytes(call.id), call)
            writer.run(call.id)
            for variable in call.touched():
                recent.pop(variable, None)
                if not trace.variables[variable].persistent:
                    recent[variable] = None
            writer.free_dead(call.id)
            recent = {v: None for v in recent if v in writer.resident}
        return writer
'''


def public_tests(*arguments, folder=FOLDER):
    """{test: "PASSED" or "FAILED"} of an assignment's public tests."""
    plugins = ["-p", "ooctrain.laws.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-v", str(folder), *arguments],
        capture_output=True, text=True, check=False, cwd=folder, timeout=240,
    )  # fmt: skip
    found = dict(re.findall(r"::(\S+) (PASSED|FAILED|ERROR|SKIPPED)", done.stdout))
    assert found, done.stdout + done.stderr
    return found


@pytest.mark.slow
def test_the_stub_fails_exactly_what_is_asked_for():
    found = public_tests()
    assert {name for name, outcome in found.items() if outcome == "FAILED"} == EXPECTED
    assert set(found.values()) == {"PASSED", "FAILED"}


@pytest.mark.parametrize(
    "solution", ["lru", pytest.param("by the handout", marks=pytest.mark.slow)]
)
def test_a_solution_passes_all(solution, tmp_path):
    if solution != "lru":
        path = tmp_path / "solved.py"
        path.write_text((FOLDER / "lru.py").read_text() + SOLUTION)
        solution = f"{path}:Solved"
    assert set(public_tests("--planner", solution).values()) == {"PASSED"}


def test_a_rule_that_is_not_lru_is_recognised(tmp_path):
    path = tmp_path / "fifo.py"
    first_in = SOLUTION.replace("                recent.pop(variable, None)\n", "")
    path.write_text((FOLDER / "lru.py").read_text() + first_in)
    found = public_tests("--planner", f"{path}:Solved", "-k", "leaves")
    assert found["test_the_least_recently_used_leaves"] == "FAILED"


def test_the_handout_names_every_public_test():
    handout, tests = ((FOLDER / name).read_text() for name in ("README.md", "test_lru.py"))
    for name in re.findall(r"^def (test_\w+)", tests, re.MULTILINE):
        assert f"`{name}`" in handout


def grade_of(path, *submission, folder=FOLDER):
    """(status, {row: points}) of `ooctrain grade`."""
    numbers = path / "grade.json"
    status = main(["grade", str(folder), *submission, "--json", str(numbers)])
    found = json.loads(numbers.read_text())
    return status, found["points"], {row["name"]: row["points"] for row in found["rows"]}


def test_the_stub_gets_the_points_of_what_it_does_and_does_not_pass(tmp_path):
    status, points, rows = grade_of(tmp_path)
    assert status == 4
    assert points == 20, "the laws, and staying as it is"
    assert {name for name in rows if name.startswith("test_") and not rows[name]} == {
        name for name in EXPECTED if "par" not in name
    }


@pytest.mark.slow
def test_a_solution_by_the_handout_gets_all_points(tmp_path):
    path = tmp_path / "solved.py"
    path.write_text((FOLDER / "lru.py").read_text() + SOLUTION)
    assert grade_of(tmp_path, f"{path}:Solved")[:2] == (0, 100)


def test_par_is_printed(capsys):
    shown = subprocess.run(
        [sys.executable, "par.py"], cwd=FOLDER, capture_output=True, text=True, check=True
    ).stdout
    rows = [list(map(int, re.findall(r"(\d+) us", line))) for line in shown.splitlines()[1:]]
    assert len(rows) == 2
    for par_us, ahead_us, bound_us in rows:
        assert bound_us <= ahead_us <= par_us


BEST_FIT = FOLDER.parent / "best_fit"
#: What its handout asks for, and its stub does not do yet.
LACKING = {
    "test_a_hole_is_used_again",
    "test_the_smallest_hole_that_takes_it",
    "test_neighbours_melt",
    "test_the_free_end_grows_back",
}
#: By the handout: holes by place; the free end is never among them.
FITTING = '''
class Solved(Fit):
    """Fills holes."""

    def place(self, size_bytes):
        fitting = [(end - lo, lo, end) for lo, end in self.holes if end - lo >= size_bytes]
        if not fitting:
            return super().place(size_bytes)
        _, lo, end = min(fitting)
        self.holes.remove((lo, end))
        if end - lo > size_bytes:
            self.holes = sorted([*self.holes, (lo + size_bytes, end)])
        return lo

    def give_back(self, offset, end):
        for hole in [hole for hole in self.holes if hole[1] == offset or hole[0] == end]:
            self.holes.remove(hole)
            offset, end = min(offset, hole[0]), max(end, hole[1])
        if end == self.top:
            self.top = offset
        else:
            self.holes = sorted([*self.holes, (offset, end)])

    def largest_bytes(self):
        return max([self.budget_bytes - self.top, *(end - lo for lo, end in self.holes)])
'''


def test_the_stub_of_best_fit_fails_exactly_what_is_asked_for():
    found = public_tests(folder=BEST_FIT)
    assert {name for name, outcome in found.items() if outcome == "FAILED"} == LACKING
    assert set(found.values()) == {"PASSED", "FAILED"}


@pytest.mark.parametrize(
    "solution", ["best-fit", pytest.param("by the handout", marks=pytest.mark.slow)]
)
def test_best_fit_gets_all_points(solution, tmp_path):
    if solution != "best-fit":
        path = tmp_path / "solved.py"
        path.write_text((BEST_FIT / "fit.py").read_text() + FITTING)
        solution = f"{path}:Solved"
    assert grade_of(tmp_path, solution, folder=BEST_FIT)[:2] == (0, 100)


@pytest.mark.slow
def test_the_stub_of_best_fit_does_not_pass(tmp_path):
    status, points, rows = grade_of(tmp_path, folder=BEST_FIT)
    assert status == 4
    assert points < 60
    assert {name for name in rows if name.startswith("test_") and not rows[name]} == LACKING


def test_the_handout_of_best_fit_names_every_public_test():
    handout, tests = ((BEST_FIT / name).read_text() for name in ("README.md", "test_fit.py"))
    for name in re.findall(r"^def (test_\w+)", tests, re.MULTILINE):
        assert f"`{name}`" in handout
