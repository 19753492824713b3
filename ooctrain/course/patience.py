"""How long a submission may take, on a machine that may be busy with something else.

A limit of time is there to end a process that computes without end, or sleeps. Time in which the
process is ready and waits for a processor is not its own: on a machine that does ten things at once
it is most of the time, and on an idle one it is nothing. Linux counts it for each process, so it is
subtracted, and a grade does not depend on what else the machine does. So is the time in which the
grader waits for a processor to hear an answer: a thousand short questions are a thousand such
waits. What the grader does between two questions is not counted either. Where the system does not
count it, all time is a process's own. Source: Linux, Documentation/scheduler/sched-stats.rst,
"/proc/<pid>/schedstat", its second number. Read next: `interview.py`, `tests_process.py`.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

#: On a machine that never gets to it, a process is ended after this multiple of its limit.
MOST_WAITED = 30
#: Asked again no sooner, since to ask takes a millisecond.
_AGAIN_S = 0.02
_NS_PER_S = 1e9


class Patience:
    """A limit of time for a process and its descendants.

    Args:
        limit_s: of their own time.
        pid: of the process; None where there is none yet.
        running: whether the time counts from now on; else from `go_on`.
    """

    def __init__(self, limit_s: float, pid: int | None = None, *, running: bool = True):
        self._left_s, self._pid = limit_s, pid
        self._more_s = MOST_WAITED * limit_s
        self._seen_s = self._waited_s()
        self._until: float | None = None
        if running:
            self.go_on()

    def until(self) -> float:
        """The end on the monotonic clock, as far as it is known; it may move back, once it is
        reached.
        """
        assert self._until is not None
        now = time.monotonic()
        if now < self._until:
            return self._until
        waited_s = self._waited_s()
        gained_s = min(max(0.0, waited_s - self._seen_s), self._more_s)
        self._seen_s, self._more_s = waited_s, self._more_s - gained_s
        self._until += gained_s
        return max(self._until, now + _AGAIN_S) if self._until > now else self._until

    def pause(self) -> None:
        """What follows is not the process's own time."""
        if self._until is not None:
            self._left_s, self._until = self._until - time.monotonic(), None

    def go_on(self) -> None:
        """From now on its time counts again."""
        if self._until is None:
            self._until = time.monotonic() + self._left_s

    def watch(self, pid: int) -> None:
        """A process has taken the place of the one before."""
        self._pid = pid
        self._seen_s = self._waited_s()

    def _waited_s(self) -> float:
        """How long both sides have waited: an answer that is there is heard once it is this
        thread's turn.
        """
        return stood_in_line_s(self._pid) + _waited_ns("thread-self") / _NS_PER_S


def stood_in_line_s(pid: int | None) -> float:
    """For how many seconds a process and its descendants have been ready while others ran.

    Of each one its first thread is counted. 0 where the system does not say.
    """
    family = _family(pid) if pid is not None else ()
    return sum(_waited_ns(str(member)) for member in family) / _NS_PER_S


def _waited_ns(member: str) -> int:
    """The same of one first thread, or of "thread-self"; 0 where nothing is known of it."""
    with (
        suppress(OSError, ValueError, IndexError),
        open(f"/proc/{member}/schedstat", encoding="ascii") as file,
    ):
        return int(file.read().split()[1])
    return 0


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    names = os.listdir("/proc") if os.path.exists(f"/proc/{pid}/schedstat") else []
    for name in filter(str.isdigit, names):
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found = [pid] if names else []
    for member in found:  # which grows
        found += children.get(member, [])
    return found
