"""Arguments of public functions, checked by their annotations where they enter.

A signature says what a function takes: `p: float`, `kernel_size: IntOrPair`, `stride: int | None`.
`checked` reads it once, when the function is defined, and looks at each argument of each call: the
number 2 of NumPy becomes Python's, an array without axes becomes its number, and text where a
number belongs is refused by name. So no function or class of the library checks types by itself;
ranges (a probability, a size of at least 1) are its own business. Annotations that are not in
`KINDS` are not looked at. Source: ours. Read next: `user_values.py`, for arrays and paths.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from numbers import Integral, Real
from operator import index
from os import PathLike
from typing import Any, TypeVar

import numpy as np

from ooctrain.errors import ConfigError, ShapeError
from ooctrain.step.user_values import as_numbers

C = TypeVar("C", bound=Callable[..., Any])
#: Takes a value, in the form that the function is given. Raises TypeError, ValueError or
#: OverflowError: it is not of this kind.
Taken = Callable[[Any], Any]
#: Kernels, files and schedules hold whole numbers of 64 bits.
_LARGEST = (1 << 63) - 1
_MOST_SHOWN = 40


def checked(call: C) -> C:
    """The same function, or class, whose arguments are checked by its annotations.

    Raises:
        ConfigError: when it is called, an argument is not of the kind that its annotation names.
    """
    return checked_but()(call)


def checked_but(*others: str) -> Callable[[C], C]:
    """`checked`, but for these arguments, of which the function itself has more to say."""

    def decorate(call: C) -> C:
        if isinstance(call, type):
            call.__init__ = _checked(call.__init__, call.__name__, others)  # type: ignore[misc]
            return call
        return _checked(call, call.__name__, others)

    return decorate


def _checked(function: Any, name: str, others: Collection[str]) -> Any:
    arguments = inspect.signature(function).parameters.values()
    found = {each: None if each.name in others else _kind_of(str(each.annotation))
             for each in arguments}  # fmt: skip
    kinds = {each.name: kind for each, kind in found.items()
             if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}  # fmt: skip
    order = [(e.name, k) for e, k in found.items() if e.kind == e.POSITIONAL_OR_KEYWORD]
    (more, many), *_ = [
        *[(e.name, k) for e, k in found.items() if e.kind == e.VAR_POSITIONAL],
        ("", None),
    ]

    def taken(argument: str, kind: tuple[str, Taken], value: Any) -> Any:
        words, take = kind
        try:
            return take(value)
        except ConfigError:  # which says more
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise _misfit(name, argument, words, value) from error

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        places = [taken(argument, kind, value) if kind else value
                  for (argument, kind), value in zip(order, given, strict=False)]  # fmt: skip
        rest = given[len(places) :]  # of *sizes, or more than there are
        places += [taken(more, many, value) for value in rest] if many else rest
        for argument, value in named.items():
            if kind := kinds.get(argument):
                named[argument] = taken(argument, kind, value)
        return function(*places, **named)

    return call


def _misfit(name: str, argument: str, words: str, value: Any) -> ConfigError:
    text = isinstance(value, str) and value.strip().lstrip("+-").replace(".", "", 1).isdigit()
    error = ShapeError if words == KINDS["Tensor"][0] else ConfigError
    return error(
        f"{name}: {argument} is {shown(value)}, not {words}", code="OOC-106",
        fix=f"without quotes: {argument}={value.strip()}" if text else f"{argument}: {words}",
    )  # fmt: skip


def shown(value: Any) -> str:
    """A value as an error names it: itself where it is short, else what it is."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array {value.shape} of {value.dtype}"
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"of type {type(value).__name__}"


def _number(value: Any) -> Any:
    """What an array without axes holds; other values as they are."""
    return value.item() if isinstance(value, np.ndarray) and not value.ndim else value


def whole(value: Any) -> int:
    """A whole number that 64 bits hold. True is refused: it belongs to another argument."""
    number = _number(value)
    if isinstance(number, bool):
        raise TypeError
    found = index(number)
    if abs(found) > _LARGEST:
        raise OverflowError
    return found


def real(value: Any) -> float:
    """A real number; it may be infinite or nan, which are for the function to judge."""
    number = _number(value)
    if not isinstance(number, Real | np.bool_):
        raise TypeError
    found = float(number)  # refuses whole numbers of hundreds of digits
    return int(number) if isinstance(number, Integral | np.bool_) else found


def truth(value: Any) -> bool:
    """True or False. Also 0 and 1, and None for False; no text, whose truth is not what it says."""
    number = _number(value)
    if number is not None and not isinstance(number, np.bool_ | Integral):
        raise TypeError
    return bool(number)


def _instance(of: type | tuple[type, ...]) -> Taken:
    def take(value: Any) -> Any:
        if not isinstance(value, of):
            raise TypeError
        return value

    return take


def _ours(name: str, such_as: str) -> tuple[str, Taken]:
    """An instance of a class of the library, or of one derived from it."""

    def take(value: Any) -> Any:
        # By name: these classes stand on higher floors.
        if not any(kind.__name__ == name and kind.__module__.startswith("ooctrain.")
                   for kind in type(value).__mro__):  # fmt: skip
            raise TypeError
        return value

    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}, such as {such_as}", take


def _clip(value: Any) -> Any:
    for name in ("ClipNorm", "ClipEach"):
        with suppress(TypeError):
            return _ours(name, "")[1](value)
    raise TypeError


def _samples(value: Any) -> Any:
    """Anything with a length and numbered samples."""
    if isinstance(value, type | str | Mapping) or not hasattr(value, "__getitem__"):
        raise TypeError
    len(value)
    return value


def _iterable(value: Any) -> Any:
    """What can be gone through, which is not begun here: a generator ends after one time."""
    plain = isinstance(value, str | bytes | type | np.generic) or _number(value) is not value
    if plain or not (hasattr(value, "__iter__") or hasattr(value, "__getitem__")):
        raise TypeError
    return value


def _floats(value: Any) -> Any:
    """What Python's `float` takes, text apart; a tensor of one value, for instance."""
    if isinstance(value, str | bytes):
        raise TypeError
    float(value)
    return value


def _several(take: Taken) -> Taken:
    def taken(values: Any) -> Any:
        if isinstance(values, str | bytes | Mapping | set | frozenset):
            raise TypeError
        return tuple(take(value) for value in values)

    return taken


#: {annotation: (what it is in words, how a value is taken)}
KINDS: Mapping[str, tuple[str, Taken]] = {
    "int": ("a whole number", whole), "float": ("a number", real), "bool": ("True or False", truth),
    "str": ("text", _instance(str)), "None": ("None", _instance(type(None))),
    "Reduction": ("text", _instance(str)), "Stem": ("text", _instance(str)),
    "Each": ("a number, or several",
             lambda value: _several(real)(value) if _is_several(value) else real(value)),
    "np.ndarray": ("an array of numbers", lambda value: as_numbers(value, "an argument")),
    "Tensor": _ours("Tensor", "oc.tensor(x)"), "T": _ours("Tensor", "model.weight"),
    "Self": _ours("Tensor", "oc.tensor(x)"),
    "Parameter": _ours("Parameter", "model.weight"),
    "Optimizer": _ours("Optimizer", "optim.SGD(model.parameters(), lr=0.1)"),
    "LRScheduler": _ours("LRScheduler", "optim.StepLR(optimizer, 10)"),
    "Machine": _ours("Machine", "oc.machine()"),
    "Ranks": _ours("Ranks", "oc.distributed.world()"), "Debug": _ours("Debug", "debug=None"),
    "Settings": _ours("Settings", "settings=None"),
    "files.RunState": _ours("RunState", "run=None"), "files.Expected": (
        "settings", lambda value: value if callable(value) else _instance(Mapping)(value)),
    "SupportsFloat": ("a number", _floats),
    "Spill": _ours("Spill", "a folder"), "Clip": ("a bound, such as 1.0", _clip),
    "Dataset": ("data with a length and numbered samples", _samples),
    "Path": ("a path", _instance(PathLike)), "Halo": ("text", _instance(str)),
    "Link": ("text", _instance(str)),
    "Granule": _ours("Granule", "oc.Granule(512)"),
    "Dims": ("whole numbers, or None", lambda value: value if value is None else
             _several(whole)(value) if _is_several(value) else whole(value)),
    "Size": ("a whole number, or several",
             lambda value: _several(whole)(value) if _is_several(value) else whole(value)),
    "IntOrPair": ("a whole number, or two of them",
                  lambda value: _several(whole)(value) if _is_several(value) else whole(value)),
}  # fmt: skip
_FUNCTION = "a function", _instance(Callable)  # type: ignore[arg-type]
#: {what an annotation with brackets begins with: its kind, whatever stands in them}
_BY_HEAD = {"Literal": KINDS["str"], "Callable": _FUNCTION, "Loss": _FUNCTION,
            "Transform": _FUNCTION, "Mapping": ("a dictionary", _instance(Mapping)),
            "dict": ("a dictionary", _instance(dict)),
            "PathLike": ("a path", _instance(PathLike))}  # fmt: skip
#: Those whose parts are of one kind.
_SEVERAL = ("Sequence", "Iterable", "tuple", "list")


def _is_several(value: Any) -> bool:
    return isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _kind_of(annotation: str) -> tuple[str, Taken] | None:
    """What an annotation names; None where any value may be given."""
    found = [_one_kind(part) for part in _parts(annotation, " | ")]
    if None in found:
        return None
    kinds = list(filter(None, found))
    words = " or ".join(word for word, _ in kinds)
    # None first, which for a truth would count as False.
    takes = [take for word, take in sorted(kinds, key=lambda kind: kind[0] != "None")]
    return (words, takes[0]) if len(takes) == 1 else (words, _first_of(takes))


def _first_of(takes: Iterable[Taken]) -> Taken:
    def take(value: Any) -> Any:
        for each in takes:
            try:
                return each(value)
            except ConfigError:
                raise
            except (TypeError, ValueError, OverflowError):
                continue
        raise TypeError

    return take


def _one_kind(annotation: str) -> tuple[str, Taken] | None:
    head, _, inner = annotation.partition("[")
    if head in _BY_HEAD:
        return _BY_HEAD[head]
    if head in _SEVERAL and inner:
        kinds = [_kind_of(part) for part in _parts(inner.removesuffix("]"), ", ") if part != "..."]
        if kinds[0] is None or len({kind and kind[0] for kind in kinds}) > 1:
            return ("several", _iterable) if head == "Iterable" else None
        words, take = kinds[0]
        return f"several, each {words}", _several(take)
    return KINDS.get(annotation)


def _parts(text: str, by: str) -> list[str]:
    """What stands between the separators that are in no brackets."""
    found, depth = [""], 0
    for piece in text.split(by):
        found[-1] += by * bool(depth) + piece
        depth += piece.count("[") - piece.count("]")
        if not depth:
            found.append("")
    return found[:-1]
