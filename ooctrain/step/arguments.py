"""Arguments of public functions, checked by their annotations where they enter.

A signature says what a function takes: `p: float`, `stride: int | None`. A function that is
`checked` gets its arguments as `TAKERS` takes them: the number 2 of NumPy becomes Python's, an
array without axes its number, and text where a number belongs is refused by name. So no function or
class of the library checks types by itself; ranges (a probability, a size of at least 1) are its
own business. Annotations are resolved at the first call: start-up does not wait for them, and they
may name what is defined later. Where one says nothing that can be checked (`Any`, a protocol), any
value is passed on. Source: ours. Read next: `user_values.py`, for arrays and paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import getfullargspec, unwrap
from itertools import chain, repeat
from numbers import Integral, Real
from operator import index
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    SupportsFloat,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.step.user_values import as_numbers

C = TypeVar("C", bound=Callable[..., Any])
#: Kernels, files and schedules hold whole numbers of 64 bits.
_LARGEST = (1 << 63) - 1
_MOST_SHOWN = 40


class Taker(NamedTuple):
    """What takes the values of an annotation. A room gives its own in `Annotated[Type, Taker]`.

    Args:
        words: as an error says it, "a whole number".
        take: gives a value in the form that the function gets. Raises TypeError, ValueError or
            OverflowError: it does not fit; ConfigError: the same, and this error says more.
    """

    words: str
    take: Callable[[Any], Any]


def checked(call: C) -> C:
    """The same function, or class, whose arguments are checked by its annotations.

    Raises:
        ConfigError: when it is called, an argument is not what its annotation says.
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


def _checked(function: Any, name: str, others: tuple[str, ...]) -> Any:
    @cache
    def expected() -> tuple[list[str], str | None, dict[Any, Taker | None]]:
        """Names by place, that of `*rest`, and {name: taker}."""
        plain = unwrap(function)
        owner = plain.__globals__.get(plain.__qualname__.partition(".")[0])
        spec, hints = getfullargspec(plain), get_type_hints(plain, None, {"Self": owner}, True)
        takers = {name: taker_of(hint) for name, hint in hints.items() if name not in others}
        return spec.args, spec.varargs, takers

    def taken(argument: str | None, value: Any) -> Any:
        taker = expected()[2].get(argument)
        if taker is None:
            return value
        try:
            return taker.take(value)
        except ConfigError:  # which says more
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise _misfit(name, argument, taker.words, value) from error

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        places, rest, _ = expected()
        return function(
            *map(taken, chain(places, repeat(rest)), given),
            **{argument: taken(argument, value) for argument, value in named.items()},
        )

    return call


def _misfit(name: str, argument: str | None, words: str, value: Any) -> ConfigError:
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


def floats(value: Any) -> Any:
    """What Python's `float` takes, text apart; a tensor of one value, for instance."""
    if isinstance(value, str | bytes):
        raise TypeError
    float(value)
    return value


def _instance(of: type) -> Callable[[Any], Any]:
    def take(value: Any) -> Any:
        if not isinstance(value, of):
            raise TypeError
        return value

    return take


def _several(taker: Taker) -> Taker:
    def take(values: Any) -> Any:
        if isinstance(values, str | bytes | Mapping | set | frozenset):
            raise TypeError
        return tuple(taker.take(value) for value in values)

    return Taker(f"several, each {taker.words}", take)


def _one_of(takers: Sequence[Taker]) -> Taker:
    # None first, which for a truth would count as False.
    ordered = sorted(takers, key=lambda taker: taker is not TAKERS[NoneType])

    def take(value: Any) -> Any:
        for taker in ordered:
            try:
                return taker.take(value)
            except ConfigError:
                raise
            except (TypeError, ValueError, OverflowError):
                continue
        raise TypeError

    return Taker(" or ".join(taker.words for taker in takers), take)


_TEXT, _PATH = Taker("text", _instance(str)), Taker("a path", _instance(PathLike))
#: {type, or what stands before its brackets: its taker}; of another class an instance is taken
TAKERS: Mapping[Any, Taker] = {
    NoneType: Taker("None", _instance(NoneType)),
    int: Taker("a whole number", whole), float: Taker("a number", real),
    bool: Taker("True or False", truth), SupportsFloat: Taker("a number", floats),
    str: _TEXT, Literal: _TEXT, Path: _PATH, PathLike: _PATH,
    np.ndarray: Taker("an array of numbers", lambda value: as_numbers(value, "an argument")),
    Callable: Taker("a function", _instance(Callable)),  # type: ignore[arg-type]
    Mapping: Taker("a dictionary", _instance(Mapping)),
}  # fmt: skip
#: {class: it in words}, where an example helps
WORDS: Mapping[str, str] = {
    "Algebra": "a Tensor, such as oc.tensor(x)", "Tensor": "a Tensor, such as oc.tensor(x)",
    "Parameter": "a Parameter, such as model.weight",
    "Optimizer": "an Optimizer, such as optim.SGD(model.parameters(), lr=0.1)",
    "LRScheduler": "an LRScheduler, such as optim.StepLR(optimizer, 10)",
    "Machine": "a Machine, such as oc.machine()", "Granule": "a Granule, such as oc.Granule(512)",
    "Ranks": "the ranks, oc.distributed.world()", "dict": "a dictionary",
    "Trace": "a Trace, such as oc.trace(model, (N, C, H, W))",
    "Module": 'a model, such as oc.models.build("resnet18")',
    "Plan": "a Plan, such as oc.plan(trace, budget)",
}  # fmt: skip


def taker_of(hint: Any) -> Taker | None:
    """What takes values of a resolved annotation; None where any value may be given."""
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return next((each for each in hint.__metadata__ if isinstance(each, Taker)), None)
    if isinstance(hint, TypeVar):
        return taker_of(hint.__bound__)
    if origin in (Union, UnionType):
        found = [taker_of(part) for part in parts]
        return None if None in found else _one_of([taker for taker in found if taker])
    if origin in (Sequence, Iterable, tuple, list) and parts:
        of_parts, *others = {taker_of(part) for part in parts if part is not ...}
        if of_parts and not others:
            return _several(of_parts)
    if origin in TAKERS:
        return TAKERS[origin]
    return _of_class(origin) if isinstance(origin, type) and origin is not tuple else None


def _of_class(of: type) -> Taker | None:
    try:
        isinstance(None, of)
    except TypeError:  # Any, a protocol
        return None
    article = "an" if of.__name__[0] in "AEIOU" else "a"
    return Taker(WORDS.get(of.__name__, f"{article} {of.__name__}"), _instance(of))
