"""`make gpu OUT=folder`: what only a GPU can show, in at most 8 minutes, correctness first.

In: a folder. Out: in it `gpu.json` and `gpu.md`, with every check, its numbers, and the project's
targets as met, missed or not run; status 1 if a check failed. The one idea: GPU time is dear and
comes seldom, so one command does everything, each part in a process of its own with a time of its
own, and nothing that goes wrong in one keeps the next from running, but for a driver or compiler
that does not work: then the run ends with the reason. Needs Python with numpy, numba,
llvmlite and numba-cuda, nothing else: what wants torch, hypothesis or compute-sanitizer is "not
run" without them. `--rehearse` runs it all over the strict fake driver, without a GPU. Read next:
`bench.py`, `records.py`.

    python -m benchmarks.gpu FOLDER [--rehearse] [--parts environment,kernels]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.apart import run_part
from benchmarks.gpu.environment import facts
from benchmarks.gpu.records import Report

#: {part: seconds of its own}, in order; what a part leaves over, the next ones may use.
PARTS = {
    "environment": 15, "kernels": 110, "networks": 95, "memory": 30, "link": 20,
    "kernel_speed": 75, "steps": 75, "mapping": 40, "sanitizer": 20,
}  # fmt: skip

#: Checks of the environment without which no other part can do anything.
NEEDED = ("GPU", "CUDA driver", "CUDA compiler")

#: In a rehearsal nothing is dear, and the machine may be slow.
REHEARSED_S = 1200


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts; 1 if a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, over the fake")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    asked = parser.parse_args(arguments)
    parts = asked.parts.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error(f"no part is called {part!r}: {', '.join(PARTS)}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    report = Report(asked.folder, asked.rehearse, facts())
    until = began = time.time()
    for part in parts:
        until = time.time() + REHEARSED_S if asked.rehearse else until + PARTS[part]
        report.checks += run_part(part, until, rehearse=asked.rehearse)
        report.facts["seconds"] = round(time.time() - began, 1)
        reason = _why_nothing_follows(report)
        if reason:
            report.facts["ended early"] = reason
        report.write()
        _tell(part, report)
        if reason:
            print(f"ended early: {reason}", flush=True)
            break
    return int(any(check.status == "failed" for check in report.checks))


def _why_nothing_follows(report: Report) -> str:
    """What is broken that everything needs; empty if nothing is."""
    for check in report.checks:
        if check.part == "environment" and check.name in NEEDED and check.status != "ok":
            return f"{check.name}: {check.note}"
    return ""


def _tell(part: str, report: Report) -> None:
    checks = [check for check in report.checks if check.part == part]
    ok = sum(check.status == "ok" for check in checks)
    print(f"{part}: {ok} of {len(checks)} ok, {report.facts['seconds']} s so far", flush=True)
    for check in checks:
        if check.status == "failed":
            print(f"  failed: {check.name}: {' '.join(check.note.split())[:300]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
