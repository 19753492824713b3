"""`ooctrain diff` and `report --against`: where two lists part, from each kind of file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ooctrain.cli import main

SMALL = ["lenet", "--batch", "8", "--threads", "1", "--machine", "v100-pcie", "--budget", "40%"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{planner: (record, plan file)} of the same step."""
    folder, found = tmp_path_factory.mktemp("steps"), {}
    for planner in ("belady", "naive"):
        record, plan = folder / f"{planner}.json", folder / f"{planner}.plan"
        asked = [*SMALL, "--planner", planner, "--json", str(record), "--save", str(plan)]
        assert main(["plan", *asked]) == 0
        found[planner] = (str(record), str(plan))
    return found


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return [line[0] for line in json.load(file)["list"]["lines"]]


def test_the_first_instruction_that_differs_is_shown_with_both_lines(files, capsys, tmp_path):
    (a, _), (b, _) = files["belady"], files["naive"]
    ours, theirs = lines_of(a), lines_of(b)
    first = next(k for k, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y)
    assert main(["diff", a, b, "--json", str(tmp_path / "x.json")]) == 0
    shown = capsys.readouterr().out
    assert f"  - {first:4d}  {ours[first]}\n  + {first:4d}  {theirs[first]}\n" in shown
    assert "only in A" in shown
    assert "swapped out" in shown
    told = json.loads((tmp_path / "x.json").read_text())
    assert (told["first"], told["equal"]) == (first, False)
    assert (told["a_line"], told["b_line"]) == (ours[first], theirs[first])
    assert told["a_lines"] - told["only_in_a"] == told["b_lines"] - told["only_in_b"]


def test_equal_lists_are_equal(files, capsys):
    record, _ = files["naive"]
    assert main(["diff", record, record, "--exit-code"]) == 0
    assert f"the lists are equal: {len(lines_of(record))} lines" in capsys.readouterr().out


def test_the_exit_code_tells_scripts_only_when_asked(files):
    (a, _), (b, _) = files["belady"], files["naive"]
    assert main(["diff", a, b]) == 0
    assert main(["diff", a, b, "--exit-code"]) == 1


def test_plan_files_and_texts_compare_with_their_like(files, capsys, tmp_path):
    (record, a), (_, b) = files["belady"], files["naive"]
    assert main(["diff", a, b, "--exit-code"]) == 1
    assert "@" in capsys.readouterr().out, "a plan file has ids"
    one, other = tmp_path / "a.txt", tmp_path / "b.txt"
    one.write_text("# mine\nrun f1\n\n  free x\n")
    other.write_text("run f1\nout x\n")
    assert main(["diff", str(one), str(other)]) == 0
    assert "  -    1  free x\n  +    1  out x\n" in capsys.readouterr().out
    assert main(["diff", record, a]) == 2
    assert "[OOC-118]" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["missing", "not JSON", "a list of numbers", "old"])
def test_what_has_no_list_is_one_clear_block(kind, files, capsys, tmp_path):
    path = tmp_path / "x.json"
    numbers = json.loads(Path(files["naive"][0]).read_text(encoding="utf-8"))
    del numbers["list"]
    text = {"not JSON": "{]", "a list of numbers": "{}", "old": json.dumps(numbers)}.get(kind)
    if text is not None:
        path.write_text(text)
    assert main(["diff", str(path), files["naive"][0]]) == 2
    shown = capsys.readouterr().err
    assert "[OOC-118]" in shown
    assert "Traceback" not in shown


def test_a_report_against_another_says_where_they_part_and_writes_both(files, capsys, tmp_path):
    (a, _), (b, _) = files["belady"], files["naive"]
    page = tmp_path / "both.html"
    assert main(["report", a, "--against", b, "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "against lenet, batch 8, planner naive" in shown
    assert "lines are equal" in shown
    assert 'id="list-b"' in page.read_text()
    assert main(["report", a, "--html", str(page)]) == 0
    assert 'id="list-b"' not in page.read_text()


@pytest.mark.parametrize("text", ["rubbish", "", "run f1\nrubbish f1\n"])
def test_a_text_that_is_no_list_is_refused(tmp_path, capsys, text):
    """Two files of anything else are not equal lists."""
    path = tmp_path / "x.txt"
    path.write_text(text)
    assert main(["diff", str(path), str(path)]) == 2
    assert "[OOC-118]" in capsys.readouterr().err
