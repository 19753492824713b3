"""The assignments are fair: a stub fails the expected tests only, and solutions pass all."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from support.handouts import (
    AGAIN,
    AGAIN_STUB,
    AHEAD,
    AHEAD_STUB,
    ASSIGNMENTS,
    BOOKS,
    BOOKS_STUB,
    FITTING,
    IN_BANDS,
    LRU_STUB,
    ROWS_STUB,
    SOLUTION,
)

from ooctrain.cli import main
from ooctrain.course.assignments import ASSIGNMENTS as NAMES
from ooctrain.course.rubric import read_rubric

FOLDER = ASSIGNMENTS / "lru_planner"
#: What the handout asks for, and the stub does not do yet.
EXPECTED = {
    "test_the_least_budget_is_the_largest_call",
    "test_it_plans_with_the_least",
    "test_the_least_recently_used_leaves",
    "test_a_value_with_a_copy_leaves_without_another",
    *(f"test_hidden_reads[{number}]" for number in range(5)),
    "test_par[25%]",
    "test_par[50%]",
}


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "solution", ["lru", pytest.param("by the handout", marks=pytest.mark.slow)]
)
def test_a_solution_passes_all(solution, tmp_path):
    if solution != "lru":
        path = tmp_path / "solved.py"
        path.write_text((FOLDER / "lru.py").read_text() + SOLUTION)
        solution = f"{path}:Solved"
    assert set(public_tests("--planner", solution).values()) == {"PASSED"}


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_the_stub_of_best_fit_fails_exactly_what_is_asked_for():
    found = public_tests(folder=BEST_FIT)
    assert {name for name, outcome in found.items() if outcome == "FAILED"} == LACKING
    assert set(found.values()) == {"PASSED", "FAILED"}


@pytest.mark.slow
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


TILING = FOLDER.parent / "tiling"
#: What its handout asks for, and its stub does not do yet.
WAITING = {
    "test_a_border_recedes_by_the_halo", "test_at_the_bottom_all_rows_are_there",
    "test_strides_and_poolings", "test_only_rows_that_are_read_again_stay",
    "test_a_row_that_two_layers_wait_for",
}  # fmt: skip


def bands_file(path, solution=IN_BANDS):
    file = path / "solved.py"
    file.write_text(ROWS_STUB + solution)
    return f"{file}:Solved"


@pytest.mark.slow
def test_the_stub_of_tiling_fails_exactly_what_is_asked_for():
    found = public_tests(folder=TILING)
    failed = {name.partition("[")[0] for name, outcome in found.items() if outcome == "FAILED"}
    assert failed == WAITING
    assert set(found.values()) == {"PASSED", "FAILED"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "17"])
def test_bands_by_the_handout_get_all_points(seed, tmp_path):
    submitted = bands_file(tmp_path)
    assert grade_of(tmp_path, submitted, "--seed", seed, folder=TILING)[:2] == (0, 100)


@pytest.mark.slow
def test_the_stub_of_tiling_does_not_pass(tmp_path):
    status, points, rows = grade_of(tmp_path, folder=TILING)
    assert status == 4
    assert points == 44, "the laws, what stays as it is, and no row computed twice"
    assert rows["vgg16, 256 rows, 16 bands: work"] == 15
    assert rows["vgg16, 256 rows, 16 bands: peak"] == 0


#: Slips in a solution: its points, and what is said of one of them.
SLIPS = {
    "one kept row short": (
        "max(0, done * stride - padding)", "max(0, done * stride - padding + 1)",
        "rows are there", "read row",
    ),
    "padding in the middle of the image": (
        "(rows + padding - kernel)", "(rows + 2 * padding - kernel)", "rows are there", "read row"
    ),
    "everything stays": (
        "return max(0, done * stride - padding)", "return 0",
        "vgg16, 256 rows, 16 bands: peak", "x the library's frontiers; all points up to",
    ),
    "the stride forgotten": (
        "// stride + 1)) if rows", "+ 1)) if rows", "rows are there", "read row"
    ),
    "the last row forgotten": (
        "if rows == height:", "if rows > height:", "rows are there", "is never computed"
    ),
    "another answer each time": (
        "kernel, stride, padding = layer\n        return max(0, done",
        "kernel, stride, padding = layer\n        self.asked = getattr(self, 'asked', 0) + 1\n"
        "        return max(0, done - self.asked % 3 + 0 * done",
        "asked twice", "asked twice, it answers differently",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_costs_points_and_says_why(slip, tmp_path):
    right, wrong, row, said = SLIPS[slip]
    assert IN_BANDS.count(right) == 1
    numbers = tmp_path / "grade.json"
    main(["grade", str(TILING), bands_file(tmp_path, IN_BANDS.replace(right, wrong)),
          "--json", str(numbers)])  # fmt: skip
    found = json.loads(numbers.read_text())
    assert found["points"] < 100
    (lost,) = (part for part in found["rows"] if part["name"] == row)
    assert lost["points"] < lost["most_points"]
    assert said in lost["reason"]


@pytest.mark.slow
def test_who_computes_halos_again_has_fewer_points_for_work(tmp_path):
    """Rows that the next band reads again are computed again: legal, but no row of it is free."""
    again = """
    def rows(self, layers, cuts):
        found = super().rows(layers, cuts)
        for band in found[1:]:
            for i in range(1, len(layers) + 1):
                band[i][0] = max(0, band[i][0] - 1)
        return [[[lo, hi, max(0, keep - 3)] for lo, hi, keep in band] for band in found]
"""
    _, points, rows = grade_of(tmp_path, bands_file(tmp_path, IN_BANDS + again), folder=TILING)
    assert points < 100
    assert rows["vgg16, 256 rows, 16 bands: work"] < 15


def test_the_handout_of_tiling_names_every_public_test():
    handout, tests = ((TILING / name).read_text() for name in ("README.md", "test_rows.py"))
    for name in re.findall(r"^def (test_\w+)", tests, re.MULTILINE):
        assert f"`{name}`" in handout


@pytest.mark.slow
def test_par_of_tiling_is_printed():
    shown = subprocess.run(
        [sys.executable, "par.py"], cwd=TILING, capture_output=True, text=True, check=True
    ).stdout
    par, untiled, again = shown.splitlines()[1:]
    assert par.split()[-3] == untiled.split()[-3] == "1.00"
    assert float(again.split()[-1]) > 3


# The window, recomputation, the law of allocators

STUBS = {"window_planner": AHEAD_STUB, "recompute_chain": AGAIN_STUB, "allocator_law": BOOKS_STUB}
SOLVED = {"window_planner": AHEAD, "recompute_chain": AGAIN, "allocator_law": BOOKS}
#: What the handout asks for and the stub does not do yet, and the points that the stub has.
STILL = {
    "window_planner": (
        {
            "test_nothing_moves_where_all_fits", "test_what_comes_again_soon_stays",
            "test_what_comes_next_is_fetched_while_a_call_runs", "test_hidden_steps", "test_bound",
        },
        20,
    ),
    "recompute_chain": (
        {
            "test_nothing_is_sent_to_the_host", "test_a_chain_fits_in_the_root_of_its_memory",
            "test_no_call_runs_more_than_twice", "test_hidden_chains", "test_par",
        },
        20,
    ),
    "allocator_law": (
        {
            "test_a_block_beyond_the_end_is_seen", "test_blocks_on_each_other_are_seen",
            "test_holes_that_do_not_melt_are_seen", "test_a_wrong_refusal_is_seen",
            "test_a_lost_byte_is_seen",
        },
        15,
    ),
}  # fmt: skip
#: The least that a solution by the handout gets, whatever the seed.
BY_HANDOUT = {"window_planner": 88, "recompute_chain": 99, "allocator_law": 85}


def solved_file(path, name):
    file = path / "solved.py"
    file.write_text(STUBS[name] + SOLVED[name])
    return f"{file}:Solved"


@pytest.mark.slow
@pytest.mark.parametrize("name", STUBS)
def test_a_stub_fails_exactly_what_is_asked_for(name, tmp_path):
    wanted, most = STILL[name]
    found = public_tests(folder=ASSIGNMENTS / name)
    failed = {test.partition("[")[0] for test, outcome in found.items() if outcome == "FAILED"}
    assert failed == wanted
    status, points, _ = grade_of(tmp_path, folder=ASSIGNMENTS / name)
    assert (status, points) == (4, most)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "17"])
@pytest.mark.parametrize("name", STUBS)
def test_a_solution_by_the_handout_passes_well(name, seed, tmp_path):
    status, points, _ = grade_of(
        tmp_path, solved_file(tmp_path, name), "--seed", seed, folder=ASSIGNMENTS / name
    )
    assert status == 0
    assert points >= BY_HANDOUT[name]


@pytest.mark.slow
def test_a_better_plan_earns_more(tmp_path):
    """Demand paging, a window, and the one that knows what is needed last, on the same steps."""
    folder = ASSIGNMENTS / "window_planner"
    had = {}
    for name in ("naive", "lru", "window", "belady"):
        _, _, rows = grade_of(tmp_path, name, folder=folder)
        had[name] = sum(rows[part] for part in rows if ", batch " in part)
    assert had["naive"] < had["lru"] < had["window"] <= had["belady"]


@pytest.mark.slow
def test_first_in_first_out_does_not_pass_for_lru(tmp_path):
    path = tmp_path / "fifo.py"
    path.write_text(LRU_STUB + SOLUTION.replace("                recent.pop(variable, None)\n", ""))
    status, points, _ = grade_of(tmp_path, f"{path}:Solved")
    assert status == 4
    assert points <= 60


@pytest.mark.slow
def test_a_law_that_stops_everything_kills_nothing(tmp_path):
    path = tmp_path / "never.py"
    path.write_text(
        "class Law:\n    name = 'never'\n\n    def check(self, arena, rng):\n        assert False\n"
    )
    _, _, rows = grade_of(tmp_path, f"{path}:Law", folder=ASSIGNMENTS / "allocator_law")
    assert sum(rows[row] for row in rows if not row.startswith("test_")) <= 5, "asked twice"


@pytest.mark.parametrize("name", STUBS)
def test_a_handout_names_every_public_test(name):
    folder = ASSIGNMENTS / name
    handout = (folder / "README.md").read_text()
    tests = (folder / read_rubric(folder).tests.file).read_text()
    for test in re.findall(r"^def (test_\w+)", tests, re.MULTILINE):
        assert f"`{test}`" in handout


def test_every_assignment_is_in_the_table_and_has_a_handout():
    assert {path.parent.name for path in ASSIGNMENTS.glob("*/grade.toml")} == set(NAMES)
    assert all((ASSIGNMENTS / name / "README.md").is_file() for name in NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["window_planner", "recompute_chain"])
def test_par_of_the_planners_is_printed(name):
    done = subprocess.run(
        [sys.executable, "par.py"], cwd=ASSIGNMENTS / name, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 1 + len(read_rubric(ASSIGNMENTS / name).measures)
