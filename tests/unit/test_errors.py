"""Every error of the library: one tree, readable text, picklable with all its fields."""

from __future__ import annotations

import inspect
import pickle

import pytest

from ooctrain import errors
from ooctrain.errors import OoctrainError, unknown_name

EXTRA = {
    "minimum_bytes": 7, "witness_call": "conv1.fwd", "reserved_bytes": 9, "budget_bytes": 8,
    "rule": "R203", "line": 3, "column": 9,
    "index": 4, "call": "mmap", "status": 12, "path": "x.bin", "offset": 3, "step": 5,
}  # fmt: skip
CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, OoctrainError)
]


def make(kind: type[OoctrainError]) -> OoctrainError:
    names = [p for p in inspect.signature(kind.__init__).parameters if p in EXTRA]
    return kind("what", where="here", numbers="1 of 2", fix="mend", **{n: EXTRA[n] for n in names})


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_pickling_with_all_its_fields(kind):
    error = make(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_says_what_where_how_much_and_what_to_do(kind):
    lines = str(make(kind)).splitlines()
    assert lines[0].endswith("what")
    assert lines[0].startswith("[")
    assert lines[1:] == ["  where: here", "  numbers: 1 of 2", "  likely fix: mend"]
    assert str(kind("only", **_needed(kind))).count("\n") == 0


def test_default_codes_are_unique():
    codes = [kind.default_code for kind in CLASSES]
    assert len(set(codes)) == len(codes)


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = [
        line.split("+-- ")[1].split()[0] for line in errors.__doc__.splitlines() if "+-- " in line
    ]
    assert sorted(drawn) == sorted(kind.__name__ for kind in CLASSES if kind is not OoctrainError)


def test_errors_are_also_the_builtin_kind_that_callers_expect():
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.OutOfDeviceMemory, MemoryError)


def _needed(kind: type[OoctrainError]) -> dict:
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {p.name: EXTRA[p.name] for p in parameters if p.name in EXTRA and p.default is p.empty}


def test_names_to_choose_from_are_not_called_numbers():
    shown = str(unknown_name("no model is called", "lenett", ["alexnet", "lenet"], "one of these"))
    assert "\n  known: alexnet, lenet\n" in shown
    assert "numbers" not in shown
