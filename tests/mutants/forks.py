"""Work done in a fork of this process, so that nothing of it stays.

Read next: `reach.py`, `court.py`.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: Bytes of one fork's memory.
MOST_BYTES = 6 << 30


def in_fork(work: Callable[[], bool]) -> bool:
    """Whether the work, done in a fork of this process, says yes; a crash or a limit says no."""
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setpgid(0, 0)
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silent, stream)
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code = 0 if work() else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests may have left running
    return status == 0


class Overtime(BaseException):
    """A test has had its time, and nobody may take this for an error of its own."""


def interrupt_after(seconds: float) -> None:
    """Raises Overtime in this process after so much CPU time; 0: not any more."""

    def interrupt(signal_number: int, frame: object) -> None:
        raise Overtime

    _end_after(seconds, interrupt)


def limit(seconds: float) -> None:
    """Ends this process after so much CPU time."""
    _end_after(seconds, signal.SIG_DFL)


def _end_after(seconds: float, handler: Any) -> None:
    """What waits, for another process or for ever, ends by the clock: late enough for a machine
    with much else to do.
    """
    signal.signal(signal.SIGPROF, handler)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 30 + 8 * seconds if seconds else 0)


def cpu_seconds() -> float:
    """CPU time of this process and of those that it has started and waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(these.ru_utime + these.ru_stime for these in used)
