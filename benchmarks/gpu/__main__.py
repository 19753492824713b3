"""`make gpu OUT=folder`: what only a GPU can show, in three runs of at most ten minutes each.

The folder gets `gpu-DATE.json` and `gpu-DATE.md`, with every check, its numbers, failures, what was
not reached, and the project's targets as met, missed or not run; status 1 means that a check
failed. GPU time is dear, so one command does much: each part has a process and a time of its own,
and a failure in one does not keep the next from running, unless a driver or compiler does not work;
then the run ends with the reason. A run that is killed keeps what was done, and the next one on the
same GPU goes on in the same files. Needs Python with numba-cuda and what ooctrain depends on,
nothing else: what wants torch, hypothesis, ncu or compute-sanitizer is "not run" without them. Read
next: `parts.py`, `bench.py`, `records.py`.

    python -m benchmarks.gpu FOLDER [--run 1] [--parts environment,kernels] [--minutes 8]
        [--plans FOLDER] [--host-memory 64GiB] [--commit COMMIT] [--rehearse [values|time]]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from doubles.stub_driver import why_no_stub

from benchmarks.gpu.apart import run_part
from benchmarks.gpu.bench import Asked
from benchmarks.gpu.environment import facts
from benchmarks.gpu.parts import AGAIN, RUNS, wanted
from benchmarks.gpu.records import Check, Report, continued
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx
from ooctrain.units import parse_bytes

#: Checks of the environment without which no other part can do anything.
NEEDED = ("GPU", "CUDA driver", "CUDA compiler")

#: A rehearsal of values has no limit: nothing is dear, and the machine may be slow.
REHEARSED_S = 1200.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts; 1 if a check failed."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        parts = wanted(given.run, list(filter(None, given.parts.split(","))), given.minutes)
    except ValueError as error:
        parser.error(str(error))
    if given.rehearse and (missing := why_no_stub() or why_no_ptx()):
        parser.error(f"nothing can be rehearsed here: {missing}")
    host_bytes = parse_bytes(given.host_memory) if given.host_memory else 0
    capability = round(10 * float(given.capability))
    plans = str(Path(given.plans).resolve()) if given.plans else ""
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    asked = Asked(given.rehearse or "", capability, host_bytes, plans, str(folder))
    known = facts(given.commit) | {"host memory for swapping": given.host_memory or "found out"}
    if asked.rehearse:
        report = Report(folder, True, known | {"rehearsal": asked.rehearse})
    else:
        report = continued(folder, known, given.run)
    report.parts = tuple(parts)
    _run_all(report, parts, asked)
    return int(any(check.status == "failed" for check in report.checks))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("folder", type=Path)
    add("--run", type=int, default=0, choices=sorted(RUNS), help="one of the three; default: all")
    add("--parts", default="", help="only these, with commas between them")
    add("--minutes", type=float, default=0, help="that all parts have together")
    add("--plans", default="", help="folder that `make gpu-plans` has filled")
    add("--host-memory", default="", help="for what is swapped out; default: 40 %% of what is free")
    add("--commit", default=os.environ.get("COMMIT", ""), help="where there is no git to ask")
    add("--rehearse", nargs="?", const="values", choices=("values", "time"),
        help="without a GPU, over the stub driver: tiny sizes with true values (the default), or "
        "all sizes with the time that they take the host")  # fmt: skip
    add("--capability", default="9.0", help="of the GPU that is rehearsed for; 7.5 is a T4")
    return parser


def _run_all(report: Report, parts: Mapping[str, float], asked: Asked) -> None:
    """Runs parts one after the other, each until its time; the report is written meanwhile."""
    until = began = time.time()
    limited = asked.rehearse != "values"
    for part, seconds in parts.items():
        until = until + seconds if limited else time.time() + REHEARSED_S
        for name, only in _failed(report, parts) if part == AGAIN else [(part, ())]:
            _run_one(report, name, until, asked, only)
            report.facts["seconds"] = round(time.time() - began, 1)
            _tell(name, report)
        reason = _why_nothing_follows(report)
        if reason:
            report.facts["ended early"] = reason
            print(f"ended early: {reason}", flush=True)
        report.write()
        if reason:
            return


def _run_one(
    report: Report, part: str, until: float, asked: Asked, only: Sequence[str] = ()
) -> None:
    before = report.checks

    def seen(checks: Sequence[Check]) -> None:
        report.checks = before
        report.checks = report.replaced(part, checks, only)
        report.write()

    seen(run_part(part, until, asked, only=only, seen=seen))


def _failed(report: Report, parts: Mapping[str, float]) -> list[tuple[str, list[str]]]:
    """Parts of earlier runs with the names of their failed checks."""
    found: dict[str, list[str]] = {}
    for check in report.checks:
        if check.status == "failed" and check.part not in parts:
            found.setdefault(check.part, []).append(check.name)
    return list(found.items())


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
