"""Limits that a process sets for itself before it runs a student's code.

    python -m ooctrain.course.cage MODULE ARGUMENT...

In: a module and its arguments. Out: the module, run as the main program. The one idea: limits must
hold however the grader ends, so they live in the child: its memory is limited by the system, and a
thread waits for the end of an input that the grader never writes; when the grader is gone, even
killed, the input ends, and with it all that the child has started. Read next: `child.py`, which
opens the cage.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

#: Of private memory, where the system limits it (Linux).
MEMORY_LIMIT_BYTES = 4 << 30


def limit_memory(limit_bytes: int) -> None:
    """Lets this process and its children have so much private memory; more is a MemoryError."""
    if sys.platform != "win32":
        import resource  # Windows has none

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = limit_bytes if most == resource.RLIM_INFINITY else min(limit_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, most))


def end_with(grader_input: int) -> None:
    """Ends this process's group when nobody can write to `grader_input` any more."""

    def wait() -> None:
        while os.read(grader_input, 1):
            pass
        if sys.platform != "win32":
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(module: str, *arguments: str) -> None:
    """Runs the module within the limits."""
    limit_memory(MEMORY_LIMIT_BYTES)
    end_with(os.dup(0))  # pytest puts something else at 0
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
