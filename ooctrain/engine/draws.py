"""Draws of random numbers while a step is traced: they are noticed, and the line is found.

A trace is made once and run many times, so what Python draws in it would stay for ever. Before and
after a trace the states of all generators that it could reach are compared: those of `random` and
`numpy.random`, and what the model or the loss hold. Where one has moved, the step is recorded once
more under hooks that say which line drew. A generator that only another thread uses, such as the
one that shuffles batches, is left alone. Source of the remedy: counter-based masks,
`../layers/dropout.py`. Read next: `fingerprint.py`; `../tracing.py`, which looks here.
"""

from __future__ import annotations

import os
import random
import sys
import time
import types
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from ooctrain.engine.fingerprint import ReachedState, described, in_library, reached, read_by
from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError, NotRepeatable

T = TypeVar("T")
#: The attribute that marks what is traced anew in every step.
_MARK = "_traced_every_step"
REMEDY = (
    "nn.Dropout, nn.StochasticDepth, or another operation whose draws depend on (seed, step, "
    "call); or oc.traced_every_step(model), which traces each step anew"
)
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
    return any(getattr(one, _MARK, False) for one in (*model.modules(), loss))


class Generators:
    """The random generators that a trace could draw from.

    Args:
        model: its parts, what they hold and what their functions read.
        loss: likewise.
    """

    def __init__(self, model: Module, loss: object):
        parts = [*model.modules(), *(loss.modules() if isinstance(loss, Module) else ())]
        found = reached(parts, loss)
        # A network that is not part of the model, such as a teacher, has parts too.
        if others := [one for one in found.owners if isinstance(one, Module)]:
            found = reached([*parts, *(part for one in others for part in one.modules())], loss)
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
        before = sys.getprofile(), sys.gettrace()
        sys.setprofile(self._called)
        sys.settrace(self._entered)
        try:
            record()
        finally:
            sys.setprofile(before[0])
            sys.settrace(before[1])
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


def _names_them(found: ReachedState) -> bool:
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
