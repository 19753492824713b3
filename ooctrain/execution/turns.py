"""Turns: one thread at a time works with a trainer, and a second one gets an error.

A thread works, looks at one value, or ends everything. No thread waits for one that works, since
trainers of one model that wait for each other's values would deadlock; it gets `InUse`. A thread
that only looks is waited for, since that takes one copy. The garbage collector may end a trainer at
any moment, even during a look by the same thread; then the next thread that leaves ends it.
Read next: `residence.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ooctrain.errors import InUse

ONE_THREAD = "one thread after the other, with a threading.Lock; or a model for each thread"
_LOOK_S = 0.001  # between two looks at whether who holds the lock works or only looks


class Turns:
    """Turns at one trainer's device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: int | None = None
        self._ending: Callable[[], None] | None = None

    @contextmanager
    def work(self) -> Iterator[None]:
        """For a step, an evaluation, closing: nobody else may work or look meanwhile.

        Raises:
            InUse: another thread works.
        """
        if self._worker == threading.get_ident():
            yield
            return
        self._enter()
        try:
            self._worker = threading.get_ident()
            yield
        finally:
            self._worker = None
            self._leave()

    @contextmanager
    def look(self) -> Iterator[None]:
        """For reading or writing one value. Raises InUse: another thread works."""
        if self._worker == threading.get_ident():
            yield
            return
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def end(self, ending: Callable[[], None]) -> None:
        """Calls `ending` now, or when the thread that works or looks now is done."""
        self._ending = ending
        self._end()

    def _enter(self) -> None:
        while not self._lock.acquire(timeout=_LOOK_S):
            if self._worker is not None:
                raise InUse("another thread is at work with this trainer", fix=ONE_THREAD)

    def _leave(self) -> None:
        self._lock.release()
        if self._ending is not None:
            self._end()

    def _end(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                ending, self._ending = self._ending, None
                if ending is not None:
                    ending()
            finally:
                self._lock.release()
