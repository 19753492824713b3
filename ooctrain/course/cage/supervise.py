"""The first process of a cage: it confines a child, waits, and ends every process of the cage.

    python -I -S -c "... main()" FOLDER SETTINGS

The settings say what may be seen, for how long, and which layers to use. The child serves; when it
ends, this process ends all that the child has started and returns its status. Orphans among its
descendants become its own children, so not even a daemon escapes. It also ends when its own input
ends, which the grader holds open and never writes to, so the cage is emptied however the grader
ends. Read next: `process_limits.py`, `system_calls.py`, `landlock.py`, `namespaces.py`, the layers;
`serve.py`.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ooctrain.course.cage import landlock, namespaces, process_limits, system_calls
from ooctrain.course.cage.given import refuse_the_rest
from ooctrain.course.cage.wire import MOST_REQUEST_BYTES, Line

#: Exit status where the cage itself cannot be made.
NO_CAGE = 97


def main() -> None:
    """Supervises one submission's process, and ends with its status."""
    settings = json.loads(sys.argv[2])
    sys.path[:] = [os.path.realpath(path) for path in sys.path]
    applied: list[str] = []
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if process_limits.adopt_descendants():
        applied.append("subreaper")
    if "namespaces" in settings["layers"] and namespaces.leave_the_others():
        applied.append("namespaces")
    child = os.fork()
    if child == 0:
        for descriptor in (wake, waker):
            os.close(descriptor)
        _be_the_child(settings, applied)
    for descriptor in (settings["asked"], settings["answered"]):
        os.close(descriptor)
    _wait(child, wake)
    status = _end_all(child)
    shutil.rmtree(settings["folder"], ignore_errors=True)  # the grader may be gone
    os._exit(status)


def _be_the_child(settings: Mapping[str, Any], applied: list[str]) -> None:
    """Confines this process for good, and serves."""
    status = NO_CAGE
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        process_limits.end_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _confine(settings, applied)
        # Not at the top: NumPy is loaded within the limits, and the supervisor needs none.
        from ooctrain.course.cage.serve import serve

        refuse_the_rest()
        line = Line(settings["asked"], settings["answered"], MOST_REQUEST_BYTES, patient=True)
        line.send({"ready": applied})
        status = 1
        serve(line, settings["kind"], settings["submission"])
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)


def _confine(settings: Mapping[str, Any], applied: list[str]) -> None:
    readable, hidden, home = settings["readable"], settings["hidden"], settings["home"]
    if "namespaces" in applied:
        try:
            namespaces.see_only(readable, hidden, settings["root"], home)
        except OSError:  # some systems allow the namespaces, and nothing in them
            applied.remove("namespaces")
    os.chdir(home)
    process_limits.limit(settings["cpu_s"])
    applied.append("limits")
    refused = process_limits.refuse_privileges()
    if "landlock" in settings["layers"] and refused and landlock.see_only(readable, hidden, home):
        applied.append("landlock")
    namespaces.give_up_capabilities()
    if "system-calls" in settings["layers"] and refused and system_calls.refuse_system_calls():
        applied.append("system-calls")


def _wait(child: int, wake: int) -> None:
    """Until the child has ended, or the grader is gone."""
    while True:
        # Not collected yet: until then its number, and its group's, belong to no other process.
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        for descriptor in select.select([0, wake], [], [])[0]:
            if not os.read(descriptor, 4096):
                return


def _end_all(child: int) -> int:
    """Ends every descendant, and waits for its end; returns the child's status."""
    signal.set_wakeup_fd(-1)
    found = NO_CAGE
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while True:
        for process in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return found
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            found = code if code >= 0 else 128 - code


def _children() -> list[int]:
    """Children of this process, those that it has adopted among them."""
    own = os.getpid()
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
                if int(fields[1]) == own:
                    found.append(int(name))
    return found
