"""JSON files that users give: one way to read them all, whose errors name the place inside the
file.

The schema of a file is a class: its fields, their types and their bounds. msgspec compares what was
read with the class and makes an object of it, or says where the file differs; here that becomes an
error of this library with the place ("$.schedule.instructions[3][1]"), what was expected there,
what stands there, and a fix. What no type can say, such as that one time is not before another, the
reader checks afterwards, and refuses in the same words (`Misfit`). A field that a dataclass does
not have is an error, since people write such files, and it is most likely a misspelling; a
`msgspec.Struct` is read from files to which later versions may add. Source: msgspec,
https://jcristharif.com/msgspec. Read next: `sched/plan_schema.py`, the largest schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec.inspect import (
    DataclassType,
    DictType,
    ListType,
    LiteralType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from ooctrain.errors import ConfigError, OoctrainError, did_you_mean, reason
from ooctrain.step.user_values import as_path

#: Lists within lists, in files that this library reads.
MOST_NESTED = 100
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(r"[][{}]")


def parse_json(text: str) -> Any:
    """Plain data from JSON.

    Raises:
        ValueError: it is not JSON, or nested deeper than any file of this library.
    """
    if text.count("[") + text.count("{") > MOST_NESTED and _depth(text) > MOST_NESTED:
        raise ValueError(f"lists are nested deeper than {MOST_NESTED}")
    return json.loads(text)


def _depth(text: str) -> int:
    """How deep lists and objects are nested, whether or not they are closed."""
    brackets = _BRACKET.findall(_STRING.sub("", text))
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)


Schema = TypeVar("Schema")
_LARGEST = 1e300
_MOST = (1 << 63) - 1
#: A whole number of 64 bits; from 0 on, as of bytes or of places in a list.
Whole = Annotated[int, msgspec.Meta(ge=-_MOST - 1, le=_MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
#: A number that is neither infinite nor "not a number".
Finite = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
#: The same from 0 on, as of durations.
Duration = Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]
_PLACE = re.compile(r"(?s)(.*) - at `(?:key` in `)?(\$.*)`")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_MISSING = re.compile("Object missing required field `(.*)`")
_TOO_LARGE = "Number out of range"
_TOP = "$"
_UNTYPED = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip


class Misfit(ValueError):
    """What stands in a file is not what its schema says.

    Attributes:
        place: place in the file, such as "$.budget_bytes".
        why: the reason, in words.
    """

    def __init__(self, place: str, why: str):
        super().__init__(f"{place}: {why}")
        self.place, self.why = place, why


@dataclass(frozen=True, slots=True)
class FileKind(Generic[Schema]):
    """A kind of file that users give.

    Args:
        schema: the class of what is in it.
        denial: what is said of any other file, such as "is not a plan file".
        code: code of its errors.
        fix: fix of its errors, where none nearer is known.
    """

    schema: type[Schema]
    denial: str
    code: str
    fix: str

    def read(self, path: str | Path) -> Schema:
        """What a file of JSON says. Raises an error: not there, or not such a file."""
        return self.made(self.plain(path), str(path))

    def plain(self, path: str | Path) -> Any:
        """A file of JSON as plain data. Raises an error: not there, or not JSON."""
        try:
            return parse_json(as_path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self.refused(str(path), reason(error)) from error

    def made(self, data: Any, name: str = "") -> Schema:
        """What plain data says.

        Args:
            name: name of the file, for the error.

        Raises:
            ConfigError: it is not what the schema says.
        """
        try:
            return fitted(self.schema, data)
        except Misfit as misfit:
            raise self.refused(name, misfit) from misfit

    def refused(self, name: str, why: str | Misfit, fix: str = "") -> ConfigError:
        """The error for a file that is not of this kind."""
        place = why.place if isinstance(why, Misfit) else ""
        text = f"{name or 'this'} {self.denial}: {why}"
        return ConfigError(text, code=self.code, where=place, fix=fix or self.fix)


def fitted(schema: type[Schema], data: Any) -> Schema:
    """An object of a class from plain data. Raises Misfit: they do not fit."""
    kind: Any = schema
    for place, why in _unknown(_described(kind), data, _TOP):
        raise Misfit(place, why)
    try:
        return msgspec.convert(data, schema)
    except msgspec.ValidationError as error:
        raise _misfit(schema, data, error) from error
    except _UNTYPED as error:  # a class that makes itself, or a number that nothing can hold
        raise Misfit(_TOP, str(error) or type(error).__name__) from error


@lru_cache(maxsize=64)  # a log has a line for each request
def _described(schema: Hashable) -> Type:
    return type_info(schema)


def _misfit(schema: type, data: Any, error: msgspec.ValidationError) -> Misfit:
    """msgspec's error in our words; where a word is none of several, these are added."""
    found = _PLACE.fullmatch(str(error))
    words, place = (found[1], found[2]) if found else (str(error), _TOP)
    cause = error.__cause__
    if isinstance(cause, OoctrainError):
        words = cause.what
    allowed = _allowed(_described(schema), _STEP.findall(place))
    missing = _MISSING.fullmatch(words)
    if missing:
        words = f"the field {missing[1]!r} is missing"
    elif place.endswith(".version") and allowed:
        words = f"the file is version {_at(data, place)!r}, this library reads {allowed}"
    elif allowed and words.startswith("Invalid"):
        words = f"expected {allowed}, got {_at(data, place)!r}"
    elif words == _TOO_LARGE:
        words = "expected a finite number, got a larger one"
    return Misfit(place, words[:1].lower() + words[1:].replace("`", ""))


def _allowed(kind: Type, steps: Sequence[tuple[str, str]]) -> str:
    """The words that may stand at a place; "" where anything of a type may."""
    if isinstance(kind, UnionType):
        tags = [one.tag for one in kind.types if isinstance(one, StructType)]
        if tags and [number for _, number in steps] == ["0"]:
            return _either(tags)
        parts = (_allowed(one, steps) for one in kind.types)
        return next((found for found in parts if found), "")
    if not steps:
        return _either(kind.values) if isinstance(kind, LiteralType) else ""
    (name, _), rest = steps[0], steps[1:]
    if isinstance(kind, DataclassType | StructType) and name:
        field = next((one for one in kind.fields if one.encode_name == name), None)
        return _allowed(field.type, rest) if field else ""
    if isinstance(kind, ListType | VarTupleType):
        return _allowed(kind.item_type, rest)
    inner = _inner(kind, steps[0])
    return _allowed(inner, rest) if inner else ""


def _inner(kind: Type, step: tuple[str, str]) -> Type | None:
    """The type of a part of a row, or of a value of a dictionary."""
    if isinstance(kind, DictType):
        return kind.value_type
    row = getattr(kind, "item_types", ())
    number = int(step[1]) if step[1].isdecimal() else -1
    return row[number] if 0 <= number < len(row) else None


def _either(values: Sequence[Any]) -> str:
    return " or ".join(repr(value) for value in values)


def _at(data: Any, place: str) -> Any:
    """What stands at a place."""
    for name, number in _STEP.findall(place):
        data = data[name] if name else data[int(number)]
    return data


def _unknown(kind: Type, data: Any, place: str) -> Iterator[tuple[str, str]]:
    """Fields that dataclasses do not know, with what was perhaps meant."""
    if isinstance(kind, DataclassType | StructType) and isinstance(data, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for name, value in data.items():
            if name in fields:
                yield from _unknown(fields[name], value, f"{place}.{name}")
            elif isinstance(kind, DataclassType):
                meant = did_you_mean(str(name), fields)
                known = f"known: {', '.join(fields)}"
                yield f"{place}.{name}", f"no field is called so; {meant or known}"
    elif isinstance(kind, ListType | VarTupleType) and isinstance(kind.item_type, DataclassType):
        for number, value in enumerate(data if isinstance(data, list | tuple) else ()):
            yield from _unknown(kind.item_type, value, f"{place}[{number}]")
