"""Which tests reach a mutant, and whether one of them notices it.

The court is a pytest plugin: pytest imports and collects the tests once, and each mutant is tried
in a fork of that process, which plants it and runs the tests that reach its block, the quickest
first, until one fails. A test that crashes or runs far longer than it did has noticed the mutant,
too. What a test reaches is found once for each test file, in a fork of its own. Both are kept by
the content of all that they depend on, so that an interrupted run goes on. Read next: `report.py`.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from mutants import planted
from mutants.nearby import near_files
from mutants.operators import ROOT, Mutant, files

#: CPU seconds of a test that judges, of a file in which tests are timed, and of one fork's memory.
LONGEST_TEST_S, LONGEST_FILE_S, MOST_BYTES = 2.0, 40.0, 6 << 30
#: CPU seconds of each file's quickest tests, which are tried before any longer ones.
OF_EACH_FILE_S = 0.5
#: A test that needs so many times its time, and so many seconds more, runs for ever.
PATIENCE, GRACE_S = 5, 5
KILLED, SURVIVED, UNREACHED = "killed", "survived", "unreached"


@dataclass(frozen=True, slots=True)
class Judge:
    """A test as it is without a mutant.

    Args:
        seconds: of CPU time.
        reached: blocks.
    """

    test: str
    seconds: float
    reached: frozenset[str]

    @property
    def file(self) -> str:
        return self.test.split("::")[0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    Args:
        by: the test that noticed it; of a survivor "".
        tests: how many were run.
        seconds: wall time.
    """

    mutant: Mutant
    outcome: str
    by: str
    tests: int
    seconds: float


@dataclass(eq=False)
class Court:
    """The plugin.

    Args:
        mutants: to be tried.
        kept: folder of what is known already.
        stages: 1: the nearest tests alone; 2: then those of the room.
        budget_s: CPU seconds that the longer tests of one mutant may take, by their usual times.
        until: `time.monotonic` at which no other mutant is begun.
        tell: gets each verdict as it is found.
    """

    mutants: Sequence[Mutant]
    kept: Path
    budget_s: float
    until: float
    tell: Callable[[Verdict], None]
    stages: int = 2
    verdicts: dict[Mutant, Verdict] = field(default_factory=dict)
    _alone: dict[str, bool] = field(default_factory=dict)
    _judging: dict[tuple[str, bool], list[Judge]] = field(default_factory=dict)
    failed: int = 0
    passed: str = ""

    def pytest_collection(self) -> None:
        """A failure is enough: nobody reads the smallest example of it."""
        quick = settings(settings.default, phases=(Phase.explicit, Phase.reuse, Phase.generate))
        settings.register_profile("mutants", quick)
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += report.failed
        if report.when == "call" and report.passed:
            self.passed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the place of running the tests."""
        assert not session.testsfailed, "a test file cannot be collected"
        self.kept.mkdir(parents=True, exist_ok=True)
        self.items: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            self.items.setdefault(item.nodeid.split("::")[0], []).append(item)
        self.reached = planted.plant_probes(files())
        gc.freeze()
        for stage in range(self.stages):
            for mutant in self.mutants:
                before = self.verdicts.get(mutant)
                if time.monotonic() < self.until and (before is None or before.outcome != KILLED):
                    verdict = self._known(mutant, stage) or self._tried(mutant, stage)
                    if before is not None and verdict.outcome != KILLED:
                        tests = before.tests + verdict.tests
                        outcome = SURVIVED if tests else UNREACHED
                        verdict = replace(verdict, outcome=outcome, tests=tests)
                    self.verdicts[mutant] = verdict
                    self.tell(verdict)
        return True

    # A verdict

    def _tried(self, mutant: Mutant, stage: int) -> Verdict:
        """Tries the test files of one stage, the shortest first: the quick tests of each, and only
        then longer ones.
        """
        begin, tests, rest = time.monotonic(), 0, []
        near = [file for file in near_files(mutant.file)[stage] if file in self.items]
        for file in sorted(near, key=lambda file: ((ROOT / file).stat().st_size, file)):
            judges = self._judges(mutant, file)
            chosen = _within(judges, OF_EACH_FILE_S)
            rest += [judge for judge in judges if judge not in chosen]
            by = self._killer(mutant, chosen)
            tests += len(chosen)
            if by:
                break
        else:
            chosen = _within(sorted(rest, key=lambda judge: judge.seconds), self.budget_s)
            by = self._killer(mutant, chosen)
            tests += len(chosen)
        outcome = KILLED if by else SURVIVED if tests else UNREACHED
        return self._keep(Verdict(mutant, outcome, by, tests, time.monotonic() - begin), stage)

    def _judges(self, mutant: Mutant, file: str) -> list[Judge]:
        """Tests of a file that reach the mutant, the quickest first; then those that come after
        them, for a fixture or a cache may have reached it on their behalf.
        """
        judges, block = self._judges_in(file, mutant.compiled), f"{mutant.file}:{mutant.block}"
        if mutant.compiled:
            return sorted(judges, key=lambda judge: judge.seconds)
        first = next((n for n, judge in enumerate(judges) if block in judge.reached), len(judges))
        return sorted(judges[first:], key=lambda j: (block not in j.reached, j.seconds))

    def _killer(self, mutant: Mutant, chosen: list[Judge]) -> str:
        """The test that notices a mutant, and would not have failed without it; or ""."""
        by = self._first_to_fail(mutant, chosen)
        while by and not self._passes_alone(by):
            chosen = [judge for judge in chosen if judge.test != by]
            by = self._first_to_fail(mutant, chosen)
        return by

    def _first_to_fail(self, mutant: Mutant, judges: list[Judge]) -> str:
        """The test that notices a mutant, or ""."""
        items = {item.nodeid: item for judge in judges for item in self.items[judge.file]}
        chosen = [items[judge.test] for judge in judges]
        diary = self.kept / f"trial-{os.getpid()}"

        def trial() -> bool:
            planted.plant(mutant)
            for number, (judge, item) in enumerate(zip(judges, chosen, strict=True)):
                diary.write_text(judge.test, encoding="utf-8")
                _limit(judge.seconds * PATIENCE + GRACE_S)
                self._run(item, chosen[number + 1] if number + 1 < len(chosen) else None)
                if self.failed:
                    return False
            return True

        if not chosen:
            return ""
        fine = _in_fork(trial)
        by = diary.read_text(encoding="utf-8") if diary.exists() else ""
        assert fine or by, f"{mutant.file}:{mutant.line} cannot be planted: {mutant.after}"
        diary.unlink(missing_ok=True)
        return "" if fine else by

    def _passes_alone(self, test: str) -> bool:
        """Whether a test that failed would have passed without the mutant, and without others."""
        if test not in self._alone:
            (item,) = (item for item in self.items[test.split("::")[0]] if item.nodeid == test)

            def trial() -> bool:
                _limit(10 * LONGEST_TEST_S)
                self._run(item, None)
                return not self.failed

            self._alone[test] = _in_fork(trial)
        return self._alone[test]

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    # What is known already

    def _known(self, mutant: Mutant, stage: int) -> Verdict | None:
        try:
            row = json.loads(self._row(mutant, stage).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if row["content"] != self._content(mutant, stage, row["by"]):
            return None
        return Verdict(mutant, row["outcome"], row["by"], row["tests"], row["seconds"])

    def _keep(self, verdict: Verdict, stage: int) -> Verdict:
        row = {name: getattr(verdict, name) for name in ("outcome", "by", "tests", "seconds")}
        row["content"] = self._content(verdict.mutant, stage, verdict.by)
        self._row(verdict.mutant, stage).write_text(json.dumps(row), encoding="utf-8")
        return verdict

    def _row(self, mutant: Mutant, stage: int) -> Path:
        return self.kept / f"{mutant.digest()[:24]}-{stage}.json"

    def _content(self, mutant: Mutant, stage: int, by: str) -> str:
        """Of the function, and of the test that killed, or of all those that did not."""
        if by:
            return digest_of([mutant.source, _content_of(by.split("::")[0])])
        tests = near_files(mutant.file)[stage]
        return digest_of([mutant.source, str(self.budget_s), *map(_content_of, tests)])

    # What tests reach

    def _judges_in(self, file: str, interpreted: bool) -> list[Judge]:
        """The tests of a file that pass in a fork, with what they reach.

        Args:
            interpreted: what is otherwise compiled.
        """
        if (file, interpreted) not in self._judging:
            name = digest_of([file, str(interpreted), _content_of(file), _sources()])[:24]
            place = self.kept / f"reach-{name}.jsonl"
            if not place.exists():
                partial = place.with_suffix(".part")
                partial.write_text("", encoding="utf-8")
                _in_fork(lambda: self._note(file, interpreted, partial))
                partial.rename(place)
            rows = map(json.loads, place.read_text(encoding="utf-8").splitlines())
            judges = [Judge(test, seconds, frozenset(blocks)) for test, seconds, blocks in rows]
            self._judging[file, interpreted] = judges
        return self._judging[file, interpreted]

    def _note(self, file: str, interpreted: bool, place: Path) -> bool:
        """Runs the tests of a file, and writes a line of each one that passes in time."""
        if interpreted:
            planted.interpret()
        items = self.items[file]
        _limit(LONGEST_FILE_S)
        with place.open("w", encoding="utf-8") as lines:
            for number, item in enumerate(items):
                self.reached.clear()
                self.passed, begin = "", time.process_time()
                self._run(item, items[number + 1] if number + 1 < len(items) else None)
                seconds = time.process_time() - begin
                if self.passed == item.nodeid and not self.failed and seconds <= LONGEST_TEST_S:
                    row = item.nodeid, round(seconds, 4), sorted(self.reached)
                    lines.write(json.dumps(row) + "\n")
                    lines.flush()
                self.failed = 0
        return True


def _within(judges: list[Judge], seconds: float) -> list[Judge]:
    """As many as fit into so much CPU time, in their order."""
    chosen = []
    for judge in judges:
        if judge.seconds <= seconds:
            seconds -= judge.seconds
            chosen.append(judge)
    return chosen


# Forks


def _in_fork(work: Callable[[], bool]) -> bool:
    """Whether the work, done in a fork of this process, says yes; a crash or a limit says no."""
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setpgid(0, 0)
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silent, stream)
            gc.unfreeze()  # so that functions are found
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code = 0 if work() else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what its tests may have left running
    return status == 0


def _limit(seconds: float) -> None:
    """Ends this process after so much CPU time, or twenty times as much time on the clock."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 20 * seconds)


@cache
def _content_of(file: str) -> str:
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()


@cache
def _sources() -> str:
    """Of all that may be mutated."""
    return digest_of(map(_content_of, files()))


def digest_of(parts: Iterable[str]) -> str:
    """One digest of several texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
