"""Work that is finished before an interrupt goes on.

While a step runs, values lie where only the step itself finds them again. An exception that comes
between any two lines, as that of a signal's handler (Ctrl-C, SIGALRM, a notebook's stop button),
must not end it there. Such exceptions are raised in the thread that runs the caller's code, so the
step runs in a thread of its own, and the caller waits. An interrupt ends the wait once the work is
done, which takes one step at most. A second one ends the wait at once; the work then goes on by
itself, and the trainer refuses (`InUse`) until it is done. Read next: `turns.py`, `../train.py`.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")
THREAD_NAME = "ooctrain-step"


def finished(
    work: Callable[[], R], on_interrupt: Callable[[BaseException], object] = lambda error: None
) -> R:
    """What `work()` returns or raises; it runs in a thread of its own, with the caller's context.

    Args:
        on_interrupt: called with an exception that has reached the caller, before it goes on.

    Raises:
        An exception that reaches the caller meanwhile: when the work is done, which then counts.

    Cost: 50 to 100 us.
    """
    if isinstance(threading.current_thread(), _Worker):
        return work()
    worker = _Worker(work)
    try:
        worker.start()
        worker.over.wait()
    except BaseException as error:
        worker.settle()
        on_interrupt(error)
        raise
    return worker.outcome()


def acting_thread() -> int:
    """The identity of the thread whose call is at work: a worker acts for its caller."""
    thread = threading.current_thread()
    if isinstance(thread, _Worker):
        return thread.caller
    return threading.get_ident()


class _Worker(threading.Thread, Generic[R]):
    """A thread with one piece of work.

    Attributes:
        caller: identity of the thread that it acts for.
        over: set when the work is done.
    """

    def __init__(self, work: Callable[[], R]):
        super().__init__(name=THREAD_NAME, daemon=True)
        self.caller, self.over = threading.get_ident(), threading.Event()
        self._work, self._context = work, contextvars.copy_context()
        self._beginning = threading.Lock()  # taken once: by the work, or by who gives it up before
        self._value: R | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Does the work, unless it was given up before it began."""
        if not self._beginning.acquire(blocking=False):
            return
        try:
            self._value = self._context.run(self._work)
        except BaseException as error:
            self._error = error
        finally:
            self.over.set()

    def settle(self) -> None:
        """Waits for the work; work that has not begun is not done."""
        if not self._beginning.acquire(blocking=False):
            self.over.wait()

    def outcome(self) -> R:
        """What the work returned or raised."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback knows this frame
        return self._value  # type: ignore[return-value]
