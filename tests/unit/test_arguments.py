"""How arguments are taken by their annotations: every kind, with everything people give.

Each row of the table is an annotation and what becomes of each value: "=" is taken as it is, "-" is
refused, "s" too, by its shape or type, and "#" gets another form, of which the digest is. Read
next: `../strangers/test_arguments_of_any_type.py`, which asks the library's own functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, Literal, SupportsFloat

import numpy as np
import pytest
from support import known

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.errors import ConfigError
from ooctrain.step.arguments import checked, checked_but, real, shown, truth, whole
from ooctrain.step.chain import toy_machine

LARGEST = (1 << 63) - 1
#: Read and written without a change, so that "=" says that the very object is given on.
VALUES = [
    0, 1, -2, LARGEST, LARGEST + 1, -LARGEST, -LARGEST - 1, 10**400, True, np.True_, None, 0.5,
    math.inf, np.int8(3), np.uint64(2**63), np.float32(0.25), np.array(4), np.array(0.75),
    np.array(True), np.array([1, 2]), np.array([0.5]), 2j, "2", "", b"2", (1, 2), [1, np.int64(2)],
    (1, (2, 3)), (0.5, None), [], {"a": 1}, {1, 2}, range(2), Path("x"), int, len, object(),
]  # fmt: skip
NOTHING = Any  # what says nothing that can be checked
ANNOTATIONS: Mapping[str, Any] = {
    "None": NoneType, "int": int, "float": float, "bool": bool, "str": str, "Path": Path,
       "PathLike": PathLike, "array": np.ndarray, "SupportsFloat": SupportsFloat,
    **{str(hint).replace("collections.abc.", "").replace("typing.", ""): hint for hint in (
        int | None, bool | None, None | bool, float | str, int | float, tuple[int, int],
        tuple[int, ...], tuple[int, float], list[str], Sequence[float], Sequence[NOTHING],
        Iterable[int], Iterable[NOTHING], Iterable[tuple[int, str]], Sequence[int | None],
        tuple[int, int] | None, Sequence[Sequence[int]], Literal["a", "b"],
        Callable[[int], int], Mapping[str, int], dict[str, int], PathLike[str], int | NOTHING,
        Sequence, Mapping[str, int] | Sequence[int], Iterable, Callable, Mapping,
    )},
}  # fmt: skip


def taking(annotation):
    def function(x):
        return x

    function.__annotations__["x"] = annotation
    return checked(function)


def outcome(call, value):
    try:
        got = call(value)
    except ConfigError as error:
        return "-" if error.code == "OOC-106" and type(error) is ConfigError else "s"
    if got is value:
        return "="
    if isinstance(got, np.ndarray):
        return f"array {got.dtype} {got.tolist()}"
    kinds = ",".join(type(g).__name__ for g in got) if isinstance(got, tuple) else ""
    return f"{type(got).__name__} {got!r} {kinds}".strip()


def test_what_becomes_of_each_value():
    rows = []
    for name, annotation in ANNOTATIONS.items():
        call = taking(annotation)
        found = [outcome(call, value) for value in VALUES]
        marks = "".join(f if len(f) == 1 else "#" for f in found)
        rows.append((name, marks, known.digest([f for f in found if len(f) > 1])))
    known.check_rows("arguments", "annotations", rows)


def things():
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    return [
        oc.tensor([1.0]), model.weight, optimizer, optim.StepLR(optimizer, 10), toy_machine(),
        oc.Granule(512),
    ]  # fmt: skip


def test_objects_of_the_library_are_known_by_their_class_and_those_it_derives_from():
    class Tensor:
        """Of the same name, and not of the library."""

    given = things()
    for kind in map(type, given):
        call = taking(kind)
        fitting = [outcome(call, thing) == "=" for thing in given]
        assert fitting == [isinstance(thing, kind) for thing in given]
        assert outcome(call, Tensor()) in "s-"
    assert outcome(taking(SupportsFloat), given[0]) == "="


def test_numbers_by_definition():
    for value in (3, np.int8(3), np.array(3), np.uint64(3)):
        assert (whole(value), type(whole(value)), real(value), type(real(value))) == (
            3, int, 3, int,
        )  # fmt: skip
    assert (real(np.float32(0.5)), real(np.array(0.5)), real(np.True_)) == (0.5, 0.5, 1)
    assert [whole(v) for v in (LARGEST, -LARGEST)] == [LARGEST, -LARGEST]
    for value in (LARGEST + 1, -LARGEST - 1):
        with pytest.raises(OverflowError):
            whole(value)
    assert [truth(v) for v in (0, 2, None, np.False_, np.array(1))] == [
        False, True, False, False, True,
    ]  # fmt: skip
    for take, value in ((whole, True), (whole, np.array(True)), (real, "1"), (truth, 0.5)):
        with pytest.raises(TypeError):
            take(value)


def test_a_value_is_shown_as_it_is_where_it_is_short():
    assert shown(np.zeros((2, 3), np.int8)) == "an array (2, 3) of int8"
    assert shown(np.array(2)) == "array(2)"
    assert shown(LARGEST) == str(LARGEST)
    assert shown(-LARGEST - 1) == shown(1 << 63) == "a whole number of 64 bits"
    assert shown("x" * 38) == repr("x" * 38)
    assert shown("x" * 39) == "of type str"


def test_every_place_of_a_call_is_looked_at():
    @checked
    def function(a: int, b: float = 1.0, *rest: int, c: bool = False, d=None, **more: int):
        return a, b, rest, c, d, more

    got = function(np.int64(1), np.array(2), np.array(3), 4, c=1, d=np.int64(5), e="6")
    assert got == (1, 2, (3, 4), True, np.int64(5), {"e": "6"})
    assert [type(v) for v in (*got[:2], *got[2], got[3])] == [int, int, int, int, bool]
    for words, place in (
        ({"a": "1"}, "a"), ({"a": 1, "b": "x"}, "b"), ({"a": 1, "c": "no"}, "c"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^.*function: {place} is "):
            function(**words)
    with pytest.raises(ConfigError, match="function: rest is 'x'"):
        function(1, 2, 3, "x")
    with pytest.raises(ConfigError, match=r"without quotes: a=-1\.5"):
        function(" -1.5 ")
    with pytest.raises(ConfigError) as found:
        function("1.2.3")
    assert "quotes" not in str(found.value)
    with pytest.raises(TypeError):
        function()


def test_more_than_there_are_places_is_pythons_own_error():
    with pytest.raises(TypeError, match="2 were given"):
        taking("int")(1, 2)


def test_some_arguments_are_the_functions_own_business_and_classes_are_checked_too():
    @checked_but("b")
    def function(a: int, b: int):
        return a, b

    assert function(np.int8(1), "any") == (1, "any")

    @checked
    class Thing:
        def __init__(self, size: int):
            self.size = size

    assert type(Thing(np.int8(2)).size) is int
    with pytest.raises(ConfigError, match="Thing: size is 'x'"):
        Thing("x")

    @checked
    def says_more(a: int | NOTHING):
        raise ConfigError("of its own")

    with pytest.raises(ConfigError, match="of its own"):
        says_more("anything")
