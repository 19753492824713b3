"""`make mutants`: tries a sample of mutants, and prints how many the tests notice, by room.

A run goes on where it was interrupted: `build/mutants` keeps what is known, by content. `--page`
writes the result below the last heading of a page. Read next: `operators.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
from mutants import report
from mutants.court import KILLED, Court, Terms, Verdict
from mutants.forks import in_fork
from mutants.nearby import NEAREST, STAGES, collected
from mutants.operators import ROOT, Mutant, files, mutants_of, sample
from mutants.reach import Tests

from ooctrain.sched.search.search import compile_search

RESULT = "## The result\n"


def main() -> int:
    given = options().parse_args()
    os.chdir(ROOT)
    drawn = drawn_from(given.only, given.sample, given.seed)
    reasons = report.equivalents()
    wrong = [f"no longer there: {key}" for key in report.outdated(reasons)]
    court = try_all(drawn, given)
    verdicts = list(court.verdicts.values())
    found = report.wrongly_equivalent(verdicts, reasons)
    wrong += [f"not equivalent, {v.by} notices it: {v.mutant.key}" for v in found]
    judged = "the nearest tests alone" if given.nearest else "the quick tests that reach them"
    text = (
        f"{report.tried_of(verdicts, len(drawn))} by {judged}, seed {given.seed}.\n\n"
        f"{report.table_of(verdicts, reasons)}\n"
        f"```diff\n{report.survivors_of(verdicts, reasons)}```\n"
    )
    print(text, *wrong, sep="\n")
    if given.page:
        before, _, _ = given.page.read_text(encoding="utf-8").partition(RESULT)
        given.page.write_text(f"{before}{RESULT}\n{text}", encoding="utf-8")
    low = report.rate_of(verdicts, reasons) < given.least
    return int(bool(wrong) or low)


def options() -> argparse.ArgumentParser:
    """What the command understands."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", default="1", help="another one draws other mutants")
    parser.add_argument(
        "--only", default="", help="of files whose path contains this, or one of a,b,c"
    )
    parser.add_argument("--from", type=int, default=1, dest="first", help="number of the first one")
    parser.add_argument("--minutes", type=float, default=60, help="begin none after so long")
    parser.add_argument("--seconds", type=float, default=12, help="CPU time of a stage of tests")
    parser.add_argument(
        "--nearest", action="store_true", help="tests that import the file, and tables"
    )
    parser.add_argument("--least", type=float, default=0.0, help="rate below which it fails")
    parser.add_argument("--kept", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--page", type=Path, help="a page of the documentation for the result")
    return parser


def drawn_from(parts: str, count: int, seed: str) -> list[Mutant]:
    """The sample, from all files whose path contains one of the `parts`, which commas separate."""
    chosen = [file for file in files() if any(part in file for part in parts.split(","))]
    return sample([mutant for file in chosen for mutant in mutants_of(file)], count, seed)


def try_all(drawn: list[Mutant], given: argparse.Namespace) -> Court:
    """The court, after pytest has let it find what becomes of each."""
    until = time.monotonic() + 60 * given.minutes
    terms = Terms(NEAREST if given.nearest else STAGES, given.seconds, until, given.first - 1)
    given.kept.mkdir(parents=True, exist_ok=True)
    os.environ["CI"] = "1"  # the same examples in each run
    in_fork(searches_are_compiled)  # a test that is ended while Numba compiles may leave half of it
    tests = list(collected(drawn, given.nearest))
    with tempfile.TemporaryDirectory() as folder:
        court = Court(drawn, Tests(given.kept, Path(folder)), terms, tell)
        ended = pytest.main(
            ["-q", "-s", "--tb=native", "-p", "no:xdist", "-p", "no:cacheprovider",
             "-m", "not slow", "--basetemp", f"{folder}/tests", *(tests or ["tests/mutants"])],
            [court, court.tests],
        )  # fmt: skip
    assert ended in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), ended
    return court


def searches_are_compiled() -> bool:
    """Once they are, they lie on the disk."""
    compile_search()
    return True


def tell(verdict: Verdict) -> None:
    """A line of a verdict, as soon as it is there."""
    mutant = verdict.mutant
    by = f"by {verdict.by}" if verdict.outcome == KILLED else f"by none of {verdict.tests}"
    print(
        f"{verdict.outcome:9} {verdict.seconds:5.1f} s {mutant.file}:{mutant.line} {by}", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
