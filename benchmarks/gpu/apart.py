"""Runs one part in processes of its own, until it is complete or its time is up.

What a process was doing when it died or was ended is a failure like any other, and the rest of the
part still gets its turn in the next process. This file is both sides: `run_part` in the parent,
which returns the checks, and `main` in the child. Read next: `bench.py`.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.gpu.bench import (
    EQUAL_FAILURES,
    LOST,
    Asked,
    Bench,
    LostError,
    PartEndedError,
    words_of,
)
from benchmarks.gpu.records import Check
from benchmarks.gpu.rehearsal import rehearsing, surroundings

#: What a process gets beyond its time, to end by itself; and to name what was not reached.
GRACE_S, LISTING_S = 5.0, 10.0
#: How often the checks so far are told.
TELL_S = 2.0
TIME_UP = "its time was up, and it was ended"
_PR_SET_PDEATHSIG = 1
_ROOT = Path(__file__).resolve().parents[2]
_LAST_LINES, _LAST_WORDS = 4, 300
#: As Python's faulthandler begins.
_HUNG = "Timeout ("

Seen = Callable[[list[Check]], None]


def run_part(
    part: str, until: float, asked: Asked, *, only: Collection[str] = (), seen: Seen | None = None
) -> list[Check]:
    """Runs a part; see the file's idea.

    Args:
        part: a module of this package.
        until: when it must be done, by `time.time`.
        asked: of the whole run.
        only: names of the checks that are wanted; empty: all.
        seen: gets the checks so far, every other second, so that a run that is killed keeps them.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        (Path(folder) / "only").write_text(json.dumps(list(only)), encoding="utf-8")

        def tell() -> None:
            if seen:
                seen(read_log(log)[0])

        while True:
            before = log.stat().st_size
            problem = _one_process(part, log, until, asked, tell)
            _close_begun(part, log, problem)
            no_progress = log.stat().st_size == before
            if problem and max(failures(log).values(), default=0) >= EQUAL_FAILURES:
                _note_end(part, log, failures(log).most_common(1)[0][0])
                return read_log(log)[0]
            if problem == TIME_UP:  # the names of what was not reached
                _one_process(
                    part, log, time.time() + LISTING_S - GRACE_S, asked, tell, listing=True
                )
                return read_log(log)[0]
            if not problem or no_progress or time.time() > until:
                checks = read_log(log)[0]
                if problem and no_progress:
                    checks.append(Check(part, "the part", "failed", note=problem))
                return checks


def read_log(log: Path) -> tuple[list[Check], list[str]]:
    """The checks that ended, and the names of those that only began."""
    checks: list[Check] = []
    begun: dict[str, None] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            found = json.loads(line)
        except ValueError:  # the process died while it wrote
            continue
        if "began" in found:
            begun[found["began"]] = None
        else:
            checks.append(Check(**found))
            begun.pop(found["name"], None)
    return checks, list(begun)


def failures(log: Path) -> Counter[str]:
    """How often checks have failed with the same words."""
    return Counter(words_of(c.note) for c in read_log(log)[0] if c.status == "failed")


def _note_end(part: str, log: Path, words: str) -> None:
    """Notes that the rest of a part is left out."""
    check = Check(
        part, "the rest", "not run", note=f"{EQUAL_FAILURES} checks failed alike: {words}"
    )
    with log.open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(asdict(check)) + "\n")


def _one_process(
    part: str, log: Path, until: float, asked: Asked, tell: Callable[[], None],
    *, listing: bool = False,
) -> str:  # fmt: skip
    """Runs the part from where the log ends; what was wrong with the process, or ""."""
    how = json.dumps(asdict(asked))
    command = [sys.executable, "-m", "benchmarks.gpu.apart", part, str(log), how]
    command.append("0" if listing else str(until))
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=errors, text=True,
            env=surroundings(asked),
        )  # fmt: skip
        try:
            while process.poll() is None and time.time() < until + GRACE_S:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(min(TELL_S, max(0.1, until + GRACE_S - time.time())))
                tell()
        finally:
            ended = process.poll()
            process.kill()
            process.wait()
        if ended is None:
            return TIME_UP
        errors.seek(0)
        said = errors.read()
    if not ended:
        return ""
    if _HUNG in said:  # the latest calls stand first
        said = " ".join(said[said.index(_HUNG) :].split())[:_LAST_WORDS]
        return f"it took too long, and was ended: {said}"
    last = " ".join(said.split("\n")[-_LAST_LINES:])[-_LAST_WORDS:]
    return f"the process ended with status {ended}: {last}"


def _close_begun(part: str, log: Path, problem: str) -> None:
    """Notes what was begun and not ended."""
    status = "not run" if problem == TIME_UP else "failed"
    for name in read_log(log)[1]:
        line = {"part": part, "name": name, "status": status, "note": problem}
        with log.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(line) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The child: one part, its checks written to the log."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.apart")
    parser.add_argument("part")
    parser.add_argument("log", type=Path)
    parser.add_argument("asked", type=json.loads)
    parser.add_argument("until", type=float)
    parser.add_argument("--few", action="store_true")
    given = parser.parse_args(arguments)
    _end_with_parent()
    given.log.touch()
    asked, only = Asked(**given.asked), given.log.with_name("only")
    names = json.loads(only.read_text(encoding="utf-8")) if only.is_file() else []
    done = frozenset(check.name for check in read_log(given.log)[0])
    bench = Bench(
        given.part, given.log, given.until, asked, given.few, frozenset(names), done,
        failures(given.log),
    )  # fmt: skip
    module = importlib.import_module(f"benchmarks.gpu.{given.part}")
    with rehearsing(asked) if asked.rehearse else nullcontext() as runner:
        try:
            module.run(replace(bench, faults=runner.faults) if runner else bench)
        except PartEndedError as words:
            _note_end(given.part, given.log, str(words))
        except LostError as check:
            print(f"the GPU is lost to this process since {check}", file=sys.stderr)
            return LOST
    return 0


def _end_with_parent() -> None:
    """A part whose run was killed gives the GPU back at once."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
