"""A submission's process, asked question by question from a process that runs none of its code.

Questions and answers are data. The limit of time, the limit on an answer's length and the name of
the question are kept on this side: a process that violates one of them is ended, and the question
gets an error that says how the process ended. Only the time in which it answers counts, and of that
only its own (`Patience`). A process is started when it is first needed, and again after it was
ended. Read next: `cage/supervise.py`, which is started; `remote.py`, which asks.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from ooctrain.course.cage.process_limits import MEMORY_BYTES
from ooctrain.course.cage.wire import (
    MOST_REPLY_BYTES,
    BadMessage,
    Line,
    OutOfTime,
    error_of,
    printable,
)
from ooctrain.course.isolation import LAYERS, InSight, is_cage
from ooctrain.errors import ConfigError
from ooctrain.plugins import parse_spec

#: Until a process is ready: it loads NumPy, on a machine that may be busy.
START_LIMIT_S = 120.0
#: No layers that could be left out: what they keep from a submission is open to it.
_TRUSTED: frozenset[str] = frozenset()
#: For a process that has closed its pipe, until it is ended.
ENDING_S = 2.0
#: For a cage, until all that is in it is ended.
ALL_ENDED_S = 20.0
#: Of what a process printed: its last line is somewhere in them.
LAST_BYTES = 4096
#: Seconds of processor time that a cage may use in all, for each second of the limit.
CPU_FACTOR = 20
_BEGIN = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from ooctrain.course.cage.supervise import main; main()"
)

#: Called by a submission's process while it answers: (what, values) -> the reply.
Called = Callable[[str, list[Any]], Mapping[str, Any]]


class NoAnswer(Exception):
    """A submission's process was ended, or ended by itself."""


class NoCage(ConfigError):
    """No submission can be run here: it is not this submission's fault."""


def _no_cage(why: str) -> NoCage:
    return NoCage(f"no process can be started for a submission: {why}", code="OOC-119")


class Interview:
    """One submission, for as long as something is asked of it.

    Args:
        submission: "/path/file.py:Class", with parameters or without.
        kind: "planner", "allocator", "bands" or "law".
        limit_s: for all that is asked from one `begin` to the next, in time of its own.
        allowed: layers that may be used; what is no cage without the others is not tried.
    """

    def __init__(
        self, submission: str, kind: str, limit_s: float, allowed: frozenset[str] = LAYERS
    ):
        spec = parse_spec(submission)
        if os.name != "posix":
            raise ConfigError(
                "a submission is run on Linux or macOS only",
                code="OOC-119",
                fix="grade it in a Linux container or virtual machine",
            )
        if not Path(spec.file).is_file():
            raise ConfigError(
                f"there is no Python file {spec.file!r}",
                code="OOC-106",
                fix="ooctrain grade ASSIGNMENT my_file.py:MyPlanner",
            )
        self._file, self._rest = Path(spec.file), submission.partition(".py:")[2]
        self._kind, self._limit_s = kind, limit_s
        # Where there is no cage, it is trusted.
        self._ways = [allowed, _TRUSTED] if is_cage(allowed) else [_TRUSTED]
        self._process: _Process | None = None
        self._patience = Patience(limit_s, running=False)
        self.applied: tuple[str, ...] = ()
        self.fault = ""
        self._started = 0

    def begin(self) -> None:
        """From now on the time counts anew, and what went wrong before is forgotten."""
        self.fault = ""
        pid = self._process.pid if self._process is not None else None
        self._patience = Patience(self._limit_s, pid, running=False)

    def ask(self, question: Mapping[str, Any], called: Called | None = None) -> Any:
        """The answer to a question.

        Args:
            called: does what the process requests while it answers.

        Raises:
            NoAnswer: there is none any more, since `begin`; `fault` says why. After a `MemoryError`
                nothing more is asked, since laws would try a hundred times to make it smaller.
            NoCage: there is no way to run it on this system.
            Exception: what the submission raises; its attribute `line` says it in one line.
        """
        if self.fault:
            raise NoAnswer(self.fault)
        try:
            reply = self._reply(question, called)
        except OutOfTime:
            self._give_up(f"it did not end within {self._limit_s:g} s")
        except BadMessage as error:
            self._give_up(f"it gave {error}")
        except (EOFError, BrokenPipeError):
            self._give_up("", ENDING_S)
        finally:
            self._patience.pause()
        if "error" in reply:
            raised, line = error_of(reply["error"])
            of_driver = isinstance(reply["error"], dict) and reply["error"].get("driver") is True
            raised.__dict__.update(line=line, of_driver=of_driver)
            if type(raised) is MemoryError:  # to fill gigabytes takes seconds, each time anew
                self.fault = f"it ran out of memory before: {MEMORY_BYTES >> 30} GiB are there"
            raise raised
        return reply.get("answer")

    def close(self) -> None:
        """Ends the process and all that it has started."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def __enter__(self) -> Interview:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def processes(self) -> int:
        """How many processes have been started: an earlier one knew more."""
        return self._started

    def _reply(self, question: Mapping[str, Any], called: Called | None) -> dict[str, Any]:
        line, patience = self._running().line, self._patience
        name = secrets.token_hex(8)
        patience.go_on()
        line.send({**question, "id": name}, patience.until)
        while True:
            reply = line.receive(patience.until)
            if reply.get("id") != name:
                raise BadMessage("an answer to what was not asked")
            if "call" not in reply:
                return reply
            if called is None or not isinstance(reply.get("values"), list):
                raise BadMessage("a call where none is awaited")
            patience.pause()
            said = called(str(reply["call"]), reply["values"])
            patience.go_on()
            line.send({**said, "id": name}, patience.until)

    def _running(self) -> _Process:
        if self._process is None:
            self._process = self._start()
            self._started += 1
            self._patience.watch(self._process.pid)
        return self._process

    def _start(self) -> _Process:
        """Starts the process in a cage, or, where that does not work here, without one."""
        why = ""
        for layers in self._ways:
            process = _Process(self._file, self._rest, self._kind, self._limit_s, layers)
            try:
                patience = Patience(START_LIMIT_S, process.pid)
                ready = process.line.receive(patience.until).get("ready")
            except EOFError:
                why = process.end(ENDING_S)
                continue
            except (OutOfTime, BadMessage) as error:  # not a reason to trust it
                why = process.end(ENDING_S)
                raise _no_cage(why) from error
            self.applied = tuple(map(str, ready or ()))
            if layers and not is_cage(self.applied):
                process.end()
                continue
            self._ways = [layers]  # what has run in a cage once is never run without
            return process
        raise _no_cage(why)

    def _give_up(self, why: str, patience_s: float = 0.0) -> NoReturn:
        assert self._process is not None
        ended = self._process.end(patience_s)
        self._process = None
        self.fault = why or ended
        raise NoAnswer(self.fault)


class _Process:
    """One process, in a folder that is made for it and goes with it.

    Args:
        file, rest: the submission's file, and what follows behind "file.py:".
        layers: of the cage; none: there is no cage.
    """

    def __init__(self, file: Path, rest: str, kind: str, limit_s: float, layers: frozenset[str]):
        self._folder = tempfile.TemporaryDirectory(
            prefix="ooctrain-grade-", ignore_cleanup_errors=True
        )
        seen = InSight.made(Path(self._folder.name).resolve(), file)
        asked, ask = os.pipe()
        answer, answered = os.pipe()
        settings = {
            "asked": asked, "answered": answered, "kind": kind,
            "folder": self._folder.name,
            "submission": f"{seen.submission}:{rest}", "cpu_s": int(CPU_FACTOR * limit_s) + 60,
            "readable": seen.readable, "hidden": seen.hidden, "root": str(seen.root),
            "home": str(seen.home), "layers": sorted(layers),
        }  # fmt: skip
        python = os.path.realpath(sys.executable)
        command = [python, "-I", "-S", "-c", _BEGIN, str(seen.library), json.dumps(settings)]
        self._printed: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._printed,
            stderr=subprocess.STDOUT, cwd=seen.home, env=_environment(seen.home),
            pass_fds=(asked, answered), start_new_session=True,
        )  # fmt: skip
        for descriptor in (asked, answered):
            os.close(descriptor)
        self.line, self.pid = Line(answer, ask, MOST_REPLY_BYTES), self._process.pid

    def end(self, patience_s: float = 0.0) -> str:
        """Ends it and all that it has started; how it ended, in words.

        Args:
            patience_s: so long it may end by itself, and so with a status of its own.
        """
        process = self._process
        assert process.stdin is not None
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
        process.stdin.close()
        try:
            status = process.wait(ALL_ENDED_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        self.line.close()
        # The child wrote through the same open file, so its place is the end of what was printed.
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - LAST_BYTES))
        lines = self._printed.read().decode(errors="replace").strip().splitlines()
        self._printed.close()
        shutil.rmtree(self._folder.name, ignore_errors=True)
        self._folder.cleanup()
        last = printable(lines[-1]) if lines else "no word"
        return f"its process ended with status {status}: {last}"


def _environment(home: Path) -> dict[str, str]:
    """What is known of this process's environment there: nothing but where libraries are."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    fixed = {"HOME": str(home), "TMPDIR": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    return {**fixed, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **kept}


# How long a submission may take, on a machine that may be busy with something else. A limit of time
# is there to end a process that computes without end, or sleeps. Time in which the process is ready
# and waits for a processor is not its own; Linux counts it for each process, so it is subtracted,
# as is the time in which the grader waits for a processor to hear an answer. What the grader does
# between two questions is not counted either. Where the system does not count it, all time is a
# process's own. Source: Linux, Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat".

#: On a machine that never gets to it, a process is ended after this multiple of its limit.
MOST_WAITED = 30
#: Asked again no sooner, since to ask takes a millisecond.
_AGAIN_S = 0.02
_NS_PER_S = 1e9


class Patience:
    """A limit of time for a process and its descendants.

    Args:
        limit_s: limit of their own time.
        pid: number of the process; None where there is none yet.
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
