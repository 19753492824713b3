"""What a course makes: a grade from beginning to end, a class, autograders, a course wheel.

One small assignment is graded whole, with tests that pass, fail, are hidden, are skipped and end
the submission's process; every row of its grade stands in a table, so that points, reasons, what is
hidden and what is required are seen at once. Files for teachers and for other graders are read
back. `support/known.py` says why such answers are written down.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import random
import time
import zipfile
from base64 import urlsafe_b64encode
from contextlib import nullcontext

import pytest
from support import known
from support.handouts import BOOKS, BOOKS_STUB, IN_BANDS, LRU_STUB, ROWS_STUB, SOLUTION
from support.quick import all_but, quick

from ooctrain.cli import main
from ooctrain.cli.grade_class import item_table
from ooctrain.course.assignments import ASSIGNMENTS, folder_of
from ooctrain.course.autograders import notebook_graders
from ooctrain.course.autograders.gradescope import not_graded, results_of, write_zip
from ooctrain.course.autograders.notebook_graders import (
    part_points,
    parts_of,
    write_nbgrader,
    write_otter,
)
from ooctrain.course.checks import LAST_BYTES, Ended, run_checks, run_tests
from ooctrain.course.classroom import Graded, grade_class, item_statistics, leaderboard, write_class
from ooctrain.course.grade import Grade, Row, grade
from ooctrain.course.handed_in import HandedIn
from ooctrain.course.handout import PACKAGE, stripped_files, write_course_wheel
from ooctrain.course.hunt import BUGS, hunt_with, planted
from ooctrain.course.interview import NoAnswer
from ooctrain.course.outcomes import MOST_BROKEN
from ooctrain.course.rubric import RUBRIC, read_rubric
from ooctrain.errors import OoctrainError

TOML = """
kind = "bands"
submission = "rows.py:Bands"
pass_points = 40
time_limit_s = 20
withheld = ["sched/planners/lru.py"]

[laws]
points = 30
examples = 2

[tests]
file = "test_rows.py"
required = ["test_whole"]
hidden = ["test_hidden"]

[tests.points]
test_hidden = 6
test_whole = 8
test_cases = 10
test_words = 4
test_left_out = 2
test_that_ends = 10

[[footprints]]
model = "lenet"
rows = 32
bands = 4
counts = "work"
par = "frontiers"
full_ratio = 1.05
none_ratio = 3.0
points = 15

[[footprints]]
model = "lenet"
rows = 32
bands = 4
counts = "peak"
par = "frontiers"
full_ratio = 1.05
none_ratio = 3.0
points = 15
"""
TESTS = '''
import pytest


def test_hidden(bands):
    """A layer of width one. It needs no more."""
    assert bands.name == "a hidden number"


class TestAll:
    def test_whole(self, bands):
        """The whole is whole.

        Or it is not.
        """
        assert bands.name == ""


@pytest.mark.parametrize("most", [0, 1, 9])
def test_cases(bands, most):
    assert len(bands.name) > most, f"a name has more than {most} letters"


def test_words(bands):
    raise ValueError("[OOC-999] in words")


def test_left_out(bands):
    pytest.skip("it is too early")


def test_that_ends(bands):
    bands.rows([(1, 1, 0)], [0, 99])


def test_that_does_not_count(bands):
    raise AssertionError
'''
#: It ends its process where an image has 99 rows, and is otherwise right.
ENDS = """
class Ends(Solved):
    name = "bands"

    def rows(self, layers, cuts):
        if 99 in cuts:
            import os

            os._exit(7)
        return super().rows(layers, cuts)


Bands = Ends
"""


@pytest.fixture
def assignment(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / RUBRIC).write_text(TOML)
    (folder / "README.md").write_text("# Small\n")
    (folder / "test_rows.py").write_text(TESTS)
    (folder / "rows.py").write_text(f"{ROWS_STUB}\n{IN_BANDS}\n{ENDS}")
    return folder


def row_of(row: Row) -> tuple[object, ...]:
    """A row without the lengths of reasons in words."""
    ratio = "" if row.ratio is None else f"{row.ratio:.4g}"
    public = "" if row.public is None else "hidden"
    said = len(row.reason.split()), bool(row.details), row.details.startswith(row.reason)
    return row.kind, row.name, row.points, row.most_points, *said, ratio, public, row.unsafe


def test_a_grade_from_beginning_to_end(assignment):
    found = grade(read_rubric(assignment), f"{assignment / 'rows.py'}:Bands", 3)
    known.check_rows("grades", "rows of a grade", map(row_of, found.rows))
    assert (found.points, found.pass_points, found.unsafe) == (39.0, 40, "TestAll::test_whole")
    assert not found.passed


@pytest.mark.parametrize(("end", "status", "last"), quick([
    ("", 1, True), ("os._exit(5)", 5, False),
], 1, names=3))  # fmt: skip
def test_tests_of_a_teacher_that_end_themselves_are_heard_until_then(end, status, last, tmp_path):
    """Of a name of the library's nothing is asked in another process."""
    file = tmp_path / "test_own.py"
    file.write_text(f"import os\n\ndef test_a():\n    pass\n\ndef test_b():\n    {end or 'fail'}\n"
                    f"def test_c():\n    pass\n")  # fmt: skip
    asked = {
        "wanted": ["test_a", "test_b"], "known": [], "hidden": [], "broken": 0,
        "submission": "lru", "kind": "planner", "limit_s": 5,
    }  # fmt: skip
    messages, ended = run_tests(["-q", str(file)], asked, 5)
    kinds = [next(iter(message)) for message in messages]
    ends = ["begins", "ends"] if last else ["begins"]
    assert kinds == ["collected", "begins", "ends", *ends]
    assert messages[0]["collected"] == ["test_a", "test_b"]
    assert messages[2] == {"ends": "test_a", "passed": True, "why": "", "of_case": True}
    assert (ended.status, ended.out_of_time) == (status, False)
    assert ("1 failed" in ended.last_line) == last
    assert len(ended.last_line) <= LAST_BYTES
    assert f"{status}" in ended.why(5)
    assert "125 s" in Ended(0, True, "").why(5)


@pytest.mark.slow
def test_tests_that_cannot_be_run_are_no_fault_of_a_submission(assignment):
    (assignment / "test_rows.py").write_text(f"import nothing_like_it\n{TESTS}")
    with pytest.raises(OoctrainError) as caught:
        run_checks(read_rubric(assignment), "any", 0)
    assert caught.value.code == "OOC-119"
    assert str(assignment / "test_rows.py") in caught.value.fix


# Grades that are made up

ROWS = (
    Row("law", "rows are there", 15.0, 20.0, "short", "short\nlong", public="nothing of it"),
    Row("test", "TestA::test_it[3]", 0.0, 5.0, "no", f"no\n{'x' * 5000}"),
    Row("test", "test_it", 5.0, 5.0), Row("bug", "a", 1.25, 2.5, "1 of 2"),
    Row("bug", "b", 2.5, 2.5), Row("footprint", "lenet", 30.126, 65.0, "2 x par", ratio=2.0),
    Row("footprint", "vgg", 0.0, 0.0, "more", ratio=1.5),
)  # fmt: skip


def made_up(unsafe=False, passing=50.0):
    broken = (Row("law", "one", 0.0, 0.5, "overlap", unsafe=True),) if unsafe else ()
    return Grade("f.py:X", (*broken, *ROWS), passing, ("limits",))


def test_points_of_a_grade_that_is_made_up():
    known.check_rows("grades", "of a grade", [
        (unsafe, passing, found.points, found.most_points, found.unsafe, found.ratio, found.passed)
        for unsafe in (False, True) for passing in (0.5, 50.0, 53.9, 54.0, 90.0)
        for found in [made_up(unsafe, passing)]
    ])  # fmt: skip
    part = Grade("f", (*ROWS, Row("footprint", "x", 0.0, 1.0)), 1.0)
    assert part.ratio is None
    assert Grade("f", (), 0.0).ratio is None


@pytest.mark.parametrize("unsafe", [False, True])
def test_what_gradescope_is_given(unsafe):
    results = results_of(made_up(unsafe))
    known.check_rows("grades", f"gradescope {unsafe}", [
        *((key, value if isinstance(value, float) else len(str(value).split()))
          for key, value in results.items() if key not in ("tests", "leaderboard")),
        *((row["name"], row["value"], row["order"]) for row in results["leaderboard"]),
        *(tuple(len(text) if len(str(text)) > 40 else text for text in test.values())
          for test in results["tests"]),
    ])  # fmt: skip
    assert "leaderboard" not in results_of(Grade("", (), 0.0))
    assert results["stdout_visibility"] == not_graded("")["stdout_visibility"] == "hidden"
    assert len(not_graded("w" * 9000)["output"]) == 4000


def test_what_gradescope_s_zip_holds(assignment, tmp_path):
    (assignment / "__pycache__").mkdir()
    (assignment / "__pycache__" / "x").write_text("")
    write_zip(tmp_path / "small.zip", read_rubric(assignment), 12)
    with zipfile.ZipFile(tmp_path / "small.zip") as packed:
        entries = {e.filename: (e.external_attr >> 16, e.date_time) for e in packed.infolist()}
        missing = json.loads(packed.read("no_file.json"))
        run = packed.read("run_autograder").decode()
    assert {name for name in entries if name.startswith("assignment/")} == {
        f"assignment/{name}" for name in (RUBRIC, "README.md", "test_rows.py", "rows.py")
    }
    runs = {name for name, (mode, _) in entries.items() if mode == 0o755}
    assert runs == {"setup.sh", "run_autograder"}
    assert {mode for mode, _ in entries.values()} == {0o755, 0o644}
    assert {date for _, date in entries.values()} == {(1980, 1, 1, 0, 0, 0)}
    assert "rows.py" in missing["output"]
    assert "Bands" in missing["output"]
    assert "--seed 12" in run
    assert ":Bands" in run


@pytest.mark.parametrize(("part", "points"), [
    ("laws", 15), ("hunts", 3.75), ("test_it", 5), ("lenet", 30.13),
])  # fmt: skip
@pytest.mark.parametrize("unsafe", [False, True])
def test_a_part_of_a_notebook_has_the_points_of_its_rows(
    part, points, unsafe, assignment, monkeypatch
):
    asked = []

    def made(rubric, submission, seed):
        asked.append((submission, seed))
        return made_up(unsafe)

    worth = {"laws": 20.0, "hunts": 5.0, "test_it": 10.0, "lenet": 65.0, "low": 0.5}
    monkeypatch.setattr(notebook_graders, "grade", made)
    monkeypatch.setattr(notebook_graders, "parts_of", lambda rubric: worth)
    had = part_points(str(assignment), str(assignment / "rows.py"), part, 5)
    share = made_up(True).points / sum(row.points for row in ROWS) if unsafe else 1
    assert had == pytest.approx(points * share, abs=0.01)
    again = part_points(str(assignment), str(assignment / "rows.py"), part, 5)
    assert again == had
    assert asked == [(f"{assignment / 'rows.py'}:Bands", 5)]
    nothing = str(assignment / f"none {unsafe} {part}.py")
    monkeypatch.setitem(worth, part, 0.5)
    assert part_points(str(assignment), nothing, part) == 0.5
    assert asked[1] == (f"{nothing}:Bands", 0)


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_an_assignment_for_notebooks(name, tmp_path):
    rubric = read_rubric(folder_of(name))
    write_nbgrader(tmp_path / "nb", rubric, 7)
    notebook = json.loads((tmp_path / "nb" / f"{name}.ipynb").read_text(encoding="utf-8"))
    write_otter(tmp_path / "otter", rubric, 7)
    tests = ast.parse((tmp_path / "otter" / "tests" / f"{name}.py").read_text(encoding="utf-8"))
    known.check_rows("grades", f"notebooks of {name}", [
        *((part, points) for part, points in parts_of(rubric).items()),
        (notebook["nbformat"], notebook["nbformat_minor"], *notebook["metadata"]),
        *((cell["id"], cell["cell_type"], "outputs" in cell, len(cell["source"].splitlines())
           if "part" in cell["id"] else "", *cell["metadata"].get("nbgrader", {}).values())
          for cell in notebook["cells"]),
        *([constant.value for constant in ast.walk(test)
           if isinstance(constant, ast.Constant) and not isinstance(constant.value, str)]
          for test in tests.body),
    ])  # fmt: skip
    parts = [cell["source"] for cell in notebook["cells"] if "part" in cell["id"]]
    assert all("SEED = 7\n" in source for source in parts)
    file = rubric.submission.partition(":")[0]
    calls = [node for node in ast.walk(tests) if isinstance(node, ast.Call)]
    asked = [call for call in calls if getattr(call.func, "id", "") == "part_points"]
    assert {ast.literal_eval(call.args[1]) for call in asked} == {file}
    for folder in ("nb", "otter"):
        copied = {path.name for path in (tmp_path / folder / "assignment").rglob("*")}
        there = {path.name for path in rubric.folder.rglob("*")}
        assert copied == {name for name in there if "pyc" not in name}


# A class

CLASS = (
    Graded("ada", made_up()), Graded("=bob", made_up(True)), Graded("cid", made_up(), "it ended"),
    Graded("dan", Grade("", (Row("file", "can be loaded", 0.0, 100.0, "no file"),), 50.0)),
    Graded("eve", Grade("", tuple(Row(r.kind, r.name, r.most_points, r.most_points, ratio=r.ratio)
                                  for r in ROWS), 50.0)),
)  # fmt: skip


def test_the_files_of_a_class(tmp_path):
    files = write_class(tmp_path / "a" / "b", CLASS)
    for path in files:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        known.check_rows("grades", f"class {path.name}", rows)
    assert [graded.student for graded in leaderboard(CLASS)] == ["eve", "ada", "cid"]
    known.check_rows("grades", "class items", [
        (item.kind, item.name, item.most_points, item.difficulty, item.discrimination)
        for item in item_statistics(CLASS)
    ])  # fmt: skip


def test_the_items_of_a_class_as_they_are_printed():
    table = item_table(CLASS)
    rows = zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    known.check_rows("grades", "class printed", rows)


def test_a_class_without_a_file_has_no_points_and_each_has_a_reason(
    assignment, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    students, out = tmp_path / "students", tmp_path / "out"
    for name in ("ada", "bob", "cid"):
        (students / name).mkdir(parents=True)
        (students / name / "notes.txt").write_text("later")
    command = ["grade", str(assignment), str(students), "--jobs", "3", "--out", str(out)]
    status = main([*command, "--seed", "5", "--json", str(tmp_path / "class.json")])
    found = json.loads((tmp_path / "class.json").read_text())
    assert (status, found["assignment"], found["folder"]) == (0, "small", str(students))
    assert (found["seed"], found["leaderboard"], found["error"]) == (5, [], None)
    assert [tuple(row.values()) for row in found["students"]] == [
        (name, 0.0, 100, False, None, "") for name in ("ada", "bob", "cid")
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[1:] == ["3", "submissions,", "3", "at", "a", "time"]
    said = sorted(line.partition(": 0 of 100, not passed: ") for line in lines[1:4])
    assert [name for name, _, why in said if why] == ["ada", "bob", "cid"]
    assert lines[4] == ""
    notes = [row["note"] for row in csv.DictReader((out / "grades.csv").open())]
    assert all("rows.py" in note for note in notes)
    (out / "items.csv").unlink()
    (out / "items.csv").mkdir()
    assert main(command) == 1


@pytest.mark.slow
def test_a_class_is_graded_as_each_of_it_is(assignment, tmp_path):
    """By a command for each, which may fail as a whole; two students may have one name."""
    rubric, heard = read_rubric(assignment), []
    handed = [
        HandedIn("ada", tmp_path / "nowhere.py"), HandedIn("ada", assignment / "rows.py"),
        HandedIn("bob", None, "nothing"),
    ]  # fmt: skip
    grades = grade_class(rubric, handed, 2, 3, heard.append)
    lost, found, empty = grades
    assert sorted(map(id, heard)) == sorted(map(id, grades))
    known.check_rows("grades", "rows of a grade", map(row_of, found.grade.rows))
    assert (found.student, found.fault, found.grade.pass_points) == ("ada", "", 40)
    assert found.grade.isolation
    assert (lost.student, empty.student, empty.fault) == ("ada", "bob", "")
    for one, why in ((lost, lost.fault), (empty, "nothing")):
        (row,) = one.grade.rows
        assert (row.kind, row.points, row.most_points) == ("file", 0, rubric.most_points)
        assert why
        assert row.reason == why
    assert "status 2" in lost.fault


# Course wheels


def test_what_a_course_wheel_leaves_out_and_brings(assignment, tmp_path):
    wheel = write_course_wheel(tmp_path / "dist", read_rubric(assignment))
    assert wheel.name.endswith("+course.small-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        pars = json.loads(packed.read("ooctrain/course/known_par.json"))
        names = packed.namelist()
        contents = {name: packed.read(name) for name in names}
        left = packed.read("ooctrain/sched/planners/lru.py").decode()
        entries = packed.infolist()
        about = next(name for name in names if name.endswith("/RECORD"))
        record = list(csv.reader(packed.read(about).decode().splitlines()))
    known.check_rows("grades", "par of a wheel", [(*pars.values(),)])
    assert all("points=0," in key or key.endswith("points=0)") for key in pars)
    assert "ooctrain.course.assignments" not in left
    assert [row[0] for row in record] == names
    assert record[-1][1:] == ["", ""]
    assert len(contents) == len(names)
    for name, digest, size in record[:-1]:
        said = urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).decode().rstrip("=")
        assert (digest, int(size)) == (f"sha256={said}", len(contents[name]))
    there = {p.relative_to(PACKAGE.parent).as_posix(): p for p in PACKAGE.rglob("*.py")}
    others = [name for name, path in there.items() if contents[name] != path.read_bytes()]
    assert others == ["ooctrain/sched/planners/lru.py"]
    assert {entry.external_attr >> 16 for entry in entries} == {0o644}
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_DEFLATED}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert main(["course", "strip", str(assignment), "--out", str(tmp_path / "x")]) == 0
    assert [path.name for path in (tmp_path / "x").iterdir()] == [wheel.name]
    (assignment / RUBRIC).write_text(TOML.replace("withheld", "#"))
    assert main(["course", "strip", str(assignment)]) == 2


def test_what_raises_in_files_that_assignments_withhold():
    rows = []
    for name in ASSIGNMENTS:
        for file, text in stripped_files(read_rubric(folder_of(name)).withheld, name).items():
            calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
            raised = [[part.value for part in call.args if isinstance(part, ast.Constant)]
                      for call in calls if getattr(call.func, "id", "") == "_Withheld"]  # fmt: skip
            kinds = [type(node).__name__[0] for node in ast.parse(text).body]
            rows.append((name, file, "".join(kinds), len(raised), known.digest(raised)))
    known.check_rows("grades", "withheld", rows)


# Hunts


def test_the_arenas_of_a_hunt_and_what_a_right_law_says(monkeypatch):
    names: dict[str, object] = {}
    exec(f"{BOOKS_STUB}\n{BOOKS}", names)
    law = names["Solved"]
    rows = []
    for seed in (1, 2):
        found = hunt_with(lambda: nullcontext(law()), 2, seed, random.Random(1))
        rows += [(row.bug, row.killed, row.draws, len(row.why.split())) for row in found]
    known.check_rows("grades", "hunt", rows)
    arenas = []
    for name in BUGS:
        said: list[object] = []
        for seed in range(12):
            rng = random.Random(seed)
            arena, live = planted(name, rng), []
            said.append((arena.size, arena.k))
            for _ in range(150):
                if live and rng.random() < 0.5:
                    block = live.pop(rng.randrange(len(live)))
                    said.append(-block)
                    try:
                        arena.free(block)
                    except KeyError:
                        said.append("K")
                else:
                    # Small ones, large ones, those about as large as a hole, one of the whole.
                    sizes = [1, 2, 3, 4, 5, 7, 9, 16, arena.k + 1, arena.k + 2, arena.size]
                    block = arena.allocate(rng.choice(sizes))
                    said.append(block)
                    live += [block] if block is not None else []
        arenas.append((name, *said[:1], known.digest(said)))
    known.check_rows("grades", "arenas", arenas)


def test_a_hunt_asks_no_more_once_some_have_ended():
    asked = []

    def ends():
        asked.append(0)
        raise NoAnswer("it ended")

    found = hunt_with(ends, 2, 0, random.Random(2))
    assert len(asked) == MOST_BROKEN
    assert [(one.bug, one.killed, one.draws) for one in found] == [(name, 0, 2) for name in BUGS]
    reasons = {one.why for one in found}
    assert len(reasons - {"it ended"}) == 1
    assert all(f"{MOST_BROKEN} others" in why for why in reasons - {"it ended"})


def test_the_first_reason_of_a_hunt_counts():
    class Silent:
        name = "silent"

        def check(self, arena, rng):
            raise ValueError("a mistake")

    faults = hunt_with(lambda: nullcontext(Silent()), 1, 0, random.Random(2))
    known.check_rows("grades", "faults", [(f.bug, f.killed, f.draws, f.why) for f in faults])


def test_every_row_is_of_a_test():
    assert len(known.whose("grades")) == 14 + len(KINDS) + len(ASSIGNMENTS)


# Grades of other kinds

OTHER = """
kind = "{kind}"
submission = "mine.py:Mine"
pass_points = 50
time_limit_s = 20

[laws]
points = 20
examples = 1

[tests]
file = "test_mine.py"

[tests.points]
test_name = 9
test_gone = 1
"""
OTHER_TESTS = """
def test_name({kind}):
    assert {kind} is not None


if not __name__:
    def test_gone({kind}):
        pass
"""
BUDGETED = """
model = "lenet"
batch = 8
budget = "{budget}"
machine = "v100-pcie"
{how}
par = "{par}"
full_ratio = 1.05
none_ratio = 1.5
points = 35
"""
MEASURED, REPLAYED = f"\n[[measures]]{BUDGETED}", f"\n[[replays]]{BUDGETED}"
LISTS = 'planner = "lru"'
KINDS = {
    "planner": ("", (MEASURED.format(budget="50%", how="ranges = false", par="lru"),
                             MEASURED.format(budget="100%", how="ranges = true", par="bound"))),
    "allocator": ("buddy", (REPLAYED.format(budget="50%", how=LISTS, par="best-fit"),
                            REPLAYED.format(budget="60%", how=LISTS, par="bound"))),
}  # fmt: skip


def of_kind(kind, folder):
    folder.mkdir()
    (folder / RUBRIC).write_text(OTHER.format(kind=kind) + "".join(KINDS[kind][1]))
    (folder / "test_mine.py").write_text(OTHER_TESTS.format(kind=kind))
    solved = SOLUTION.replace("(Lru)", "(Base)")
    (folder / "mine.py").write_text(f"{LRU_STUB}\nBase = Lru\n{solved}\nMine = Solved\n")
    return read_rubric(folder)


@pytest.mark.parametrize("kind", all_but(KINDS, "planner", "allocator"))
def test_a_grade_of_another_kind(kind, tmp_path):
    """An allocator of the library by its name, in no process apart, and a planner in a file."""
    rubric, name = of_kind(kind, tmp_path / kind), KINDS[kind][0]
    found = grade(rubric, name or f"{tmp_path / kind / 'mine.py'}:Mine", 4)
    known.check_rows("grades", f"rows of {kind}", map(row_of, found.rows))
    assert bool(found.isolation) != bool(name)


# Commands


def tree_of(path):
    """{path below a folder: content}, of files in a zip too."""
    if path.is_file():
        with zipfile.ZipFile(path) as packed:
            return {name: packed.read(name) for name in packed.namelist()}
    files = [file for file in path.rglob("*") if file.is_file()]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


@pytest.mark.parametrize(
    ("kind", "name", "write"),
    [("gradescope", "small-gradescope.zip", write_zip), ("otter", "small-otter", write_otter),
     ("nbgrader", "small-nbgrader", write_nbgrader)],
)  # fmt: skip
def test_an_autograder_by_its_command(kind, name, write, assignment, tmp_path, monkeypatch, capsys):
    """Without a folder and a seed it has a name, and a seed that it prints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["course", kind, str(assignment)]) == 0
    written, seed, *patience = capsys.readouterr().out.splitlines()
    assert written.split()[1] == name
    assert len(patience) == (kind == "nbgrader")
    number = int(seed.split()[-1])
    assert main(["course", kind, str(assignment), "--seed", str(number), "--out", "again"]) == 0
    write(tmp_path / "third", read_rubric(assignment), number)
    assert tree_of(tmp_path / name) == tree_of(tmp_path / "again") == tree_of(tmp_path / "third")
    assert main(["course", kind, str(assignment), "--out", "file/below"]) == 2
    assert main(["course", kind, str(assignment), "--seed", "-1"]) == 2
    other = tmp_path / "fourth"
    write(other, read_rubric(assignment), number + 1)
    assert tree_of(other) != tree_of(tmp_path / "third")


def test_assignments_are_listed_and_copied(assignment, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["course", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ASSIGNMENTS:
        (line,) = [line.split() for line in lines if line.split()[:1] == [name]]
        assert float(line[-1]) == read_rubric(folder_of(name)).most_points
    (assignment / "__pycache__").mkdir(exist_ok=True)
    assert main(["course", "copy", str(assignment), "--out", "mine"]) == 0
    there = {name: text for name, text in tree_of(assignment).items() if "__pycache__" not in name}
    assert tree_of(tmp_path / "mine") == there
    assert main(["course", "copy", str(assignment), "--out", "mine"]) == 2


@pytest.mark.parametrize("what", ["a text.pdf", "a folder"])
def test_a_hand_in_without_a_file_is_graded_with_a_reason(
    what, assignment, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "300")
    handed, found, results = tmp_path / what, tmp_path / "found.json", tmp_path / "results.json"
    handed.mkdir() if "folder" in what else handed.write_text("%PDF")
    command = ["grade", str(assignment), str(handed), "--json", str(found), "--seed", "9"]
    assert main([*command, "--gradescope", str(results)]) == 4
    said = json.loads(found.read_text())
    whole = read_rubric(assignment).most_points
    (row,) = said["rows"]
    assert (row["kind"], row["points"], row["most_points"]) == ("file", 0, whole)
    assert row["reason"]
    facts = [said[key] for key in ("assignment", "submission", "seed", "points", "passed", "error")]
    assert facts == [str(assignment), str(handed), 9, 0, False, None]
    assert (said["most_points"], said["pass_points"], said["isolation"]) == (whole, 40, [])
    assert json.loads(results.read_text())["score"] == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:4] == [
        "0",
        "of",
        f"{whole:g}",
        "points,",
    ]


class Slow:
    """A hand-in without a file, and how often one of them was looked at."""

    student, why, looked = "ada", "nothing", []

    @property
    def file(self):
        self.looked.append(self)
        time.sleep(0.02)


def test_what_of_a_class_has_not_begun_when_it_is_interrupted_does_not_begin(assignment):
    rubric = read_rubric(assignment)

    def stop(graded):
        raise KeyboardInterrupt

    Slow.looked.clear()
    with pytest.raises(KeyboardInterrupt):
        grade_class(rubric, [Slow() for _ in range(20)], 2, 0, stop)
    assert 1 <= len(Slow.looked) <= 5
