"""What the library is doing at the moment, for a display.

    with doing("compiling kernels", of=12) as done:
        for module in modules:
            ...
            done()

The library prints nothing. A command hands in a `Listener` (`listening`), which is told when a long
piece of work begins, gets on, and ends; without one, this costs a look-up. Read next:
`cli/silence.py`, which shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Activity:
    """A piece of work.

    Attributes:
        what: such as "compiling kernels".
        of: how many parts it has; None: not known.
        done: how many of them are done.
        began_s: when, by `time.monotonic`.
        share: of the whole time, what the parts that are done took; None: each takes as long.
    """

    what: str
    of: int | None = None
    done: int = 0
    began_s: float = field(default_factory=time.monotonic)
    share: float | None = None

    @property
    def done_share(self) -> float:
        """How much of it is done, from 0 to 1."""
        return self.done / (self.of or 1) if self.share is None else self.share


@dataclass
class Listener:
    """The pieces of work that have begun and not ended, the innermost last."""

    under_way: list[Activity] = field(default_factory=list)


_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the block this listener is told."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def doing(what: str, of: int | None = None) -> Iterator[Callable[..., None]]:
    """The block is a piece of work; what it gets is called after each of its parts, with the part's
    share of the time where they differ."""
    work, listener = Activity(what, of), _LISTENER.get()

    def part_is_done(share: float | None = None) -> None:
        work.done += 1
        if share is not None:
            work.share = (work.share or 0.0) + share

    if listener is None:
        yield part_is_done
        return
    listener.under_way.append(work)
    try:
        yield part_is_done
    finally:
        listener.under_way.remove(work)
