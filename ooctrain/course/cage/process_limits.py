"""Limits that a process sets for itself, and cannot lift, before it runs a submission.

The limits on memory, processes, files and processor time are hard ones, so the kernel enforces them
and the submission's goodwill is not needed. Read next: `supervise.py`, which sets them;
`system_calls.py`.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import sys

#: Of memory in all, of each file (and of all that is printed), of open files, of processes.
MEMORY_BYTES, FILE_BYTES, OPEN_FILES, PROCESSES = 4 << 30, 16 << 20, 64, 16
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_NO_NEW_PRIVS, _SET_CHILD_SUBREAPER = 1, 4, 38, 36


def limit(cpu_s: int) -> None:
    """Sets all limits, hard ones.

    Args:
        cpu_s: processor time, in all.
    """
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, PROCESSES), (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_MEMLOCK, 0),
    ):  # fmt: skip
        _, hard = resource.getrlimit(kind)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (allowed, allowed))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # too long a file is an OSError


def adopt_descendants() -> bool:
    """Lets orphans among this process's descendants become its children; whether that worked."""
    return _prctl(_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Lets the kernel end this process when its parent ends."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def refuse_privileges() -> bool:
    """From now on no program that this process runs has more rights; whether that worked."""
    _prctl(_SET_DUMPABLE, 0)
    return _prctl(_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    return libc.prctl(option, ctypes.c_ulong(value), none, none, none) == 0
