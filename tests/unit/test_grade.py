"""Grades: whatever a student's file does, there is one, with a reason in one line."""

from __future__ import annotations

import json
import math
import random
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from support.handouts import ASSIGNMENTS, FIT_STUB, LRU_STUB, SOLUTION

import ooctrain as oc
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.bump import Bump
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.replay import peak_bytes
from ooctrain.cli import main
from ooctrain.course import measures as measuring
from ooctrain.course.assignments import ASSIGNMENTS as ASSIGNMENT_NAMES
from ooctrain.course.grade import COMPARED, Grade, Row
from ooctrain.course.interview import Interview
from ooctrain.course.measures import budget_bytes_of, measured, par_us
from ooctrain.course.remote import plan_in_answer
from ooctrain.course.replays import (
    addresses_given,
    extent_bytes,
    log_of,
    par_bytes,
    replayed,
)
from ooctrain.course.rubric import RUBRIC, Measure, Replay, points_for, read_rubric
from ooctrain.course.submitted import Introduced, introduced
from ooctrain.errors import ConfigError
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.units import format_bytes

TEST_FILE = """
def test_it_has_a_name(planner):
    assert planner.name


def test_it_is_called_right(planner):
    assert planner.name == "right"


def test_that_does_not_count(planner):
    raise AssertionError
"""
TOML = """
kind = "planner"
submission = "mine.py:Mine"
pass_points = 50
time_limit_s = {limit_s}

[laws]
points = 40
examples = 1

[tests]
file = "test_name.py"

[tests.points]
test_it_has_a_name = 15
test_it_is_called_right = 25

[[measures]]
model = "lenet"
batch = 8
budget = "50%"
machine = "v100-pcie"
ranges = false
par = "lru"
full_ratio = 1.05
none_ratio = 1.5
points = 20
"""
MINE = f"""{LRU_STUB}
{SOLUTION}

class Mine(Solved):
    name = "mine"

    def plan(self, question):
        DEED
        return super().plan(question)
"""
MEASURE = Measure("lenet", 8, "50%", "v100-pcie", False, "lru", 1.05, 1.5, 4)


def assignment(folder, deed="pass", limit_s=60):
    (folder / RUBRIC).write_text(TOML.format(limit_s=limit_s))
    (folder / "test_name.py").write_text(TEST_FILE)
    (folder / "mine.py").write_text(MINE.replace("DEED", deed))
    return folder


def graded(folder, *arguments):
    """(status, numbers) of the command."""
    numbers = folder / "grade.json"
    status = main(["grade", str(folder), *arguments, "--json", str(numbers)])
    return status, json.loads(numbers.read_text())


def quick(kinds, *chosen):
    """All kinds; those that are not chosen are left to the long tests, as each is a process."""
    return [
        kind if kind in chosen else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds
    ]


def reasons(numbers, kind):
    return [row["reason"] for row in numbers["rows"] if row["kind"] == kind]


@pytest.mark.slow
def test_each_part_has_its_points_and_a_reason_where_some_are_missing(tmp_path, capsys):
    status, numbers = graded(assignment(tmp_path))
    assert status == 0
    assert (numbers["points"], numbers["most_points"], numbers["passed"]) == (75, 100, True)
    lost = [row for row in numbers["rows"] if row["points"] < row["most_points"]]
    assert [(row["name"], row["points"]) for row in lost] == [("test_it_is_called_right", 0)]
    assert lost[0]["reason"] == "it is called right: this does not hold"
    assert "'mine' == 'right'" in lost[0]["details"]
    assert "0.85 x the library's lru" in reasons(numbers, "measure")[0]
    shown = capsys.readouterr().out
    assert "75 of 100 points, passed" in shown
    assert "that_does_not_count" not in shown


@pytest.mark.slow
def test_a_planner_that_never_ends_loses_its_points_in_one_line_each(tmp_path, capsys):
    status, numbers = graded(assignment(tmp_path, "while True: pass", limit_s=1))
    assert status == 4
    laws = reasons(numbers, "law")
    assert laws[0] == "it did not end within 1 s"
    assert "not tried" in laws[-1]
    assert reasons(numbers, "measure") == ["it did not end within 1 s"]
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err


@pytest.mark.slow
def test_a_planner_that_tears_its_process_down_loses_no_points_but_its_own(tmp_path):
    deed = "if len(trace.calls) > 30: __import__('os')._exit(7)"
    status, numbers = graded(assignment(tmp_path, deed))
    assert status == 0, "the laws' traces are short"
    assert "status 7" in reasons(numbers, "measure")[0]
    assert numbers["points"] == 55


WRITES = """object.__setattr__(trace.variables[0], 'name', 'mine')
        trace.__dict__.pop('fingerprint', None)"""


@pytest.mark.slow
def test_a_planner_that_writes_to_its_input_is_told_by_its_law(tmp_path):
    _, numbers = graded(assignment(tmp_path, WRITES))
    (pure,) = (row for row in numbers["rows"] if row["name"] == "planning is pure")
    assert pure["points"] == 0
    assert "changes the trace or the machine that it is given" in pure["reason"]
    assert "trace of" in pure["details"]


BROKEN = {
    "syntax": ("def f(:", "your own code raised SyntaxError"),
    "import": ("import no_such_module", "your own code raised ModuleNotFoundError"),
    "no class": ("x = 3", "defines no 'Mine'"),
    "never loaded": ("while True: pass", "did not end within 1 s"),
    "leaves": ("import sys; sys.exit(3)", "ended with status 3"),
}


@pytest.mark.parametrize("kind", quick(BROKEN, "syntax", "leaves"))
def test_a_file_that_cannot_be_loaded_is_one_row_and_no_points(kind, tmp_path, capsys):
    content, told = BROKEN[kind]
    assignment(tmp_path, limit_s=1)
    (tmp_path / "mine.py").write_text(content)
    status, numbers = graded(tmp_path)
    assert status == 4
    (row,) = numbers["rows"]
    assert (row["kind"], row["points"], row["most_points"]) == ("file", 0, 100)
    assert told in row["reason"]
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path, capsys):
    assert main(["grade", str(assignment(tmp_path)), "none.py:Mine"]) == 2
    assert "there is no Python file" in capsys.readouterr().err


def planner_file(folder, body):
    path = folder / "own.py"
    path.write_text(MINE.replace("DEED", textwrap.indent(body, " " * 8).strip()))
    return f"{path}:Mine"


LIES = """
from dataclasses import replace
plan = super().plan(question)
"""
DISHONEST = {
    "nothing": ("return None", "returned NoneType, not a Plan"),
    "a faster claim": (LIES + "return replace(plan, makespan_us=1.0)", "its list is refused"),
    "half a list": (
        LIES + "half = plan.schedule.instructions[:20]\n"
        "return replace(plan, schedule=replace(plan.schedule, instructions=half))",
        "its list is refused",
    ),
    "a list in parts": (
        LIES + "from ooctrain.units import Granule\n"
        "return replace(plan, schedule=replace(plan.schedule, granule=Granule(1, True)))",
        "it is made for",
    ),
    "its own ledger": (
        LIES + "import ooctrain.sched.ledger as books\nfor name in list(vars(books)):\n"
        "    setattr(books, name, lambda *a, **k: None)\n"
        "return replace(plan, schedule=replace(plan.schedule, instructions=()))",
        "its list is refused",
    ),
    "an error": ("return 1 / 0", "your own code raised ZeroDivisionError"),
    "no plan": (
        "from ooctrain.errors import Infeasible\nraise Infeasible('x', minimum_bytes=1 << 40)",
        "it wants 1.00 TiB",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", quick(DISHONEST, "a faster claim", "its own ledger"))
def test_what_a_planner_claims_counts_for_nothing(kind, tmp_path):
    body, told = DISHONEST[kind]
    found = measured(MEASURE, planner_file(tmp_path, body), 60)
    assert found.ratio is None
    assert told in found.why
    assert "\n" not in found.why


STRANGE = [
    {}, 3, None, [], "plan", {"plan": None}, {"plan": {"rewrites": 3}}, {"plan": {"rewrites": [3]}},
    {"plan": {"rewrites": [], "version": 1}}, {"refusal": None}, {"refusal": {}},
    {"refusal": {"kind": "Infeasible", "minimum_bytes": 10**400}},
    {"refusal": {"kind": "Infeasible", "minimum_bytes": "\n" * 99}},
    {"refusal": {"kind": "Infeasible", "minimum_bytes": -1, "what": "\x1b[31m"}},
]  # fmt: skip


@pytest.mark.parametrize("answer", STRANGE)
def test_whatever_a_process_answers_there_is_a_measure(answer, monkeypatch, tmp_path):
    def ask(interview, question, called=None):
        return {"name": "strange"} if question["ask"] == "name" else answer

    monkeypatch.setattr(Interview, "ask", ask)
    found = measured(MEASURE, planner_file(tmp_path, "pass"), 60)
    assert found.ratio is None
    assert 0 < len(found.why) < 120
    assert found.why.isprintable()


#: Plans with one part that no plan has; all else is what an honest planner says.
TWISTED = {
    "not a number": ("makespan_us", float("nan")),
    "infinite": ("makespan_us", 1e999),
    "a negative size": ("peak_bytes", -1),
    "a size beyond all memory": ("host_peak_bytes", 1 << 70),
    "a word": ("peak_bytes", "0"),
    "true": ("peak_bytes", True),
    "another trace": ("trace_fingerprint", "0" * 32),
    "another version": ("version", 2),
    "rewrites without end": ("rewrites", ["fuse"] * 1000),
    "a rewrite that there is not": ("rewrites", ["free"]),
    "no list": ("schedule", {}),
    "instructions that are none": ("instructions", [["run", "0", None]]),
    "negative bytes": ("instructions", [["in", 0, -8, 0]]),
    "bytes beyond all memory": ("instructions", [["in", 0, 0, 1 << 80]]),
    "a call that there is not": ("instructions", [["run", 1 << 40, None]]),
    "nothing": ("instructions", []),
}


@pytest.mark.parametrize("twist", TWISTED)
def test_a_plan_is_taken_apart_before_it_is_believed(twist):
    step, where = measuring.step_of(MEASURE), oc.machine("v100-pcie")
    plan = get_planner("lru").plan(
        Question(
            step, measuring.budget_bytes_of(MEASURE), where, granule=measuring.granule_of(MEASURE)
        )
    )
    data = json.loads(json.dumps(plan.to_json()))
    part, wrong = TWISTED[twist]
    (data["schedule"] if part == "instructions" else data)[part] = wrong
    with pytest.raises((oc.OoctrainError, IndexError, ValueError)):
        measuring._judged_us(MEASURE, plan_in_answer(data, step))


@pytest.mark.slow
def test_a_test_in_a_class_counts_too(tmp_path):
    assignment(tmp_path)
    methods = textwrap.indent(TEST_FILE.replace("(planner", "(self, planner"), "    ")
    (tmp_path / "test_name.py").write_text(f"class TestMine:\n{methods}")
    _, numbers = graded(tmp_path)
    tests = {row["name"]: row for row in numbers["rows"] if row["kind"] == "test"}
    assert tests["TestMine::test_it_has_a_name"]["points"] == 15
    assert "'mine' == 'right'" in tests["TestMine::test_it_is_called_right"]["details"]


def test_a_slower_planner_is_measured_against_par():
    found = measured(MEASURE, "naive", 60)
    step, budget_bytes = measuring.step_of(MEASURE), measuring.budget_bytes_of(MEASURE)
    machine, granule = oc.machine("v100-pcie"), measuring.granule_of(MEASURE)
    plan = get_planner("naive").plan(Question(step, budget_bytes, machine, granule))
    assert found.needed == plan.makespan_us > found.par == par_us(MEASURE)
    assert par_us(MEASURE, "bound") <= par_us(MEASURE)


def test_points_fall_evenly_between_the_two_ratios():
    assert points_for(MEASURE, 0.9) == points_for(MEASURE, 1.05) == 4
    assert points_for(MEASURE, 1.275) == 2
    assert points_for(MEASURE, 1.5) == points_for(MEASURE, 9.0) == 0


WRONG_RUBRICS = {
    "no rubric": (None, None, "No such file"),
    "no TOML": ("submission", "submission =", "is not a rubric"),
    "an unknown word": ("examples", "exmaples", "exmaples"),
    "a missing word": ('par = "lru"\n', "", "par"),
    "points that cannot pass": ("pass_points = 50", "pass_points = 199", "199 of 100"),
    "no points to pass": ("pass_points = 50", "pass_points = 0", "0 of 100"),
    "half a point below nothing": (
        "_name = 15\ntest_it_is_called_right = 25",
        "_name = -0.5\ntest_it_is_called_right = 40.5",
        "below 0",
    ),
    "ratios in no order": ("none_ratio = 1.5", "none_ratio = 1.0", "full_ratio < none_ratio"),
    "points that are not a hundred": ("it_has_a_name = 15", "it_has_a_name = 16", "101 in all"),
    "points below nothing": (
        "_name = 15\ntest_it_is_called_right = 25",
        "_name = -15\ntest_it_is_called_right = 55",
        "below 0",
    ),
    "a test that is missing": (
        "test_it_is_called_right",
        "test_it_is_caled_right",
        "test_it_is_called_right",
    ),
    "a required test that is missing": (
        "[tests.points]",
        'required = ["test_x"]\n[tests.points]',
        "no test 'test_x'",
    ),
    "a hidden test without points": (
        "[tests.points]",
        'hidden = ["test_that_does_not_count"]\n[tests.points]',
        "no points",
    ),
    "a required law that is missing": (
        "examples = 1",
        'examples = 1\nrequired = ["P1"]',
        "no law 'P1'",
    ),
    "no such tests": ("test_name.py", "other.py", "'other.py'"),
    "no such kind": ('kind = "planner"', 'kind = "device"', "there is no other"),
    "a planner's measure": ('kind = "planner"', 'kind = "allocator"', "there is no other"),
    "no time": ("time_limit_s = 60", "time_limit_s = 0", "above 0"),
    "words for numbers": ("pass_points = 50", 'pass_points = "ten"', "is not a rubric"),
}


@pytest.mark.parametrize("kind", WRONG_RUBRICS)
def test_a_rubric_that_cannot_be_is_one_clear_block(kind, tmp_path, capsys):
    before, after, told = WRONG_RUBRICS[kind]
    assignment(tmp_path)
    path = tmp_path / RUBRIC
    if before is None:
        path.unlink()
    else:
        path.write_text(path.read_text().replace(before, after, 1))
    assert main(["grade", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "[OOC-119]" in shown
    assert told in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("name", ASSIGNMENT_NAMES)
def test_an_assignment_s_rubric_counts_a_hundred_points(name):
    rubric = read_rubric(ASSIGNMENTS / name)
    assert rubric.most_points == 100
    assert (rubric.folder / rubric.submission.partition(":")[0]).is_file()
    source = (rubric.folder / rubric.tests.file).read_text()
    assert all(f"def {name}(" in source for name in rubric.tests.points)


@pytest.mark.parametrize(("least", "right"), [(0, False), (0.5, True), (100, True), (101, False)])
def test_a_grade_passes_with_some_and_at_most_all_points(least, right, tmp_path):
    assignment(tmp_path)
    path = tmp_path / RUBRIC
    path.write_text(path.read_text().replace("pass_points = 50", f"pass_points = {least}", 1))
    with nullcontext() if right else pytest.raises(ConfigError):
        assert read_rubric(tmp_path).pass_points == least


def test_a_rubric_s_folder_must_be_one():
    with pytest.raises(ConfigError, match="not a rubric"):
        read_rubric(Path("nowhere"))


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_submission_has_so_much_memory_and_no_more(tmp_path):
    (tmp_path / "greedy.py").write_text(
        "import numpy as np\nclass Greedy:\n    name = 'greedy'\n"
        "    def __init__(self): self.all = np.ones(6 << 30, np.uint8)\n"
    )
    found = introduced(f"{tmp_path / 'greedy.py'}:Greedy", "planner", 60)
    assert "allocate 6.00 GiB" in found.fault


def test_a_planner_of_the_library_can_be_graded(tmp_path):
    assert introduced("lru", "planner", 60) == Introduced("", ())
    assert measured(MEASURE, "lru", 60).ratio == 1
    refused = measured(MEASURE, "keep-all", 60)
    assert (refused.ratio, refused.unsafe, len(refused.why.splitlines())) == (None, False, 1)
    assert format_bytes(budget_bytes_of(MEASURE)) in refused.why


@pytest.mark.parametrize(("kind", "right", "wrong"), [
    ("planner", "lru", "lruu"), ("allocator", "best-fit", "bestfit"), ("law", None, "any"),
    ("bands", None, "any"),
])  # fmt: skip
def test_of_the_library_there_are_planners_and_allocators_by_name(kind, right, wrong):
    assert right is None or introduced(right, kind, 60) == Introduced("", ())
    with pytest.raises(ConfigError):
        introduced(wrong, kind, 60)


def test_an_allocator_that_cannot_be_made_has_a_fault(tmp_path):
    for harm, fault in (("", ""), ("        raise ValueError('not today')\n", "not today")):
        path = tmp_path / f"own{len(fault)}.py"
        path.write_text(
            f"{FIT_STUB}\n\nclass Mine(Fit):\n    def __init__(self, memory):\n{harm}"
            "        super().__init__(memory)\n"
        )
        found = introduced(f"{path}:Mine", "allocator", 60)
        assert fault in found.fault
        assert bool(found.fault) == bool(fault)
        assert found.isolation


REPLAY = Replay("lenet", 8, "50%", "v100-pcie", "lru", "best-fit", 1.02, 1.5, 4)


def test_addresses_are_judged_without_the_allocator_that_gave_them():
    log = log_of(REPLAY)
    least_bytes = peak_bytes(log.requests)
    arena = DryMemory(8 * least_bytes)
    addresses = addresses_given(log, BestFit(arena))
    assert extent_bytes(log, addresses) == par_bytes(REPLAY) >= least_bytes
    assert extent_bytes(log, addresses_given(log, Bump(arena))) > par_bytes(REPLAY)
    with pytest.raises(ValueError, match="which is live"):
        extent_bytes(log, [0] * len(addresses))
    with pytest.raises(ValueError, match="addresses for"):
        extent_bytes(log, addresses[:-1])
    for wrong in (float(addresses[0]), True, -1, 1 << 62, 10**400):
        with pytest.raises(ValueError, match="whole number of bytes"):
            extent_bytes(log, [wrong, *addresses[1:]])


#: {what an allocator does besides: (whether it is unsafe, a word of the reason)}
HARMS = {
    "block.address = 1 << 20": (True, "which is live"),
    "raise ValueError('not today')": (False, "not today"),
    "raise OutOfDeviceMemory('full')": (False, "full"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_an_allocator_that_does_harm_in_a_real_step_gets_no_points_for_it(harm, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        f"{FIT_STUB}\n\nfrom ooctrain.errors import OutOfDeviceMemory\n\nclass Mine(Fit):\n"
        "    def allocate(self, nbytes, tag=''):\n"
        f"        block = super().allocate(nbytes, tag)\n        {harm}\n"
        "        return block\n\n    def free(self, block, after=()):\n        pass\n"
    )
    found = replayed(REPLAY, f"{path}:Mine", 60)
    assert (found.ratio, found.unsafe) == (None, HARMS[harm][0])
    assert HARMS[harm][1] in found.why
    assert len(found.why.splitlines()) == 1


def test_an_allocator_of_the_library_is_compared_with_par():
    log = log_of(REPLAY)
    bound = par_bytes(replace(REPLAY, par="bound"))
    assert bound == peak_bytes(log.requests)
    assert replayed(REPLAY, "best-fit", 60).ratio == 1
    assert replayed(replace(REPLAY, par="bound"), "best-fit", 60).ratio == par_bytes(REPLAY) / bound


@pytest.mark.parametrize("seed", range(30))
def test_a_grade_is_what_its_rows_say(seed):
    """In the order of the rows, with required ones among them, compared ones with and without a
    ratio, and any number of points to pass."""
    rng = random.Random(seed)
    rows = []
    for number in range(rng.randrange(7)):
        kind = rng.choice(("law", "test", "bug", *COMPARED))
        ratio = rng.choice((None, 0.5, 2.0, 8.0, 8.0)) if kind in COMPARED else None
        points, unsafe = rng.choice((0.0, 1.25, 7.04)), rng.random() < 0.1
        rows.append(Row(kind, f"row {number}", points, points + rng.randrange(3), ratio=ratio,
                        unsafe=unsafe))  # fmt: skip
    enough = rng.choice((0.0, 0.5, 1.25, 5.0, 7.0, 20.0))
    found, total = Grade("me", tuple(rows), enough), sum(row.points for row in rows)
    broken = [row.name for row in rows if row.unsafe]
    assert found.unsafe == ", ".join(broken)
    limit = total if not broken else min(total, enough - 1 if enough > 1 else 0)
    assert found.points == pytest.approx(limit, abs=0.051)
    assert found.points == round(found.points, 1)
    assert found.most_points == pytest.approx(sum(row.most_points for row in rows), abs=0.051)
    assert found.passed == (not broken and found.points >= enough)
    ratios = [row.ratio for row in rows if row.kind in COMPARED]
    if not ratios or None in ratios:
        assert found.ratio is None
    else:
        assert found.ratio == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
