"""What may come out differently each time a step is traced: it is noticed, and its line is found.

A trace is made once and run many times, so what Python draws or counts in it would stay for ever.
Before and after a trace the states of all random generators that it could reach are compared: those
of `random` and `numpy.random`, and what the model or the loss hold. Where one has moved, the step
is recorded once more under hooks that say which line drew. A generator that only another thread
uses, such as the one that shuffles batches, is left alone. Two traces in a row are compared as
well, with further counts of calls where the first has changed one (`expect_the_same`). Source of
the remedy: counter-based masks, `../layers/dropout.py`. Read next: `fingerprint.py`;
`../tracing.py` and `../train.py`, which look here.
"""

from __future__ import annotations

import dis
import gc
import os
import random
import sys
import time
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from ooctrain.engine.fingerprint import (
    NOT_READ,
    Content,
    Place,
    Same,
    described,
    in_library,
    read_by,
    slots_of,
    variables_of,
)
from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError, NotRepeatable, raised_by_a_handler
from ooctrain.step.trace import Trace

T = TypeVar("T")
#: The attribute that marks what is traced anew in every step.
_MARK = "_traced_every_step"
REMEDY = (
    "nn.Dropout, nn.StochasticDepth, or another operation whose draws depend on (seed, step, "
    "call); or oc.traced_every_step(model), which traces each step anew"
)
#: A count of calls that is a multiple of all small numbers, and of many round ones.
_FAR = 100_800
_CLOCKS = (
    time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic,
    time.monotonic_ns, time.process_time, time.process_time_ns,
)  # fmt: skip


def traced_every_step(what: T) -> T:
    """Marks a model or a loss whose steps are traced anew each time.

    For a forward pass that draws with Python's own random numbers, or goes by the clock. It is a
    decorator of a class or a function as well. Each step takes the time of a trace more; it is
    planned again only where the trace comes out differently.

    Args:
        what: a module, its class, or a loss.

    Returns:
        The same, marked.

    Raises:
        ConfigError: it takes no mark, as a bound method; mark its class, or a function around it.
    """
    try:
        setattr(what, _MARK, True)
    except (AttributeError, TypeError):
        raise ConfigError(
            f"{type(what).__name__} cannot be marked", code="OOC-106",
            fix="mark the class of the model, or a function around the loss",
        ) from None  # fmt: skip
    return what


def is_traced_every_step(model: Module, loss: object) -> bool:
    """Whether the model, a part of it or the loss is marked."""
    return any(
        # Not `getattr` of a module, which looks for what else the missing name may mean.
        vars(part).get(_MARK) or getattr(type(part), _MARK, False)
        for part in model.modules()
    ) or getattr(loss, _MARK, False)


class Generators:
    """The random generators that a trace could draw from.

    Args:
        model: its parts, what they hold and what their functions read.
        loss: likewise.
    """

    def __init__(self, model: Module, loss: object):
        found = Content((model, loss))
        kinds = random.Random, *_of_numpy()
        self._held = [one for one in found.owners if isinstance(one, kinds)]
        self._of_the_system = any(map(_draws_of_the_system, found.owners)) or _names_them(found)
        self._before = self._states()

    def _states(self) -> list[Hashable]:
        own = map(_state, self._held)
        return [_global_state(), random.getstate(), *own]

    def drawn(self, record: Callable[[], object]) -> str | None:
        """The line that draws, if one does.

        Args:
            record: makes the trace once more; it is only called if a generator has moved.
        """
        moved = self._states() != self._before
        if not moved and not self._of_the_system:
            return None
        held = [one for one in self._held if isinstance(one, _of_numpy())]
        return _Hooks(held).line_of(record)


def line_of_the_clock(record: Callable[[], object]) -> str | None:
    """The line of the user's own that looks at the clock while something is recorded."""
    return _Hooks([], clocks=True).line_of(record)


def refuse(line: str, what: str = "the forward pass or the loss draws random numbers") -> None:
    """Raises NotRepeatable."""
    raise NotRepeatable(
        f"{what} while it is traced; a trace is made once, so each step would have the first value",
        where=line, fix=REMEDY,
    )  # fmt: skip


class _Hooks:
    """Finds the line that draws, in this thread.

    Functions of `random`, of the system and of the clock are seen as they are called. Those of
    NumPy are not; where a line of the user's own has moved a generator, it was this line.

    Args:
        held: generators of NumPy besides the one of `numpy.random`.
        clocks: whether a look at the clock counts.
    """

    def __init__(self, held: list[Any], *, clocks: bool = False):
        self._held, self._clocks = held, clocks
        self._line: str | None = None
        self._last: tuple[types.FrameType, int] | None = None
        self._before = self._states()

    def _states(self) -> list[Hashable]:
        return [_global_state(), *map(_state, self._held)]

    def line_of(self, record: Callable[[], object]) -> str | None:
        before, collects = (sys.getprofile(), sys.gettrace()), gc.isenabled()
        gc.disable()  # what libraries do while garbage is collected is nothing of the user's
        sys.setprofile(self._called)
        sys.settrace(self._entered)
        try:
            record()
        finally:
            sys.setprofile(before[0])
            sys.settrace(before[1])
            if collects:
                gc.enable()
        return self._line

    def _called(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event != "c_call" or self._line is not None:
            return
        if self._clocks:
            draws = argument in _CLOCKS
        else:
            drawer = getattr(argument, "__self__", None)
            draws = isinstance(drawer, random.Random) or argument is os.urandom
        if draws:
            self._line = _own_line(frame)

    def _entered(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        room = frame.f_globals.get("__name__")
        if room == "random" and frame.f_code.co_name.startswith(("gauss", "normal")):
            self._line = self._line or _own_line(frame)  # it keeps a second number
        if in_library(str(room)):
            return None
        self._last = frame, frame.f_lineno
        return self._ran

    def _ran(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        now = self._states()
        if now != self._before and self._line is None and self._last is not None:
            there, line = self._last
            if now[1:] != self._before[1:] or _names_numpy(there):
                self._line = f"{there.f_code.co_filename}:{line}"
        self._before = now
        after = frame.f_back if event == "return" else frame
        self._last = None if after is None else (after, after.f_lineno)
        return self._ran


def _of_numpy() -> tuple[type, ...]:
    """Classes of NumPy's generators; none where they are not loaded, so that there can be no
    generator."""
    if "numpy.random" not in sys.modules:
        return ()
    return np.random.Generator, np.random.RandomState, np.random.BitGenerator


def _global_state() -> Hashable:
    """Of the generator behind the functions of `numpy.random`."""
    if not _of_numpy():
        return None
    return described(np.random.get_state(legacy=False))  # noqa: NPY002 - it is what others use


def _state(one: Any) -> Hashable:
    """A generator, described by value."""
    if isinstance(one, random.SystemRandom):
        return None
    if isinstance(one, random.Random):
        return one.getstate()
    if isinstance(one, np.random.Generator):
        return described(one.bit_generator.state)
    if isinstance(one, np.random.RandomState):
        return described(one.get_state(legacy=False))
    return described(one.state)


def _draws_of_the_system(one: object) -> bool:
    """Whether it draws from the system, which has no state to compare."""
    room = getattr(one, "__module__", None)
    return one is os.urandom or isinstance(one, random.SystemRandom) or (
        room in ("secrets", "uuid") and isinstance(one, types.FunctionType)
    ) or (one is not None and one is sys.modules.get("secrets"))  # fmt: skip


def _names_them(found: Content) -> bool:
    """Whether functions read `os.urandom`, or make `uuid4`."""
    return not found.attributes.isdisjoint({"urandom", "uuid4", "SystemRandom"})


def _names_numpy(frame: types.FrameType) -> bool:
    """Whether a function reads something of `numpy.random`; another thread may draw meanwhile."""
    names, attributes, _ = read_by(frame.f_code)
    values = [frame.f_globals.get(name) for name in names]
    drawers = (getattr(value, "__self__", value) for value in values)
    return "random" in attributes or any(
        one is np.random or isinstance(one, _of_numpy()) for one in drawers
    )


def _own_line(frame: types.FrameType | None) -> str:
    """File and line of the nearest caller that is the user's own."""
    nearest = frame
    while frame is not None:
        if not in_library(str(frame.f_globals.get("__name__"))):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "" if nearest is None else f"{nearest.f_code.co_filename}:{nearest.f_lineno}"


# Two traces of one step


def expect_the_same(
    first: Trace, again: Trace, changed: Iterable[Place], record: Callable[[], Trace]
) -> None:
    """Compares two traces in a row of one step.

    Args:
        changed: places that the second one has changed. Where the traces are the same, such a
            place does not count: a counter of calls for example, unless a trace differs at which
            the counter stands higher.
        record: traces once more.

    Raises:
        NotRepeatable: the traces differ.
    """
    if first == again or _may_be_equal(_parts_of(first), _parts_of(again)):
        for place in changed:
            if not _same_at_other_counts(first, place, record):
                _refuse_changing(place)
        return
    for place in changed:
        _refuse_changing(place)
    if line := line_of_the_clock(record):
        refuse(line, "what the forward pass or the loss computes depends on the clock")
    pairs = zip(first.calls, again.calls, strict=False)
    differing = (a.name for a, b in pairs if not _may_be_equal(a, b))
    refuse(next(differing, "the last calls"), "each trace comes out differently")


def _refuse_changing(place: Place) -> None:
    """Raises NotRepeatable: each trace changes the place, and comes out differently."""
    owner, name = place
    called = "" if isinstance(owner.what, dict | type(lambda: 0)) else type(owner.what).__name__
    refuse(
        _line_of(name, owner.what) or called,
        f"each trace changes {'.'.join(filter(None, (called, name)))}, and comes out differently",
    )


def _same_at_other_counts(first: Trace, place: Place, record: Callable[[], Trace]) -> bool:
    """Whether a place is not a number, or a trace is the same when it has been counted further: a
    warm-up that ends after some calls, or what happens at each third, shows in no two traces in a
    row."""
    owner, name = place[0].what, place[1]
    held = owner if isinstance(owner, dict) else getattr(owner, "__dict__", {})
    before: Any = held.get(name)
    if type(before) not in (int, float):
        return True
    for count in (before + 1, before + 2, _FAR - 1, _FAR):
        held[name] = count
        try:
            there = record()
        except Exception as error:  # such as an index out of range, which says nothing
            if raised_by_a_handler(error):
                raise
            continue
        finally:
            held[name] = before
        if first != there and not _may_be_equal(_parts_of(first), _parts_of(there)):
            return False
    return True


def _parts_of(trace: Trace) -> tuple[Any, ...]:
    return trace.variables, trace.calls, dict(trace.carries), dict(trace.outputs)


def _may_be_equal(one: object, other: object) -> bool:
    """Whether two values have one description, or differ at most in what cannot be compared.

    Objects that are compared by identity, such as an operation of a user's own that is made in each
    forward pass, are compared by class and attributes, functions by their code.
    """
    waiting, met = [(one, other)], set[tuple[int, int]]()
    while waiting:
        pair = waiting.pop()
        descriptions = [described(value) for value in pair]
        if len(descriptions[0]) != len(descriptions[1]):
            return False
        for a, b in zip(*descriptions, strict=True):
            if a == b:
                continue
            if not isinstance(a, Same) or not isinstance(b, Same):
                return False
            if type(a.what) is not type(b.what):
                return False
            if isinstance(a.what, types.FunctionType) and isinstance(b.what, types.FunctionType):
                if a.what.__code__ != b.what.__code__:
                    return False
                waiting.append((_variables(a.what), _variables(b.what)))
            elif (id(a.what), id(b.what)) not in met:
                met.add((id(a.what), id(b.what)))
                waiting.append((_held(a.what), _held(b.what)))
    return True


def _variables(function: types.FunctionType) -> list[object]:
    """What a function has from outside."""
    closure = [read() for read in variables_of(function).values()]
    return [function.__defaults__, function.__kwdefaults__, *closure]


def _held(one: object) -> dict[str, object]:
    """The attributes of an object."""
    names = [name for kind in type(one).__mro__ for name in slots_of(kind)]
    return {**{name: getattr(one, name, None) for name in names}, **getattr(one, "__dict__", {})}


def _line_of(name: str, owner: object) -> str:
    """Where a function of the owner sets an attribute, or reads it; "" if nowhere."""
    if isinstance(owner, dict):  # of global names
        spaces = [owner, *(vars(kind) for kind in owner.values() if isinstance(kind, type))]
    else:
        spaces = [{"": owner}, *map(vars, type(owner).__mro__)]
    found = [
        (not step.opname.startswith("STORE"), function.__code__.co_filename, line)
        for space in spaces
        for function in space.values()
        if isinstance(function, types.FunctionType) and function.__name__ not in NOT_READ
        for step, line in _with_lines(function.__code__)
        if step.argval == name
    ]
    return "{1}:{2}".format(*min(found)) if found else ""


def _with_lines(code: types.CodeType) -> Iterator[tuple[dis.Instruction, int]]:
    """The instructions of a function, each with its line."""
    starts = dict(dis.findlinestarts(code))
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = starts.get(step.offset) or line
        yield step, line
