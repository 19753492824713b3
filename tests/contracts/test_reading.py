"""docs/reading.md can be followed: each path exists, is short, and never points back; each answer
stands in the room that the map of rooms names for it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from contracts.test_floor_plan import MODULES, imports_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ooctrain"
PAGE = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST_LINES, DOORS, QUESTIONS = 1200, 2, 12
Step = tuple[str, tuple[str, ...]]  # file, and the parts of it that belong to the path


def steps_of(text: str) -> list[list[Step]]:
    """The numbered lists of a section: files in reading order."""
    lists: list[list[Step]] = []
    for number, line in re.findall(r"^(\d)\. (.*)$", text, re.M):
        file, rest = re.fullmatch(r"`([^`]+)`(.*)", line).groups()
        parts = re.match(r" \(([^)]*)\):", rest)
        names = tuple(re.findall(r"`([^`]+)`", parts[1])) if parts else ()
        if number == "1":
            lists.append([])
        lists[-1].append((file, names))
    return lists


SECTIONS = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
PATHS = {
    title: steps_of(text)[0]
    for title, text in SECTIONS.items()
    if title != "Side doors" and steps_of(text)
}
ALL_PATHS = {**PATHS, **{f"door {n}": p for n, p in enumerate(steps_of(SECTIONS["Side doors"]))}}


def lines_of(step: Step) -> int:
    file, parts = step
    text = (PACKAGE / file).read_text(encoding="utf-8")
    if not parts:
        return len(text.splitlines())
    found = {}
    for node in ast.parse(text).body:
        members = node.body if isinstance(node, ast.ClassDef) else []
        for inner, prefix in [(node, ""), *((member, f"{node.name}.") for member in members)]:
            if isinstance(inner, ast.ClassDef | ast.FunctionDef):
                found[f"{prefix}{inner.name}"] = inner.end_lineno - inner.lineno + 1
    return sum(found[part] for part in parts)


def module_of(file: str) -> str:
    return next(name for name, path in MODULES.items() if path == PACKAGE / file)


def test_there_are_five_paths_and_two_side_doors_of_five_files():
    assert list(PATHS) == [
        "Swap: the whole idea",
        "Autograd",
        "Recompute",
        "Tile",
        "Allocator and driver",
    ]
    doors = steps_of(SECTIONS["Side doors"])
    assert len(doors) == DOORS
    assert {len(door) for door in doors} == {5}


@pytest.mark.parametrize("title", ALL_PATHS)
def test_a_path_is_there_and_short(title):
    assert sum(map(lines_of, ALL_PATHS[title])) <= MOST_LINES


@pytest.mark.parametrize("title", ALL_PATHS)
def test_a_path_never_points_back(title):
    modules = [module_of(file) for file, _ in ALL_PATHS[title]]
    for position, module in enumerate(modules):
        assert not set(imports_of(module)) & set(modules[position + 1 :]), module


@pytest.mark.parametrize("title", PATHS)
def test_a_path_names_its_law_and_a_planted_bug(title):
    text = SECTIONS[title]
    laws = re.findall(r"`(tests/properties/\w+\.py)`", text)
    assert laws
    assert all((ROOT / law).is_file() for law in laws)
    bug, file = re.search(r"Planted\s+bug:\s+\"([^\"]+)\"\s+in\s+`([^`]+)`", text).groups()
    assert " ".join(bug.split()) in (ROOT / file).read_text(encoding="utf-8")


def rooms_of_the_map() -> list[str]:
    """Rooms that the table of docs/architecture.md describes, the narrowest first."""
    table = re.search(r"## Rooms\n(.*?)\n## ", MAP, re.S)[1]
    rows = re.findall(r"^\| (`.*?) \|", table, re.M)
    return sorted((room for row in rows for room in re.findall(r"`([^`]+/)`", row)), key=len)[::-1]


def test_each_question_has_its_answer_in_a_room_of_the_map():
    rows = re.findall(r"^\| (.*\?) \| (.*) \|$", SECTIONS["Where is ...?"], re.M)
    assert len(rows) == QUESTIONS
    rooms = rooms_of_the_map()
    for question, answer in rows:
        for file in re.findall(r"`([^`]+)`", answer):
            assert (PACKAGE / file).is_file(), question
            assert any(file.startswith(room) for room in rooms), question


#: What a newcomer should guess: the room in which each answer stands.
GUESSES = {
    "swapping": "sched/", "best-fit": "alloc/", "backward of a conv": "layers/",
    "a planner go": "sched/planners/", "an allocator go": "alloc/", "a rewrite go": "rewrite/",
    "resident": "sched/planning/", "LP bound": "sched/bounds/", "table 1": "experiments/",
    "without a GPU": "testing/", "batch-norm": "layers/kernels/", "an operation go": "layers/",
}  # fmt: skip


@pytest.mark.parametrize("word", GUESSES)
def test_an_answer_is_where_a_newcomer_looks_first(word):
    (answer,) = re.findall(rf"^\| [^|]*{word}[^|]* \| (.*) \|$", SECTIONS["Where is ...?"], re.M)
    assert all(file.startswith(GUESSES[word]) for file in re.findall(r"`([^`]+)`", answer))
