"""The tutorials run whole, cell by cell and paused, and their exercises have right answers."""

import base64
import linecache
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from ooctrain.report.shapes import COLOURS

FOLDER = Path(__file__).parents[2] / "tutorials"
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))
#: They train a ResNet, or run kernels of a GPU on a CPU: up to half a minute each.
LONG = (
    "00_tour", "05_first_tiles", "21_reading_a_paper_critically",
    "06_best_fit_and_fragmentation", "09_swap_planners", "10_the_lower_bound", "11_recompute",
    "12_together", "03_out_of_memory", "04_swapping", "14_bands",
    "13_write_your_own_planner", "15_tiles_and_batch_norm", "16_bigger_than_memory", "17_split_cnn",
    "18_a_cuda_kernel_step_by_step", "19_real_gpu",
    "20_many_ranks", "22_your_own_network", "23_less_ram",
    "24_plans_for_pytorch",
)  # fmt: skip
QUICK_ONES = [
    pytest.param(path, marks=pytest.mark.slow if path.stem in LONG else ()) for path in SCRIPTS
]
#: Pictures whose colours have no other explanation than their legend.
WITH_A_LEGEND = (
    "01_lifetimes", "03_two_holes", "05_halos", "06_fragmentation", "08_placements", "14_bands",
    "15_barriers",
)  # fmt: skip
sys.path.insert(0, str(FOLDER))

#: What a reader who has understood would put into the exercises; written by hand, not read off.
ANSWERS = {
    "00_tour": ("R201", 0, 8),
    "01_autograd_from_nothing": ("v0", ("dy", "dy"), 1),
    "02_trace_a_training_step": ("conv1.bias", "state", 10),
    "03_out_of_memory": (256, "layer4.1.conv2.grad_input", 1),
    "04_swapping": (400, "equal", "P - M"),
    "05_first_tiles": (19, "T + 2n", 128),
    "06_best_fit_and_fragmentation": ("both", False, 25),
    "07_virtual_addressing": (28, 1, 600),
    "08_static_planning": (4, 3, 4),
    "09_swap_planners": (6, 9, 7, "BCA"),
    "10_the_lower_bound": (10, "no", "only if it is of another class"),
    "11_recompute": (20, 20, 1 / 3, 0.05),
    "12_together": (1 / 2, "first", "belady", "belady"),
    "13_write_your_own_planner": ("plans are legal", 12, "no"),
    "14_bands": (2, 0, 6),
    "15_tiles_and_batch_norm": (6, 7, 1),
    "16_bigger_than_memory": (256 * 20480 * 3, 4, 2),
    "17_split_cnn": (4, 7, 10),
    "18_a_cuda_kernel_step_by_step": (1 / 16, 16, 8),
    "19_real_gpu": (6, 2000, False),
    "20_many_ranks": (1.5, 6, 8),
    "21_reading_a_paper_critically": (2 * 7 + 4, "inf", 3),
    "22_your_own_network": ("new", "old", 0),
    "23_less_ram": (500, 740, "no"),
    "24_plans_for_pytorch": (1, "no", 321),
}


def cells(text):
    """The code cells of a percent-format script, in order."""
    parts = re.split(r"^# %%(.*)$", text, flags=re.MULTILINE)
    return [
        body
        for kind, body in zip(parts[1::2], parts[2::2], strict=True)
        if "[markdown]" not in kind
    ]


def compiled(number, body):
    """A cell as a notebook compiles it: its source can be looked up by the name of its code."""
    name = f"<cell {number}>"
    linecache.cache[name] = (len(body), None, body.splitlines(keepends=True), name)
    return compile(body, name, "exec")


@pytest.fixture(autouse=True)
def scratch(monkeypatch, tmp_path):
    """Pictures go to a temporary folder, and no argument of pytest reaches a lesson."""
    import lesson

    monkeypatch.setattr(lesson, "PICTURES", tmp_path / "tutorials" / "pictures")
    (tmp_path / "tutorials").mkdir()
    monkeypatch.setattr(sys, "argv", ["tutorial"])


def answering(exercise, answers):
    """`Lesson.exercise` for a reader who puts these answers into the script."""
    left = iter(answers)
    return lambda lesson, question, check, _: exercise(lesson, question, check, next(left))


@pytest.mark.parametrize("script", QUICK_ONES, ids=lambda path: path.stem)
def test_a_tutorial_runs_whole_and_its_asserts_hold(script, monkeypatch, capsys):
    from lesson import Lesson

    if "import torch\n" in script.read_text(encoding="utf-8"):
        pytest.importorskip("torch", reason="torch is not installed")
    answers = ANSWERS[script.stem]
    monkeypatch.setattr(Lesson, "exercise", answering(Lesson.exercise, answers))
    runpy.run_path(str(script), run_name="__main__")
    shown = capsys.readouterr().out
    assert "all asserts passed" in shown
    assert "prediction" in shown
    assert shown.count(" is right\n") == len(answers), "every exercise has this right answer"


def test_a_tutorial_runs_cell_by_cell():
    names = {"__name__": "notebook"}
    for cell in cells((FOLDER / "01_autograd_from_nothing.py").read_text()):
        exec(compile(cell, "cell", "exec"), names)
    assert abs(names["slope"] / names["on_tape"] - 1) < 1e-6


@pytest.mark.slow
def test_kernels_that_are_written_in_cells_run_in_the_emulator():
    names = {"__name__": "__main__"}
    text = (FOLDER / "18_a_cuda_kernel_step_by_step.py").read_text()
    for number, cell in enumerate(cells(text.partition("## Third and fourth step")[0])):
        exec(compiled(number, cell), names)
    assert len(names["caught"]) == 2
    assert names["naive_error"] < 1e-5


def pauses_in(text):
    """How often a paused tutorial waits: before each cell, and for each prediction."""
    return len(re.findall(r"^lesson\.(?:cell|predict)\(", text, re.M))


def test_a_paused_tutorial_waits_before_each_cell_and_for_each_prediction(monkeypatch, capsys):
    waits = []
    monkeypatch.setattr(sys, "argv", ["tutorial", "--step"])
    monkeypatch.setattr("builtins.input", lambda prompt="": waits.append(prompt) or "")
    text = (FOLDER / "01_autograd_from_nothing.py").read_text()
    runpy.run_path(str(FOLDER / "01_autograd_from_nothing.py"), run_name="__main__")
    assert len(waits) == pauses_in(text)
    assert sum("your prediction" in prompt for prompt in waits) == text.count("lesson.predict(") > 0
    assert "all asserts passed" in capsys.readouterr().out


@pytest.mark.parametrize("gone", [EOFError, KeyboardInterrupt])
def test_a_paused_tutorial_without_a_reader_says_so_and_ends(gone, monkeypatch, capsys):
    def nobody(_prompt: str) -> str:
        raise gone

    monkeypatch.setattr(sys, "argv", ["tutorial", "--step"])
    monkeypatch.setattr("builtins.input", nobody)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "01_autograd_from_nothing.py"), run_name="__main__")
    assert not ended.value.code
    *_, last = capsys.readouterr().out.splitlines()
    assert "without --step" in last


@pytest.mark.slow
@pytest.mark.parametrize("name", ["18_a_cuda_kernel_step_by_step", "19_real_gpu"])
def test_the_gpu_tutorials_run_cell_by_cell_and_paused(name, monkeypatch, capsys):
    waits = []
    monkeypatch.setattr(sys, "argv", ["tutorial", "--step"])
    monkeypatch.setattr("builtins.input", lambda prompt="": waits.append(prompt) or "")
    names, text = {"__name__": "__main__"}, (FOLDER / f"{name}.py").read_text()
    for number, cell in enumerate(cells(text)):
        exec(compiled(f"{name} {number}", cell), names)
    assert len(waits) == text.count("lesson.cell(") + text.count("lesson.predict(") > 5
    assert "all asserts passed" in capsys.readouterr().out


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_tutorial_says_what_it_is_for(script):
    head = script.read_text()[:900]
    for word in ("**Goal:**", "**Prerequisites:**", "**Minutes:**", "**Paper:**"):
        assert word in head
    assert script.name in (FOLDER / "README.md").read_text()


def test_a_script_prints_its_own_prose_before_each_cell(monkeypatch, capsys):
    script = FOLDER / "01_autograd_from_nothing.py"
    monkeypatch.setenv("COLUMNS", "100")  # wide enough for its lines
    runpy.run_path(str(script), run_name="__main__")
    shown = capsys.readouterr().out
    prose = re.findall(r"^# %% \[markdown\]\n((?:#.*\n)+)", script.read_text(), re.M)
    told = [re.sub(r"^# ?", "", part, flags=re.M).strip() for part in prose]
    places = [shown.index(part) for part in told]
    assert places == sorted(places)
    first_cell = shown.index("--- a tape in forty lines")
    assert places[1] < first_cell < places[2], "what explains a cell stands above it, no more"


def checked(script, *words, monkeypatch, capsys):
    """(status, what is printed) of a tutorial that checks an answer."""
    monkeypatch.setattr(sys, "argv", [str(script), "--check", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    return ended.value.code, capsys.readouterr().out


EXERCISES = """
from lesson import Lesson

lesson = Lesson("autograd")
lesson.cell("an experiment")
print(lesson.predict("calls"))
lesson.exercise("1. a dead forward value", lambda a: a in ("v0", "v2"), None)
lesson.exercise("2. the gradients of a + b", lambda a: tuple(a) == ("dy", "dy"), None)
lesson.exercise(
    "3. backward calls saved", lambda a: a == 1, None
)
print("the end")
"""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [(["1", "v2"], 0, "1. a dead forward value  -> 'v2' is right"),
     (["2", "('dy', 'dy')"], 0, "is right"), (["2", "('dy',", "'dy')"], 0, "is right"),
     (["3", "2"], 1, "3. backward calls saved  -> 2 is not right yet"),
     (["3"], 1, "put your answer behind --check 3"), (["4", "2"], "exercises 1, 2, 3", ""),
     ([], "exercises 1, 2, 3", ""), (["third", "2"], "exercises 1, 2, 3", "")],
)  # fmt: skip
def test_a_command_checks_one_answer(words, status, said, tmp_path, monkeypatch, capsys):
    script = tmp_path / "01_autograd.py"
    script.write_text(EXERCISES)
    found, shown = checked(script, *words, monkeypatch=monkeypatch, capsys=capsys)
    assert status == found or status in str(found)
    assert said in shown
    assert shown.count("\n") == bool(said), "and nothing else is printed"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("1/3", 1 / 3), ("-2", -2), ("False", False), ("P - M", "P - M"), ("", None), ("1/0", "1/0")],
)
def test_an_answer_is_read_as_the_script_would_have_it(typed, answer):
    from lesson import answer_of

    assert answer_of(typed.split()) == answer


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_each_exercise_has_a_number_and_a_command_that_checks_it(script):
    text = script.read_text()
    numbers = re.findall(r'lesson\.exercise\(\s*"(\d+)\. ', text)
    assert numbers == [str(1 + i) for i in range(len(ANSWERS[script.stem]))]
    assert text.count("lesson.exercise(") == len(numbers)
    said = text.partition("## Exercises")[2]
    assert f"`python {script.name} --check 1 ANSWER`" in said
    for number in numbers:
        assert f"\n# {number}. " in said


@pytest.mark.parametrize(
    ("typed", "said"),
    [(["7"], "the prediction was 30% off"), (["2,5"], "4 times too low"),
     (["many", "10"], "the prediction was 0% off"), ([""], "measured:   calls = 10\n"),
     (["1000%"], "the prediction was 0% off"), (["10/2"], "the prediction was 50% off")],
)  # fmt: skip
def test_a_reader_is_asked_for_a_number(typed, said, monkeypatch, capsys):
    from lesson import Lesson

    left = iter(typed)
    monkeypatch.setattr("builtins.input", lambda prompt="": next(left))
    lesson = Lesson("a lesson", arguments=["--step"])
    lesson.predict("calls")
    lesson.reveal("calls", 10)
    assert said in capsys.readouterr().out
    assert not list(left), "every word that was typed was read"


def test_help_says_how_to_start_a_tutorial_and_runs_nothing(capsys):
    from lesson import Lesson

    for word in ("-h", "--help"):
        with pytest.raises(SystemExit) as ended:
            Lesson("a lesson", arguments=[word])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert "--step" in shown
        assert "===" not in shown


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("width", [60, 80])
def test_prose_ends_its_lines_between_words(script, width):
    """Nothing is lost, and only what cannot be broken is wider: tables, code, long names."""
    from lesson import filled

    for cell in re.findall(r"^# %% \[markdown\]\n((?:#.*\n)+)", script.read_text(), re.M):
        text = re.sub(r"^# ?", "", cell, flags=re.M).strip()
        found = filled(text, width)
        assert found.split() == text.split()
        assert filled(text, 100) == text
        for line in re.sub(r"^```.*?^```", "", found, flags=re.M | re.S).splitlines():
            whole = line.startswith(("|", "    ", "#")) or len(line.split()) < 4
            assert len(line) <= width or whole, line


def test_a_script_that_runs_whole_asks_nobody_and_judges_nothing(monkeypatch, capsys):
    from lesson import Lesson

    monkeypatch.setattr("builtins.input", lambda prompt="": pytest.fail("nobody is there"))
    lesson = Lesson("a lesson", arguments=[])
    lesson.predict("calls")
    lesson.reveal("calls", 10)
    shown = capsys.readouterr().out
    assert "measured:   calls = 10\n" in shown
    assert "the prediction was" not in shown


class _Shell:
    """IPython as a notebook's kernel runs it."""

    def __init__(self, answers):
        self.kernel = SimpleNamespace(_allow_stdin=answers)


@pytest.mark.parametrize("answers", [True, False])
def test_a_notebook_asks_in_an_input_box_and_shows_pictures_under_the_cell(
    answers, monkeypatch, capsys
):
    from lesson import Lesson

    shown = []
    display = SimpleNamespace(display=lambda bundle, raw: shown.append(bundle))
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: _Shell(answers))
    )
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("builtins.input", lambda prompt="": "10")
    lesson = Lesson("a lesson", arguments=[])
    lesson.predict("calls")
    lesson.reveal("calls", 10)
    assert ("0% off" in capsys.readouterr().out) == answers
    lesson.picture("one.svg", "<svg/>")
    (bundle,) = shown
    assert bundle["image/svg+xml"] == "<svg/>"
    # Bare SVG is not drawn in a notebook that was not trusted.
    image = re.search(r'<img alt="one" src="data:image/svg\+xml;base64,(.*)">', bundle["text/html"])
    assert image
    assert base64.b64decode(image[1]) == b"<svg/>"


def test_a_right_answer_is_recognised_and_a_wrong_one_is_not(capsys):
    from lesson import Lesson

    lesson = Lesson("a lesson", arguments=[])
    assert lesson.exercise("1 + 1", lambda a: a == 2, 2)
    assert not lesson.exercise("1 + 1", lambda a: a == 2, 3)
    assert not lesson.exercise("1 + 1", lambda a: a == 2, None)
    _, right, wrong, untried = capsys.readouterr().out.splitlines()
    assert right.endswith("-> 2 is right")
    assert wrong.endswith("-> 3 is not right yet")
    assert untried.endswith("(python test_tutorials.py --check 1 + 1 ANSWER)")


def test_an_answer_of_another_kind_is_not_right_and_no_error():
    from lesson import Lesson

    assert not Lesson("a lesson", arguments=[]).exercise("1 / 3", lambda a: abs(a - 1) < 1, "third")


@pytest.mark.parametrize(
    ("guess", "measured", "said"),
    [(110, 100, "10% off"), (50, 100, "50% off"), (200, 100, "100% off"),
     (500, 2, "250 times too high"), (1, 4, "4 times too low"), (500, 0, "500 off"),
     (0, 3, "3 off"), (0, 0, "right"), (100, 100, "0% off")],
)  # fmt: skip
def test_a_prediction_learns_how_far_off_it_was(guess, measured, said, capsys):
    from lesson import Lesson

    lesson = Lesson("a lesson", arguments=[])
    lesson.predict("bytes", guess)
    lesson.reveal("bytes", measured)
    assert f"the prediction was {said})" in capsys.readouterr().out


def test_each_erratum_that_tutorial_21_runs_is_listed_and_has_its_test():
    text = (FOLDER / "21_reading_a_paper_critically.py").read_text()
    named = re.findall(r"`(00\d-[\w-]+)`", text)
    assert len(named) >= 5
    page = (FOLDER.parent / "docs" / "errata.md").read_text()
    for name in named:
        (item,) = re.findall(rf"^- \*\*`{name}`.*?(?=^- |\n\n)", page, re.M | re.S)
        path, _, test = re.search(r"`(tests/[^`]+)`", item)[1].partition("::")
        assert f"def {test}(" in (FOLDER.parent / path).read_text()


@pytest.mark.parametrize("name", WITH_A_LEGEND)
def test_a_legend_explains_every_colour_of_its_picture(name):
    picture = ElementTree.parse(FOLDER / "pictures" / f"{name}.svg")
    boxes = [box.attrib for box in picture.iter("{http://www.w3.org/2000/svg}rect")]
    explained = {box["fill"] for box in boxes if float(box["width"]) == float(box["height"]) == 12}
    drawn = {box["fill"] for box in boxes} & set(COLOURS)
    assert explained, "a legend is a row of boxes of 12 x 12 pixels"
    assert drawn <= explained


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_syllabus_says_what_the_tutorial_says(script):
    head = script.read_text()[:1200]
    rows = (FOLDER / "README.md").read_text().splitlines()
    (row,) = (line for line in rows if f"({script.name})" in line)
    _, _, needed, minutes, _ = (cell.strip() for cell in row.strip("|").split("|"))
    assert re.search(r"\*\*Minutes:\*\* (\d+)", head)[1] == minutes
    stated = head.partition("**Prerequisites:**")[2].partition("**Minutes:**")[0]
    assert re.findall(r"\b\d\d\b", stated) == re.findall(r"\b\d\d\b", needed)
