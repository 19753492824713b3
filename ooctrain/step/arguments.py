"""Arguments of public functions, checked by their annotations where they enter.

A signature says what a function takes: `p: float`, `stride: int | None`. A function that is
`checked` gets its arguments as `KINDS` takes them: the number 2 of NumPy becomes Python's, an array
without axes its number, and text where a number belongs is refused by name. So no function or class
of the library checks types by itself; ranges (a probability, a size of at least 1) are its own
business. Annotations are resolved at the first call: start-up does not wait for them, and they may
name what is defined later. Where one says nothing that can be checked (`Any`, a protocol), any
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


class Kind(NamedTuple):
    """What an annotation stands for. A type of another room gives its own: `Annotated[Data, kind]`.

    Args:
        words: as an error says it, "a whole number".
        take: gives a value in the form that the function gets. Raises TypeError, ValueError or
            OverflowError: it is not of this kind; ConfigError: nor is it, and this error says more.
    """

    words: str
    take: Callable[[Any], Any]


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


def _checked(function: Any, name: str, others: tuple[str, ...]) -> Any:
    @cache
    def expected() -> tuple[list[str], str | None, Mapping[str | None, Kind | None]]:
        """Names by place, that of `*rest`, and kinds by name."""
        plain = unwrap(function)
        owner = plain.__globals__.get(plain.__qualname__.partition(".")[0])
        spec, hints = getfullargspec(plain), get_type_hints(plain, None, {"Self": owner}, True)
        kinds = {name: kind_of(hint) for name, hint in hints.items() if name not in others}
        return spec.args, spec.varargs, kinds

    def taken(argument: str | None, value: Any) -> Any:
        kind = expected()[2].get(argument)
        if kind is None:
            return value
        try:
            return kind.take(value)
        except ConfigError:  # which says more
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise _misfit(name, argument, kind.words, value) from error

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


def _several(kind: Kind) -> Kind:
    def take(values: Any) -> Any:
        if isinstance(values, str | bytes | Mapping | set | frozenset):
            raise TypeError
        return tuple(kind.take(value) for value in values)

    return Kind(f"several, each {kind.words}", take)


def _one_of(kinds: Sequence[Kind]) -> Kind:
    # None first, which for a truth would count as False.
    ordered = sorted(kinds, key=lambda kind: kind is not KINDS[NoneType])

    def take(value: Any) -> Any:
        for kind in ordered:
            try:
                return kind.take(value)
            except ConfigError:
                raise
            except (TypeError, ValueError, OverflowError):
                continue
        raise TypeError

    return Kind(" or ".join(kind.words for kind in kinds), take)


_TEXT, _PATH = Kind("text", _instance(str)), Kind("a path", _instance(PathLike))
#: {type, or what stands before the brackets of one: its kind}; of other classes their instances
KINDS: Mapping[Any, Kind] = {
    NoneType: Kind("None", _instance(NoneType)),
    int: Kind("a whole number", whole), float: Kind("a number", real),
    bool: Kind("True or False", truth), SupportsFloat: Kind("a number", floats),
    str: _TEXT, Literal: _TEXT, Path: _PATH, PathLike: _PATH,
    np.ndarray: Kind("an array of numbers", lambda value: as_numbers(value, "an argument")),
    Callable: Kind("a function", _instance(Callable)),  # type: ignore[arg-type]
    Mapping: Kind("a dictionary", _instance(Mapping)),
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


def kind_of(hint: Any) -> Kind | None:
    """What a resolved annotation stands for; None where any value may be given."""
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return next((each for each in hint.__metadata__ if isinstance(each, Kind)), None)
    if isinstance(hint, TypeVar):
        return kind_of(hint.__bound__)
    if origin in (Union, UnionType):
        kinds = [kind_of(part) for part in parts]
        return None if None in kinds else _one_of([kind for kind in kinds if kind])
    if origin in (Sequence, Iterable, tuple, list) and parts:
        kinds = list({kind_of(part) for part in parts if part is not ...})
        if len(kinds) == 1 and kinds[0]:
            return _several(kinds[0])
    if origin in KINDS:
        return KINDS[origin]
    return _of_class(origin) if isinstance(origin, type) and origin is not tuple else None


def _of_class(of: type) -> Kind | None:
    try:
        isinstance(None, of)
    except TypeError:  # Any, a protocol
        return None
    return Kind(WORDS.get(of.__name__, f"a {of.__name__}"), _instance(of))
