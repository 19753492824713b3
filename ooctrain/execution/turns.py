"""Turns: one thread at a time works with a trainer, and a second one gets an error.

A thread works, looks at one value, or ends everything. No thread waits for one that works, since
trainers of one model that wait for each other's values would deadlock; it gets `InUse`. A thread
that only looks is waited for, since that takes one copy. The garbage collector may end a trainer at
any moment, even during a look by the same thread; then the next thread that leaves ends it. A turn
is taken and recorded in one step, so that a thread that an interrupt has thrown out of its turn
still has it, and takes it up again. Read next: `../engine/finished.py`, `residence.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ooctrain.engine.finished import acting_thread
from ooctrain.errors import InUse

ONE_THREAD = "one thread after the other, with a threading.Lock; or a model for each thread"
_LOOK_S = 0.001  # between two looks at whether what has the turn works or only looks
_HOLDER = "holder"
_ENDING = 0  # no thread has this identity


class Turns:
    """Turns at one trainer's device."""

    def __init__(self) -> None:
        self._turn: dict[str, int] = {}  # {_HOLDER: thread that has the turn}
        self._worker: int | None = None
        self._ending: Callable[[], None] | None = None

    @contextmanager
    def work(self) -> Iterator[None]:
        """For a step, an evaluation, closing: nobody else may work or look meanwhile.

        Raises:
            InUse: another thread works.
        """
        me = acting_thread()
        if self._worker == me:
            yield
            return
        try:
            self._enter(me)
            self._worker = me
            yield
        finally:
            if self._worker == me:
                self._worker = None
            self._leave(me)

    @contextmanager
    def look(self) -> Iterator[None]:
        """For reading or writing one value. Raises InUse: another thread works."""
        me = acting_thread()
        if self._worker == me:
            yield
            return
        try:
            self._enter(me)
            yield
        finally:
            self._leave(me)

    def end(self, ending: Callable[[], None]) -> None:
        """Calls `ending` now, or when the thread that works or looks now is done."""
        self._ending = ending
        self._end()

    def _enter(self, me: int) -> None:
        while self._turn.setdefault(_HOLDER, me) != me:
            if self._worker is not None:
                raise InUse("another thread is at work with this trainer", fix=ONE_THREAD)
            time.sleep(_LOOK_S)

    def _leave(self, me: int) -> None:
        if self._turn.get(_HOLDER) == me:
            del self._turn[_HOLDER]
        if self._ending is not None:
            self._end()

    def _end(self) -> None:
        if self._turn.setdefault(_HOLDER, _ENDING) == _ENDING:
            try:
                ending, self._ending = self._ending, None
                if ending is not None:
                    ending()
            finally:
                self._turn.pop(_HOLDER, None)
