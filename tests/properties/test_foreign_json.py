"""Each file of JSON that is read: whatever stands in it, however deeply nested, errors are typed.

`READERS` is the list of all readers, each with a file that it takes. In each place of that file
stands, in turn, a value of another type, or lists within lists, few or 100,000.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.quick import all_but
from zoo.planting import plant

import ooctrain as oc
from ooctrain.alloc import AllocationLog
from ooctrain.alloc.log import FORMAT, VERSION
from ooctrain.course import rubric
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.execution import checkpoint, checkpoint_file
from ooctrain.report.record import read_record
from ooctrain.step import schema
from ooctrain.step.presets import PRESETS, load_calibration, save_calibration
from ooctrain.step.schema import MOST_NESTED, parse_json

PACKAGE = Path(oc.__file__).parent
TRACE = oc.trace(oc.models.build("lenet"), (2, 3, 32, 32))
DEPTHS = (1, 50, MOST_NESTED, 300, 950, 5_000, 100_000)
NESTED = "@nested@"
OTHERS = [None, True, -1, 1.5, 10**400, "x", [], {}, [[1]], NESTED]
LOG = [
    {"format": FORMAT, "version": VERSION, "granule": {"size_bytes": 512},
     "budget_bytes": 4096, "allocator": "best-fit"},
    {"op": "allocate", "id": 1, "bytes": 512, "tag": "a"}, {"op": "free", "id": 1},
]  # fmt: skip


def a_record() -> dict[str, Any]:
    plan = oc.plan(TRACE, "60%", planner="lru", machine="cpu-generic")
    timeline = oc.simulate(plan, plan.trace, "cpu-generic").to_json()
    timeline["events"], timeline["ledger"] = timeline["events"][:2], timeline["ledger"][:2]
    return {"model": "lenet", "batch": 2, "timeline": timeline, "phases": {"conv1": "forward"},
            "holdings": [["w", "parameters", 4, 0.0, 1.0]], "budget_bytes": 9}  # fmt: skip


def a_plan() -> dict[str, Any]:
    found = oc.plan(TRACE, "60%", planner="lru", machine="cpu-generic").to_json()
    for part in ("instructions", "start_device", "start_host"):
        found["schedule"][part] = found["schedule"][part][:2]
    return found


def a_calibration(folder: Path) -> dict[str, Any]:
    path = folder / "made.json"
    save_calibration(PRESETS["cpu-generic"], path)
    return json.loads(path.read_text())


A_STATE = {
    "version": 2, "step": 3, "epoch": 1, "seed": 0, "data": {"epoch": 1, "position": 0},
    "schedule": {"lr": [0.1]}, "config": {"model": "lenet"}, "history": {"losses": [1.0]},
    "updates": {"w": 2},
}  # fmt: skip
ASSIGNMENT = PACKAGE.parent / "tutorials" / "assignments" / "lru_planner"


def read_state(path: str) -> object:
    """The JSON that a checkpoint carries, as it is read out of one."""
    text = Path(path).read_text()
    return checkpoint._parse_state(path, {checkpoint_file.STATE_KEY: text})


def a_rubric(folder: Path) -> dict[str, Any]:
    (folder / "test_lru.py").touch()
    found = tomllib.loads((ASSIGNMENT / "grade.toml").read_text())
    (folder / found["tests"]["file"]).touch()
    return found


def read_rubric_of(path: str) -> object:
    """A rubric whose tables come from JSON, since nobody writes TOML here."""
    folder = Path(path).parent
    (folder / rubric.RUBRIC).write_text(Path(path).read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rubric.tomllib, "loads", parse_json)
        return rubric.read_rubric(folder)


#: {kind of file: (reads it, a file that can be read)}; a log has a line for each part.
READERS: dict[str, tuple[Callable[[str], object], Callable[[Path], Any]]] = {
    "record": (read_record, lambda folder: a_record()),
    "plan": (lambda path: oc.load_plan(path, TRACE), lambda folder: a_plan()),
    "calibration": (lambda path: load_calibration(Path(path)), a_calibration),
    "log": (AllocationLog.load, lambda folder: LOG),
    "checkpoint": (read_state, lambda folder: A_STATE),
    "rubric": (read_rubric_of, a_rubric),
}


def places(data: Any, at: tuple = ()) -> Iterator[tuple]:
    """Every place in nested lists and dictionaries, and that of the whole."""
    yield at
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield from places(data[key], (*at, key))


def with_other(data: Any, at: tuple, value: Any) -> Any:
    if not at:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[at[0]] = with_other(data[at[0]], at[1:], value)
    return copy


def text_of(kind: str, data: Any, depth: int) -> str:
    parts = data if kind == "log" and isinstance(data, list) else [data]
    lists = "[" * depth + "]" * depth
    return "\n".join(json.dumps(part).replace(f'"{NESTED}"', lists) for part in parts)


def says_where(error: OoctrainError, kind: str) -> bool:
    """Whether an error names the place in the file, and what mends it."""
    if error.code in ("OOC-210", "OOC-106", "OOC-312") or "nested" in error.what:
        return True  # of another step, name or version; too deep for any place
    places = ("$", "it is ", "it has no", "it holds no", "request ", "not a header")
    named = kind == "rubric" or any(place in error.what for place in places)
    return bool(error.fix) and named


@pytest.mark.parametrize("kind", all_but(READERS, "plan", "checkpoint", "rubric", "calibration"))
def test_what_is_read_is_read_or_refused(kind, tmp_path):
    read, make = READERS[kind]
    right, path = make(tmp_path), tmp_path / "file.json"
    path.write_text(text_of(kind, right, 0))
    if kind in ("log", "calibration", "record"):
        read(str(path))
    untyped = []
    for at in places(right):
        for value in OTHERS:
            for depth in DEPTHS if value == NESTED else (0,):
                path.write_text(text_of(kind, with_other(right, at, value), depth))
                try:
                    read(str(path))
                except OoctrainError as error:
                    if not says_where(error, kind):
                        untyped.append(f"{at} {value} {depth}: {error}")
                except Exception as error:
                    untyped.append(f"{at} {value} {depth}: {type(error).__name__}")
    assert not untyped, untyped


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_a_field_that_is_lost_or_misspelt_is_named_or_not_needed(kind, tmp_path):
    read, make = READERS[kind]
    right, path = make(tmp_path), tmp_path / "file.json"
    wrong: list[str] = []
    for at in places(right):
        *above, name = at or [None]
        if not isinstance(name, str):
            continue
        for other in ((), (f"{name}x",)):
            around = right
            for key in above:
                around = around[key]
            changed = {k: v for k, v in around.items() if k != name}
            changed |= dict.fromkeys(other, around[name])
            path.write_text(text_of(kind, with_other(right, tuple(above), changed), 0))
            try:
                read(str(path))
            except OoctrainError as error:
                wrong += [] if says_where(error, kind) else [f"{at}: {error}"]
    assert not wrong, wrong


def test_an_error_names_the_place_what_was_expected_and_a_fix(tmp_path):
    path, plan = tmp_path / "plan.json", a_plan()
    plan["schedule"]["instructions"][1] = ["runn", 1, None]
    path.write_text(json.dumps(plan))
    with pytest.raises(ConfigError) as caught:
        oc.load_plan(str(path), TRACE)
    error = caught.value
    assert (error.code, error.where) == ("OOC-104", "$.schedule.instructions[1][0]")
    assert "expected 'run' or 'end' or 'out' or 'in' or 'free' or 'fence', got 'runn'" in error.what
    assert str(path) in error.what
    assert "--save FILE" in error.fix

    machine = a_calibration(tmp_path)
    machine["machine"]["latncy_us"] = machine["machine"].pop("latency_us")
    path.write_text(json.dumps(machine))
    with pytest.raises(ConfigError, match="did you mean 'latency_us'") as caught:
        load_calibration(path)
    assert caught.value.where == "$.machine.latncy_us"


@pytest.mark.slow
def test_the_law_bites_on_errors_of_msgspec_itself(monkeypatch, tmp_path):
    piece = "except msgspec.ValidationError as error:"
    plant(monkeypatch, schema, "fitted", piece, "except ZeroDivisionError as error:")
    monkeypatch.setattr(schema, "_UNTYPED", (OSError,))
    with pytest.raises(AssertionError, match="ValidationError"):
        test_what_is_read_is_read_or_refused("calibration", tmp_path)


@pytest.mark.slow
def test_the_law_bites_on_a_lost_place(monkeypatch, tmp_path):
    plant(monkeypatch, schema, "_misfit", "return Misfit(place,", "return Misfit('',")
    with pytest.raises(AssertionError, match="not a calibration"):
        test_what_is_read_is_read_or_refused("calibration", tmp_path)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "[" * (MOST_NESTED + 1) + "]" * (MOST_NESTED + 1)],
    ids=["lists", "objects", "one too many"],
)
def test_what_is_nested_too_deep_is_no_json(text):
    with pytest.raises(ValueError):
        parse_json(text)


@pytest.mark.parametrize("text", ['"[[[["', r'"\"[\\"', "[" * MOST_NESTED + "]" * MOST_NESTED])
def test_brackets_in_words_are_words(text):
    many = "[" + ",".join([text if text[0] == '"' else "[]"] * 3 * MOST_NESTED) + "]"
    assert parse_json(many) == json.loads(many)
    assert parse_json(text) == json.loads(text)


#: Who reads JSON with Python's own function, and why it may.
ALLOWED = {
    "step/schema.py": "it is the reader",
    "sched/plan_file.py": "what it has just written itself",
    "experiments/kept.py": "behind a checksum of what it has written itself",
    "testing/allocator_client.py": "what it has just written itself",
    "experiments/paper_004/ranks_program.py": "what the process that started it asks",
    "experiments/paper_004/distributed.py": "what the ranks that it started print",
    "sched/instructions.py": "a name in quotes, whose errors it tells itself",
}


def test_nobody_else_reads_json():
    """A reader that is added comes into `READERS`. `course/` has ways of its own."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "json" in text else ():
            if (
                isinstance(node, ast.Attribute)
                and node.attr in ("load", "loads", "JSONDecoder")
                and isinstance(node.value, ast.Name)
                and node.value.id == "json"
                and not name.startswith("course/")
            ):
                found.add(name)
    assert found == set(ALLOWED)
