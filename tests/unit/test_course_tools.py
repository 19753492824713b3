"""What a teacher makes: course wheels, autograders, a class's grades; and what each keeps to."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.gradescope_schema import wrong_with
from support.handouts import ASSIGNMENTS as FOLDER
from support.handouts import LRU_STUB, SOLUTION

from ooctrain.cli import main
from ooctrain.course.assignments import ASSIGNMENTS, folder_of
from ooctrain.course.autograders.gradescope import not_graded, results_of
from ooctrain.course.autograders.notebook_graders import parts_of, write_nbgrader, write_otter
from ooctrain.course.classroom import (
    Graded,
    assignment_of,
    correlation,
    item_statistics,
    leaderboard,
    write_class,
)
from ooctrain.course.grade import Grade, Row
from ooctrain.course.handed_in import handed_in
from ooctrain.course.handout import PACKAGE, stripped_files
from ooctrain.course.rubric import RUBRIC, read_rubric
from ooctrain.errors import ConfigError

TINY = """
kind = "planner"
submission = "lru.py:Lru"
pass_points = 50
time_limit_s = {limit_s}
withheld = ["sched/planners/lru.py"]

[laws]
points = 20
examples = 1

[tests]
file = "test_name.py"

[tests.points]
test_it_has_a_name = 40

[[measures]]
model = "lenet"
batch = 8
budget = "50%"
machine = "v100-pcie"
ranges = false
par = "lru"
full_ratio = 1.05
none_ratio = 1.5
points = 40
"""
TEST = "def test_it_has_a_name(planner):\n    assert planner.name\n"


def tiny_assignment(folder, limit_s=3):
    """An assignment that is graded in seconds."""
    folder.mkdir()
    (folder / RUBRIC).write_text(TINY.format(limit_s=limit_s))
    (folder / "test_name.py").write_text(TEST)
    (folder / "README.md").write_text("# Tiny\n")
    (folder / "lru.py").write_text(LRU_STUB)
    return folder


def solved():
    return f"{LRU_STUB}\nBase = Lru\n{SOLUTION.replace('(Lru)', '(Base)')}\nLru = Solved\n"


# Course wheels


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_what_is_withheld_is_gone_and_its_names_are_there(name):
    rubric = read_rubric(folder_of(name))
    assert rubric.withheld
    for file, text in stripped_files(rubric.withheld, name).items():
        names = {entry.partition(":")[2] for entry in rubric.withheld if entry.startswith(file)}
        before, after = (ast.parse(source) for source in ((PACKAGE / file).read_text(), text))
        public = {n.name for n in before.body if hasattr(n, "name") and n.name[0] != "_"}
        there = {n.name for n in after.body if hasattr(n, "name")}
        tables = [n for n in after.body if isinstance(n, ast.Assign | ast.AnnAssign)]
        used = {n.id for table in tables for n in ast.walk(table) if isinstance(n, ast.Name)}
        assert public <= there
        assert used & {n.name for n in before.body if hasattr(n, "name")} <= there
        for node in after.body:
            if getattr(node, "name", "") in names or ("" in names and hasattr(node, "name")):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef):
                        assert len(inner.body) == 1
                        assert isinstance(inner.body[0], ast.Raise | ast.Pass)


def test_a_rubric_may_withhold_only_what_there_is():
    for wrong in ("sched/planners/nobody.py", "sched/planners/lru.py:Nobody"):
        with pytest.raises(ConfigError, match="which the assignment withholds"):
            stripped_files([wrong], "x")


def in_wheel(folder, script, *arguments):
    """Runs a script, or the command, with nothing but an unpacked wheel."""
    what = ["-c", script] if script else ["-m", "ooctrain", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *what], capture_output=True, text=True, check=False, cwd=folder,
        env=environment,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "withheld", "others"),
    [
        ("lru_planner", "plan lenet --budget 60% --planner lru", "plan lenet --budget 60%"),
        ("window_planner", "plan lenet --budget 60% --planner window", "plan lenet --budget 60%"),
        ("recompute_chain", "plan lenet --budget 60% --planner rotor", "plan lenet --budget 60%"),
        ("best_fit", "plan lenet --budget 60% --allocator best-fit", "plan lenet --budget 60%"),
        ("tiling", "", "plan lenet --budget 60%"),
        ("allocator_law", "", "plan lenet --budget 60%"),
    ],
)  # fmt: skip
def test_a_course_wheel_lacks_the_solution_and_all_else_runs(name, withheld, others, tmp_path):
    assert main(["course", "strip", name, "--out", str(tmp_path)]) == 0
    (wheel,) = tmp_path.glob("*.whl")
    assert f"+course.{name.replace('_', '.')}-" in wheel.name
    inside = tmp_path / "inside"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(inside)
    for file in stripped_files(read_rubric(folder_of(name)).withheld, name):
        bodies = {
            line.strip()
            for node in ast.walk(ast.parse((PACKAGE / file).read_text()))
            if isinstance(node, ast.FunctionDef)
            for statement in node.body
            for line in ast.unparse(statement).splitlines()
        }
        there = (inside / "ooctrain" / file).read_text()
        if all(":" not in entry for entry in read_rubric(folder_of(name)).withheld):
            assert not [line for line in bodies if len(line) > 30 and line in there]
    everything = (
        "import ooctrain.execution.planners, ooctrain.alloc.registry, ooctrain.api\n"
        "import ooctrain.course.puzzles, ooctrain.course.grade, ooctrain.cli.grade_command\n"
        "import ooctrain.cli.course_command, ooctrain.cli.compare_command\n"
        "import ooctrain.testing.check_planner\n"
        "import ooctrain.testing.check_allocator, ooctrain.report.snapshot\n"
    )
    done = in_wheel(inside, everything)
    assert done.returncode == 0, done.stderr[-2000:]
    assert in_wheel(inside, "", *others.split()).returncode == 0
    if withheld:
        refused = in_wheel(inside, "", *withheld.split())
        assert refused.returncode != 0
        assert "[OOC-180]" in refused.stderr + refused.stdout
        assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_in_a_course_wheel_a_student_is_graded_beside_the_same_par(tmp_path):
    assignment = tiny_assignment(tmp_path / "tiny")
    (assignment / "lru.py").write_text(solved())
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    assert main(["grade", str(assignment), "--json", str(whole)]) == 0
    assert main(["course", "strip", str(assignment), "--out", str(tmp_path)]) == 0
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "inside")
    done = in_wheel(tmp_path / "inside", "", "grade", str(assignment), "--json", str(part))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(file.read_text())["rows"] for file in (whole, part)]
    assert rows[0] == rows[1]


# Gradescope

ROWS = (
    Row("law", "plans are legal", 2.0, 2.0),
    Row("test", "test_it", 0.0, 3.0, "assert 1 == 2", "assert 1 == 2\nwhere 1"),
    Row("measure", "lenet", 1.5, 4.0, "1.30 x the bound", ratio=1.3),
)


def grades(*points):
    """A class with so many points for three items each."""
    return [
        Graded(f"s{n}", Grade("f.py:X", tuple(Row("test", f"t{k}", had, 1.0) for k, had in
                                               enumerate(row)), 1.0))
        for n, row in enumerate(points)
    ]  # fmt: skip


def test_results_are_what_gradescope_documents():
    results = results_of(Grade("f.py:X", ROWS, 5.0, ("limits",)))
    assert wrong_with(results) == ""
    assert results["score"] == 3.5
    assert [test["status"] for test in results["tests"]] == ["passed", "failed", "failed"]
    assert results["leaderboard"][0] == {"name": "x par", "value": 1.3, "order": "asc"}
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert wrong_with(not_graded("it fell over")) == ""


def test_the_schema_bites():
    right = results_of(Grade("f.py:X", ROWS, 5.0))
    for path, value in (
        ("score", "3"), ("score", float("nan")), ("visibility", "all"), ("points", 3),
        ("tests", {}), ("leaderboard", [{"name": "x"}]), ("stdout_visibility", True),
    ):  # fmt: skip
        assert wrong_with({**right, path: value})
    assert wrong_with({"output": "no score"})
    assert wrong_with({**right, "tests": [{"status": "ok"}]})


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """An unpacked autograder."""
    folder = tmp_path_factory.mktemp("gradescope")
    zipped = folder / "tiny.zip"
    tiny = tiny_assignment(folder / "tiny")
    command = ["course", "gradescope", str(tiny), "--seed", "7", "--out", str(zipped)]
    assert main(command) == 0
    with zipfile.ZipFile(zipped) as file:
        file.extractall(folder / "source")
        modes = {entry.filename: entry.external_attr >> 16 for entry in file.infolist()}
    return folder / "source", modes


def run_autograder(source, tree, python=sys.executable, **files):
    """What results.json holds after a submission; `files` are those handed in."""
    (tree / "submission").mkdir(parents=True)
    (tree / "source").symlink_to(source)
    for name, text in files.items():
        (tree / "submission" / f"{name}.py").write_text(text)
    environment = {
        **os.environ, "AUTOGRADER": str(tree), "PYTHON": str(python),
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(source / "run_autograder")], capture_output=True, text=True, check=False,
        env=environment, cwd=tree,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((tree / "results" / "results.json").read_text())
    assert wrong_with(results) == ""
    return results


def test_the_zip_holds_what_gradescope_wants(packed):
    source, modes = packed
    assert modes["setup.sh"] == modes["run_autograder"] == 0o755
    assert {"assignment/grade.toml", "assignment/lru.py"} <= set(modes)
    assert [name for name in modes if name.endswith(".whl")]
    for script in ("setup.sh", "run_autograder"):
        assert subprocess.run(["bash", "-n", str(source / script)], check=False).returncode == 0


@pytest.mark.parametrize("python", ["/bin/false", "/nonexistent/python"])
def test_results_are_there_even_if_python_does_not_run(packed, python, tmp_path):
    results = run_autograder(packed[0], tmp_path, python, lru=LRU_STUB)
    assert results["score"] == 0
    assert "tell your teacher" in results["output"]


def test_results_are_there_if_nothing_was_handed_in(packed, tmp_path):
    assert "lru.py is expected" in run_autograder(packed[0], tmp_path)["output"]


HANDED_IN = {
    "right": (solved(), 100),
    "a crash": ("import os\nos._exit(3)", 0),
    "no Python": ("def f(:", 0),
    "it writes results": (
        f"{solved()}\nimport os\nfor path in ('results', '../results'):\n    try:\n"
        "        open(f'{path}/results.json', 'w').write('{\"score\": 100}')\n"
        "    except OSError:\n        pass\nprint('{\"score\": 100}')\n",
        100,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HANDED_IN)
def test_the_autograder_grades_whatever_is_handed_in(kind, packed, tmp_path):
    text, points = HANDED_IN[kind]
    results = run_autograder(packed[0], tmp_path, lru=text)
    assert results["score"] == points
    assert all(test["output"] for test in results["tests"] if test["status"] == "failed")


def test_results_are_written_when_the_grader_itself_fails(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("ooctrain.cli.grade_command.run_grade", fail)
    path = tmp_path / "results.json"
    tiny = tiny_assignment(tmp_path / "tiny")
    with pytest.raises(RuntimeError):
        main(["grade", str(tiny), "--gradescope", str(path)])
    results = json.loads(path.read_text())
    assert wrong_with(results) == ""
    assert "a mistake of ours" in results["output"]


# A class


def test_a_class_is_files_or_folders_and_a_link_is_no_submission(tmp_path):
    rubric = read_rubric(tiny_assignment(tmp_path / "tiny"))
    students = tmp_path / "students"
    for name in ("bea", "eve", "dan"):
        (students / name).mkdir(parents=True)
    (students / "ada.py").write_text("x = 1\n")
    (students / "bea" / "lru.py").write_text("x = 1\n")
    (students / "bea" / "notes.py").write_text("x = 1\n")
    (students / "dan" / "one.py").write_text("x = 1\n")
    (students / "cid.py").symlink_to(tmp_path / "tiny" / "lru.py")
    found = {one.student: (one.file and one.file.name, one.why) for one in
             handed_in(students, rubric, tmp_path / "unpacked")}  # fmt: skip
    assert list(found) == ["ada", "bea", "cid", "dan", "eve"]
    assert found["ada"] == ("ada.py", "")
    assert found["bea"] == ("lru.py", "")
    assert found["dan"] == ("one.py", "")
    assert "a link" in found["cid"][1]
    assert "there is no lru.py" in found["eve"][1]
    with pytest.raises(ConfigError, match="no submissions"):
        handed_in(students / "eve", rubric, tmp_path)


def test_the_files_of_a_class_say_which_assignment_they_are_for(tmp_path, monkeypatch):
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "fit.py").write_text("")
    (tmp_path / "elsewhere" / "lru_planner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")  # a folder that is called as an assignment is
    assert assignment_of(tmp_path) == folder_of("best_fit")
    (tmp_path / "ada" / "lru.py").write_text("")
    assert assignment_of(tmp_path) is None


def test_difficulty_and_discrimination_are_the_textbook_s():
    """Two items that rank alike, and one that ranks the other way round."""
    found = item_statistics(grades((1, 1, 0), (1, 1, 0), (0, 0, 1), (0, 0, 1)))
    assert [item.difficulty for item in found] == [0.5, 0.5, 0.5]
    assert found[2].discrimination == -1
    assert correlation([1, 2, 3], [1, 1, 1]) is None
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    easy = item_statistics(grades((1, 0), (1, 1)))[0]
    assert (easy.difficulty, easy.discrimination) == (1.0, None)


def with_ratio(student, ratio, points=2.0):
    row = Row("measure", "m", points, 2.0, ratio=ratio)
    return Graded(student, Grade("", (row,), 1.0))


def test_the_leaderboard_ranks_by_data_and_has_only_who_passes():
    ranked = leaderboard(
        [with_ratio("o", None), with_ratio("c", 1.2), with_ratio("b", 1.2), with_ratio("a", 1.1),
         with_ratio("x", 1.0, 0)]
    )  # fmt: skip
    assert [graded.student for graded in ranked] == ["a", "b", "c", "o"]


def test_no_name_of_a_student_is_a_formula(tmp_path):
    write_class(tmp_path, [with_ratio("=1+2", 1.2), with_ratio("ada", None)])
    rows = list(csv.reader((tmp_path / "grades.csv").open()))
    assert rows[1][0] == "'=1+2"
    assert len({len(row) for row in rows}) == 1


CLASS = {
    "ada": solved(),
    "bob": LRU_STUB,
    "crash": "import os\nos._exit(3)",
    "hang": "while True: pass",
    "print": f"print('x' * 100)\n{solved()}",
    "write": f"{solved()}\nopen('harm.txt', 'w').write('x')\nopen('/tmp/harm-of-a-class', 'w')\n",
}


@pytest.mark.slow
def test_nobody_harms_a_class(tmp_path, capsys, monkeypatch):
    assignment, students = tiny_assignment(tmp_path / "tiny", limit_s=2), tmp_path / "students"
    students.mkdir()
    monkeypatch.chdir(students)
    for name, text in CLASS.items():
        (students / f"{name}.py").write_text(text)
    before = {path: path.read_text() for path in tmp_path.rglob("*.py")}
    out, numbers = tmp_path / "grades", tmp_path / "class.json"
    status = main(
        ["grade", str(assignment), str(students), "--jobs", "4", "--out", str(out), "--json",
         str(numbers)]
    )  # fmt: skip
    assert status == 0
    assert {path: path.read_text() for path in tmp_path.rglob("*.py")} == before
    assert not (students / "harm.txt").exists()
    assert not Path("/tmp/harm-of-a-class").exists()
    points = {row["student"]: row["points"] for row in json.loads(numbers.read_text())["students"]}
    assert points["ada"] == points["print"] == 100
    assert points["crash"] == points["hang"] == 0
    assert 0 < points["bob"] < 100
    with (out / "grades.csv").open() as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert list(rows) == sorted(CLASS)
    assert "status 3" in rows["crash"]["note"]
    with (out / "items.csv").open() as file:
        items = {row["item"]: float(row["difficulty"]) for row in csv.DictReader(file)}
    assert 0 < items["test_it_has_a_name"] < 1
    assert "leaderboard" in capsys.readouterr().out


# Notebooks


def test_nbgrader_s_notebook_and_otter_s_tests_count_the_rubric_s_points(tmp_path):
    rubric = read_rubric(FOLDER / "lru_planner")
    write_nbgrader(tmp_path / "nb", rubric, 7)
    notebook = json.loads((tmp_path / "nb" / "lru_planner.ipynb").read_text())
    cells = [cell["metadata"].get("nbgrader", {}) for cell in notebook["cells"]]
    assert sum(cell.get("points", 0) for cell in cells) == 100 == sum(parts_of(rubric).values())
    # `nbgrader generate_assignment` puts "raise" in the place of all that a solution cell holds.
    released = [cell["source"] for cell, told in zip(notebook["cells"], cells, strict=True)
                if not told.get("solution")]  # fmt: skip
    stub = (FOLDER / "lru_planner" / "lru.py").read_text()
    assert f"%%writefile lru.py\n{stub}" in released, "students get the stub"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and not cell["source"].startswith("%%"):
            compile(cell["source"], "cell", "exec")
    write_otter(tmp_path / "otter", rubric, 7)
    text = (tmp_path / "otter" / "tests" / "lru_planner.py").read_text()
    tree = ast.parse(text)
    points = [
        ast.literal_eval(decorator.keywords[0].value)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
    ]
    assert sum(points) == pytest.approx(100)


def test_a_teacher_is_told_that_nbgrader_stops_a_cell_after_thirty_seconds(tmp_path, capsys):
    assert main(["course", "nbgrader", "lru_planner", "--out", str(tmp_path / "nb")]) == 0
    assert "c.Execute.timeout = 900" in capsys.readouterr().out
    page = PACKAGE.parent / "docs" / "teaching.md"
    assert "`c.Execute.timeout = 900`" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_notebook_s_cells_give_the_points_of_the_grade(tmp_path, monkeypatch):
    tiny = tiny_assignment(tmp_path / "tiny")
    write_nbgrader(tmp_path / "nb", read_rubric(tiny), 7)
    monkeypatch.chdir(tmp_path / "nb")
    Path("lru.py").write_text(solved())
    notebook = json.loads(Path("tiny.ipynb").read_text())
    had = 0.0
    for cell in notebook["cells"]:
        if "points" in cell["metadata"].get("nbgrader", {}):
            body = ast.parse(cell["source"])
            names: dict = {}
            exec(compile(ast.Module(body.body[:-1], []), "cell", "exec"), names)
            had += eval(compile(ast.Expression(body.body[-1].value), "cell", "eval"), names)
    assert had == 100


LINK = re.compile(r"\]\(([^)#:\s]+)")


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_an_assignment_is_copied_by_name_and_no_link_of_it_is_dead(name, tmp_path):
    target = tmp_path / "week"
    assert main(["course", "copy", name, "--out", str(target)]) == 0
    assert (target / RUBRIC).read_text() == (folder_of(name) / RUBRIC).read_text()
    for page in target.rglob("*.md"):
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), link
    write_nbgrader(tmp_path / "nb", read_rubric(target), 7)
    (book,) = (tmp_path / "nb").glob("*.ipynb")
    for link in LINK.findall(json.loads(book.read_text())["cells"][0]["source"]):
        assert (tmp_path / "nb" / link).exists(), link
    assert main(["course", "copy", name, "--out", str(target)]) == 2
