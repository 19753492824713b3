"""Running one part in processes of its own, until it is through or its time is up.

In: a part's name and its time. Out: its checks. The one idea: what a process was doing when it died
or was ended is a failure like any other, and the rest of the part still gets its turn in the next
process. This file is both sides: `run_part` in the parent, `main` in the child. Read next:
`bench.py`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu.bench import (
    EQUAL_FAILURES,
    LOST,
    Bench,
    LostError,
    PartEndedError,
    words_of,
)
from benchmarks.gpu.records import Check
from benchmarks.gpu.rehearsal import rehearsing

#: What a process gets beyond its time, to end by itself.
GRACE_S = 5.0
TIME_UP = "its time was up, and it was ended"
_ROOT = Path(__file__).resolve().parents[2]
_LAST_LINES, _LAST_WORDS = 4, 300


def run_part(part: str, until: float, *, rehearse: bool = False) -> list[Check]:
    """Runs a part; see the file's idea.

    Args:
        part: a module of this package.
        until: when it must be done, by `time.time`.
        rehearse: over the strict fake driver.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        while True:
            before = log.stat().st_size
            problem = _one_process(part, log, until, rehearse)
            _close_begun(part, log, problem)
            no_progress = log.stat().st_size == before
            if problem and max(failures(log).values(), default=0) >= EQUAL_FAILURES:
                _note_end(part, log, failures(log).most_common(1)[0][0])
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


def _one_process(part: str, log: Path, until: float, rehearse: bool) -> str:
    """Runs the part from where the log ends; what was wrong with the process, or ""."""
    command = [sys.executable, "-m", "benchmarks.gpu.apart", part, str(log), str(until)]
    command += ["--rehearse"] * rehearse
    left_s = max(1.0, until + GRACE_S - time.time())
    try:
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=left_s, check=False
        )
    except subprocess.TimeoutExpired:
        return TIME_UP
    if done.returncode == 0:
        return ""
    last = " ".join(done.stderr.split("\n")[-_LAST_LINES:])[-_LAST_WORDS:]
    return f"the process ended with status {done.returncode}: {last}"


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
    parser.add_argument("until", type=float)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--few", action="store_true")
    asked = parser.parse_args(arguments)
    asked.log.touch()
    done = frozenset(check.name for check in read_log(asked.log)[0])
    bench = Bench(
        asked.part, asked.log, asked.until, asked.rehearse, asked.few, done, failures(asked.log)
    )
    module = importlib.import_module(f"benchmarks.gpu.{asked.part}")
    with rehearsing(module.REHEARSED_BY) if asked.rehearse else nullcontext():
        try:
            module.run(bench)
        except PartEndedError as words:
            _note_end(asked.part, asked.log, str(words))
        except LostError as check:
            print(f"the GPU is lost to this process since {check}", file=sys.stderr)
            return LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
