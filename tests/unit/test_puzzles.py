"""Each puzzle can be solved, each stub says what is missing, and wrong attempts are told where."""

from __future__ import annotations

import base64
import inspect
import re
import runpy
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import puzzle_solutions
from support.puzzle_solutions import SOLUTIONS, WRONG
from support.quick import quick

import ooctrain as oc
from ooctrain.course.lessons import PLACES, lessons_folder
from ooctrain.course.puzzles.allocator_puzzles import STEP
from ooctrain.course.puzzles.law_puzzles import ARENAS, FRONTIERS, NORMS
from ooctrain.course.puzzles.list_puzzles import TASKS
from ooctrain.course.replays import log_of
from ooctrain.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "tutorials" / "puzzles"
FILES = {path.name[:2]: path for path in sorted(FOLDER.glob("*.py"))}
#: These compile kernels.
LONG = ("d4", "d5", "d6")
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in SOLUTIONS]
WRONG_ONES = [
    pytest.param(*case, marks=pytest.mark.slow if case[0] in LONG else (), id=f"{n}-{case[0]}")
    for n, case in enumerate(WRONG)
]


def test_there_is_a_file_and_a_solution_for_each_puzzle_in_order():
    assert list(FILES) == list(SOLUTIONS) == list(oc.puzzles.PUZZLES)
    assert len(FILES) >= 16
    assert {case[0] for case in WRONG} == set(FILES)


def shown_as_itself(attempt):
    """At the prompt a line; in a notebook the picture, trusted or not."""
    assert attempt.title in repr(attempt)
    assert len(repr(attempt)) < 100
    assert ElementTree.fromstring(attempt._repr_svg_()).tag.endswith("svg")
    assert attempt._repr_svg_() == attempt.picture
    image = ElementTree.fromstring(attempt._repr_html_().replace(">", "/>"))
    kind, _, data = image.get("src").partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data).decode() == attempt.picture


@pytest.mark.parametrize("name", NAMES)
def test_a_stub_runs_and_says_what_is_missing(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FILES[name]), run_name="__main__")
    shown = capsys.readouterr().out
    assert "solved" not in shown
    assert re.search(r"wrong: \S|right, but not there yet: \S", shown)
    assert shown.startswith(f"{name} ")
    assert ElementTree.parse(tmp_path / f"{name}.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_reaches_both_targets(name, capsys):
    attempt = oc.puzzles.PUZZLES[name].check(SOLUTIONS[name])
    assert attempt.solved, str(attempt)
    assert "  solved" in capsys.readouterr().out
    for number in attempt.numbers:
        assert number.bound is None or number.bound <= number.target * (1 + 1e-9)
        assert number.bound is None or number.bound <= number.yours * (1 + 1e-9)
    shown_as_itself(attempt)


@pytest.mark.parametrize(("name", "answer", "words"), WRONG_ONES)
def test_a_wrong_attempt_is_told_where(name, answer, words):
    attempt = oc.puzzles.PUZZLES[name].check(answer)
    assert not attempt.solved
    assert words in str(attempt)
    shown_as_itself(attempt)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("answer", quick([None, 7, "run", (), object()], 0))
def test_an_answer_of_another_kind_is_refused_in_words(name, answer):
    attempt = oc.puzzles.PUZZLES[name].check(answer)
    assert attempt.wrong
    assert not attempt.solved


def functions_of(answer):
    """The functions of an answer, whatever it is made of."""
    if isinstance(answer, dict):
        answer = tuple(answer.values())
    parts = answer if isinstance(answer, tuple) else (getattr(answer, "function", answer),)
    return parts if parts == (answer,) or not isinstance(answer, tuple) else [
        function for part in parts for function in functions_of(part)
    ]  # fmt: skip


def test_solutions_are_short():
    """A few lines that a student writes, signatures and all."""
    for name, answer in SOLUTIONS.items():
        texts = (
            [answer] if isinstance(answer, str) else map(inspect.getsource, functions_of(answer))
        )
        lines = [line for text in texts for line in text.splitlines() if line]
        assert 2 <= len(lines) <= 28, (name, len(lines))


def test_no_solution_is_in_the_package_or_in_a_file_of_a_puzzle():
    texts = [path.read_text() for path in FILES.values()]
    texts += [p.read_text() for p in Path(oc.puzzles.__file__).parent.glob("*.py")]
    for source in (A for A in vars(puzzle_solutions).values() if inspect.isfunction(A)):
        body = "\n".join(inspect.getsource(source).splitlines()[2:]).strip()
        if len(body) > 120:
            assert not any(body in text for text in texts), source


def test_the_files_come_out_of_the_library(tmp_path):
    copied = oc.puzzles.copy(str(tmp_path / "mine"))
    assert {path.name for path in FILES.values()} <= set(copied)
    (tmp_path / "mine" / copied[0]).write_text("my work")
    assert oc.puzzles.copy(str(tmp_path / "mine")) == []
    assert (tmp_path / "mine" / copied[0]).read_text() == "my work"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="OOC-117"):
        oc.puzzles.copy(str(tmp_path / "file" / "below"))


def test_what_is_given_can_be_printed():
    assert "B7(x7 100 B, x8 100 B, y8 100 B) -> y7 100 B, 20 us" in str(oc.puzzles.a2)
    assert str(oc.puzzles.c1) == "c1 The frontier"


def test_the_wheel_takes_the_files_to_where_they_are_looked_for():
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    root = Path(oc.__file__).parents[1]
    assert {root / to for to in included.values()} == {PLACES[0]}
    assert (lessons_folder() / "puzzles").samefile(FOLDER)


@pytest.mark.slow
def test_the_numbers_in_the_texts_are_those_of_the_library():
    words = {"two": 2, "five": 5, "seven": 7}
    for name, zoo in {"f1": ARENAS, "f2": FRONTIERS, "f3": NORMS}.items():
        text = " ".join(FILES[name].read_text().replace("\n#", " ").split())
        count = re.search(r"kills all (\w+)", text)[1]
        assert words[count] == len(zoo.bugs)
    requests = [request.op for request in log_of(STEP).requests]
    assert requests.count("step") == 3
    assert round(requests.count("allocate"), -2) == 1600
    for name, needs in {"a1": "700 bytes", "a2": "1,100 bytes", "a6": "they need 900"}.items():
        trace = TASKS[name].trace()
        assert needs in " ".join(FILES[name].read_text().replace("\n#", " ").split())
        peak = oc.plan(trace, 1 << 20, "keep-all", TASKS[name].machine, rewrites=()).peak_bytes
        assert peak == int(re.sub(r"\D", "", needs))
        assert f"{TASKS[name].budget_bytes} bytes" in FILES[name].read_text()


def test_an_unfinished_list_has_numbers_and_a_picture_too():
    attempt = oc.puzzles.a2.check("run F0; out x0; run F1; free x7")
    assert [number.yours for number in attempt.numbers] == [20, 300]
    assert "instruction 3: free x7" in attempt.wrong
    assert "as far as it is legal" in attempt.picture


def test_the_page_shows_a_real_attempt(repository, monkeypatch, tmp_path, capsys):
    page = (repository / "docs" / "puzzles.md").read_text(encoding="utf-8")
    attempt = oc.puzzles.a2.check(puzzle_solutions.on_demand(puzzle_solutions.A2))
    handout = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert str(attempt) in page
    assert str(attempt) in handout
    assert attempt.picture == (repository / "docs" / "pictures" / "puzzle_a2.svg").read_text()
    for path in FILES.values():
        assert f"({path.name})" in handout
        assert f"(../tutorials/puzzles/{path.name})" in page
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "puzzles.md", "exec"), {})
    assert len(list((tmp_path / "puzzles").glob("*.py"))) == len(FILES)
    assert "budget 500 bytes" in capsys.readouterr().out


def test_an_error_of_the_students_code_is_shown_with_its_line(monkeypatch, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def frontier(there, *layer):\n    return layer[99]\n")
    attempt = oc.puzzles.c1.check(runpy.run_path(str(path))["frontier"])
    assert "IndexError" in attempt.wrong
    assert "line 2: return layer[99]" in attempt.wrong
