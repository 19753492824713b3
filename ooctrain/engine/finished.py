"""A step that has begun is finished before an interrupt goes on.

While a step runs, values lie where only the step itself finds them again. An exception that comes
between any two lines, as that of a signal's handler (Ctrl-C, SIGALRM, a notebook's stop button),
must not end it there. Such exceptions are raised in the thread that runs the caller's code, so the
step runs in another one, and the caller waits. An interrupt ends the wait once the work is done,
which takes one step at most. A second one ends the wait at once; the work then goes on by itself,
and whatever is asked next comes after it (`wait`). Read next: `../execution/residence.py`,
`../train.py`.
"""

from __future__ import annotations

import contextvars
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

R = TypeVar("R")
THREAD_NAME = "ooctrain-step"
#: How long an idle thread takes to end at most.
_END_S = 1.0
_FATE, _DONE, _GIVEN_UP = "fate", "done", "given up"


class Finisher:
    """A thread that does one piece of work after another while its callers wait.

    The thread begins with the first piece and is kept: a new one for each step would find the
    caches of its core and the C library's heap empty. It ends with `close`, or with its owner.
    """

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._left: _Job[Any] | None = None  # an interrupt has come; it is perhaps still at work

    def do(
        self, work: Callable[[], R], on_interrupt: Callable[[BaseException], object] | None = None
    ) -> R:
        """What `work()` returns or raises; it runs with the caller's context.

        Args:
            on_interrupt: called with an exception that has reached the caller, before it goes on.

        Raises:
            An exception that reaches the caller meanwhile: when the work is done, which then
                counts.
        """
        if isinstance(threading.current_thread(), _Worker):
            return work()
        job = _Job(work)
        try:
            self._jobs().put(job)
            job.over.wait()
        except BaseException as error:
            self._left = job
            job.settle()
            if on_interrupt is not None:
                on_interrupt(error)
            raise
        return job.outcome()

    def wait(self) -> None:
        """Waits for work that a second interrupt has left, but for the thread that does it."""
        left, worker = self._left, self._worker
        if left is None or threading.current_thread() is worker:
            return
        if worker is not None and worker.is_alive():  # a fork has none of its parent's threads
            left.settle()
        self._left = None

    def close(self) -> None:
        """Ends the thread, if it is idle; the next piece of work begins another one."""
        worker, self._worker = self._worker, None
        if worker is not None and worker.is_alive():
            worker.jobs.put(None)
            if worker is not threading.current_thread():
                worker.join(_END_S)

    def _jobs(self) -> SimpleQueue[_Job[Any] | None]:
        worker = self._worker
        if worker is None or not worker.is_alive():  # a fork has none of its parent's threads
            worker = _Worker()
            worker.start()
            weakref.finalize(self, worker.jobs.put, None).atexit = False
            self._worker = worker
        return worker.jobs


def acting_thread() -> int:
    """The identity of the thread whose call is at work: a finisher's acts for its caller."""
    thread = threading.current_thread()
    return thread.caller if isinstance(thread, _Worker) else threading.get_ident()


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Within it a Ctrl-C waits, as it does for good in a process that is started meanwhile: it
    comes to all of a terminal's processes, and these would say where they were interrupted.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker(threading.Thread):
    """Does jobs in their order until there comes None.

    Attributes:
        caller: identity of the thread that it acts for.
    """

    def __init__(self) -> None:
        super().__init__(name=THREAD_NAME, daemon=True)
        self.jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self.caller = 0

    def run(self) -> None:
        """Knows nothing of a job once it is done, so that it keeps no trainer."""
        while (job := self.jobs.get()) is not None:
            self.caller = job.caller
            job.do()
            del job


class _Job(Generic[R]):
    """One piece of work.

    Attributes:
        caller: identity of the thread that waits for it.
        over: set when it is done.
    """

    def __init__(self, work: Callable[[], R]):
        self.caller, self.over = threading.get_ident(), threading.Event()
        self._work, self._context = work, contextvars.copy_context()
        self._fate: dict[str, str] = {}  # {_FATE: _DONE or _GIVEN_UP}, decided once, in one step
        self._value: R | None = None
        self._error: BaseException | None = None

    def do(self) -> None:
        """Does the work, unless it was given up before it began."""
        if self._fate.setdefault(_FATE, _DONE) != _DONE:
            return
        try:
            self._value = self._context.run(self._work)
        except BaseException as error:
            self._error = error
        finally:
            self.over.set()

    def settle(self) -> None:
        """Waits for the work; work that has not begun is not done."""
        if self._fate.setdefault(_FATE, _GIVEN_UP) == _DONE:
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
