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
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from numbers import Integral, Real
from operator import index
from typing import Any, TypeVar

import numpy as np

from ooctrain.errors import ConfigError

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
    if isinstance(call, type):
        call.__init__ = _checked(call.__init__, call.__name__)  # type: ignore[misc]
        return call
    return _checked(call, call.__name__)


def _checked(function: Any, name: str) -> Any:
    arguments = inspect.signature(function).parameters.values()
    kinds = {each.name: _kind_of(str(each.annotation)) for each in arguments
             if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}  # fmt: skip
    order = tuple((argument, kinds.get(argument)) for argument in (e.name for e in arguments))

    def taken(argument: str, kind: tuple[str, Taken], value: Any) -> Any:
        words, take = kind
        try:
            return take(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise _misfit(name, argument, words, value) from error

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        places = [taken(argument, kind, value) if kind else value
                  for (argument, kind), value in zip(order, given, strict=False)]  # fmt: skip
        places += given[len(places) :]  # of *args, or more than there are
        for argument, value in named.items():
            if kind := kinds.get(argument):
                named[argument] = taken(argument, kind, value)
        return function(*places, **named)

    return call


def _misfit(name: str, argument: str, words: str, value: Any) -> ConfigError:
    text = isinstance(value, str) and value.strip().lstrip("+-").replace(".", "", 1).isdigit()
    return ConfigError(
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
    """A whole number that 64 bits hold; a truth counts as 0 or 1, as Python has it."""
    number = _number(value)
    found = int(number) if isinstance(number, np.bool_) else index(number)
    if abs(found) > _LARGEST:
        raise OverflowError
    return found


def real(value: Any) -> float:
    """A real number; it may be infinite or nan, which are for the function to judge."""
    number = _number(value)
    if isinstance(number, np.bool_):
        return int(number)
    if not isinstance(number, Real):
        raise TypeError
    found = float(number)
    return number if type(number) in (int, bool) else found


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


def _tensor(value: Any) -> Any:
    # By name: tensors are made two floors further up.
    if not any(kind.__name__ == "Tensor" and kind.__module__.startswith("ooctrain.")
               for kind in type(value).__mro__):  # fmt: skip
        raise TypeError
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
    "Tensor": ("a tensor, such as oc.tensor(x)", _tensor),
    "IntOrPair": ("a whole number, or two of them",
                  lambda value: _several(whole)(value) if _is_several(value) else whole(value)),
}  # fmt: skip
#: {type of an annotation with brackets: whether its parts are of one kind, in words}
_SEVERAL = ("Sequence", "Iterable", "tuple", "list")


def _is_several(value: Any) -> bool:
    return isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _kind_of(annotation: str) -> tuple[str, Taken] | None:
    """What an annotation names; None where any value may be given."""
    found = [_one_kind(part) for part in _parts(annotation, " | ")]
    if None in found:
        return None
    words = " or ".join(word for word, _ in filter(None, found))
    takes = [take for _, take in filter(None, found)]
    return (words, takes[0]) if len(takes) == 1 else (words, _first_of(takes))


def _first_of(takes: Iterable[Taken]) -> Taken:
    def take(value: Any) -> Any:
        for each in takes:
            try:
                return each(value)
            except (TypeError, ValueError, OverflowError):
                continue
        raise TypeError

    return take


def _one_kind(annotation: str) -> tuple[str, Taken] | None:
    head, _, inner = annotation.partition("[")
    if head == "Literal":
        return KINDS["str"]
    if head in _SEVERAL and inner:
        kinds = [_kind_of(part) for part in _parts(inner.removesuffix("]"), ", ") if part != "..."]
        if kinds[0] is None or len({kind and kind[0] for kind in kinds}) > 1:
            return None
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
