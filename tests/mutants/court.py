"""Tries mutants, one after another: does a test notice it?

The court is a pytest plugin: pytest imports and collects the tests once, and each mutant is tried
in a fork of that process, which plants it and runs the tests that reach its block, of all files
side by side, until one fails. A test that crashes or runs far longer than it did has noticed the
mutant, too. Verdicts are kept by the content of all that they depend on, so that an interrupted run
goes on. Read next: `report.py`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from mutants import planted
from mutants.forks import in_fork, limit
from mutants.nearby import near_files, reads_defaults
from mutants.operators import ROOT, Mutant, digest_of, files
from mutants.reach import Judge, Tests, content_of

from ooctrain.sched.search import jit

#: A test that needs so many times its time, and so many seconds more, runs for ever.
PATIENCE, GRACE_S = 5, 5
KILLED, SURVIVED, UNREACHED = "killed", "survived", "unreached"
#: Time ended before all stages had judged.
UNFINISHED = "unfinished"
#: The tests nearest to it need software that is not installed.
NOT_HERE = "not here"
#: Who reaches it calls what Numba has compiled, into which probes do not see.
ENTRY = f"{Path(jit.__file__).relative_to(ROOT).as_posix()}:FromPython.__call__"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    Args:
        by: the test that noticed it; of a survivor "", of one not judged here what is missing.
        tests: how many were run.
        seconds: wall time.
    """

    mutant: Mutant
    outcome: str
    by: str
    tests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Terms:
    """How a court works.

    Args:
        stages: how many of those of `nearby.near_files`.
        budget_s: CPU seconds that the tests of one stage may take, by their usual times; what they
            leave the next ones may take, too.
        until: `time.monotonic` at which no other mutant is begun.
        first: mutants before this one are looked up, and not tried.
    """

    stages: int
    budget_s: float
    until: float
    first: int = 0


@dataclass(eq=False)
class Court:
    """The plugin.

    Args:
        mutants: to be tried.
        tests: that judge; the other plugin.
        tell: gets each verdict as it is found.
    """

    mutants: Sequence[Mutant]
    tests: Tests
    terms: Terms
    tell: Callable[[Verdict], None]
    verdicts: dict[Mutant, Verdict] = field(default_factory=dict)
    _alone: dict[str, bool] = field(default_factory=dict)

    def pytest_collection(self) -> None:
        """A failure is enough: nobody reads the smallest example of it."""
        quick = settings(settings.default, phases=(Phase.explicit, Phase.reuse, Phase.generate))
        settings.register_profile("mutants", quick)
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the place of running the tests."""
        assert not session.testsfailed, "a test file cannot be collected"
        for file in files():
            with suppress(ImportError):
                importlib.import_module(file.removesuffix(".py").replace("/", "."))
        self.tests.begin(session.items)
        gc.freeze()
        self.judge()
        return True

    def judge(self) -> None:
        """Tries all mutants by one stage of tests after the other, until all is done or time is
        up.
        """
        for stage in range(self.terms.stages):
            for number, mutant in enumerate(self.mutants):
                before = self.verdicts.get(mutant)
                if stage and (before is None or before.outcome in (KILLED, UNFINISHED)):
                    continue
                verdict = self._known(mutant, stage)
                late = time.monotonic() >= self.terms.until or number < self.terms.first
                if verdict is None and not late:
                    verdict = self._tried(mutant, stage)
                if verdict is not None:
                    self.verdicts[mutant] = _together(before, verdict)
                    self.tell(self.verdicts[mutant])
                elif before is not None:
                    self.verdicts[mutant] = replace(before, outcome=UNFINISHED)
        for mutant, verdict in self.verdicts.items():
            missing = self._missing(mutant)
            if missing and verdict.outcome != KILLED:
                self.verdicts[mutant] = replace(verdict, outcome=NOT_HERE, by=missing)

    def _missing(self, mutant: Mutant) -> str:
        """Why pytest could not collect one of the test files nearest to a mutant; or ""."""
        reasons = map(self.tests.skipped.get, near_files(mutant.file)[0])
        return next(filter(None, reasons), "")

    # A verdict

    def _tried(self, mutant: Mutant, stage: int) -> Verdict:
        """Lets the tests of one stage judge, as many as fit into the budget."""
        begin = time.monotonic()
        chosen, _ = self._chosen(mutant, stage)
        by = self._killer(mutant, chosen)
        outcome = KILLED if by else SURVIVED if chosen else UNREACHED
        verdict = Verdict(mutant, outcome, by, len(chosen), time.monotonic() - begin)
        row = {name: getattr(verdict, name) for name in ("outcome", "by", "tests", "seconds")}
        row["content"] = self._content(mutant, stage, by)
        row["mutant"] = f"{mutant.file}:{mutant.line} {mutant.place}: {mutant.after}"
        self._place(mutant, stage).write_text(json.dumps(row, indent=1), encoding="utf-8")
        return verdict

    def _chosen(self, mutant: Mutant, stage: int) -> tuple[list[Judge], float]:
        """The tests of a stage that judge, and the CPU seconds that are left for the next."""
        left = self._chosen(mutant, stage - 1)[1] if stage else 0.0
        return _within(self._judges(mutant, stage), left + self.terms.budget_s)

    def _judges(self, mutant: Mutant, stage: int) -> list[Judge]:
        """Tests that reach a mutant: all files get on side by side, the quickest tests first, for
        those of one file are often alike. Who has noticed the mutant before is asked at once.
        """
        found = [
            (*entry, file)
            for file in self._files(mutant, stage)
            for entry in self._reaching(mutant, file)
        ]
        found.sort(key=lambda entry: (entry[0], entry[1], entry[3]))
        before = self._row(mutant, stage).get("by")
        return sorted((judge for _, _, judge, _ in found), key=lambda j: j.test != before)

    def _reaching(self, mutant: Mutant, file: str) -> list[tuple[bool, float, Judge]]:
        """Tests of a file that reach a mutant. A default value is there without a call: who reads
        signatures has reached that of every function.
        """
        reach = self.tests.reach(file, mutant.compiled)
        found = reach.reaching(mutant.reached)
        if mutant.is_default and reads_defaults(file):
            before = {judge for _, _, judge in found}
            found += [(False, j.seconds, j) for j in reach.judges if j not in before]
        return found

    def _files(self, mutant: Mutant, stage: int) -> list[str]:
        """Whose tests judge at a stage. What is compiled is judged by the nearest, and by those who
        call what is compiled: each has to run once more, with all that is compiled as Python.
        """
        found = [file for file in near_files(mutant.file)[stage] if file in self.tests.items]
        return [f for f in found if not mutant.compiled or not stage or self._enters(f)]

    def _enters(self, file: str) -> bool:
        """Whether the tests of a file call what is compiled."""
        return any(block.startswith(ENTRY) for block in self.tests.reach(file, False).bits)

    def _killer(self, mutant: Mutant, chosen: list[Judge]) -> str:
        """The test that notices a mutant, and would not have failed without it; or ""."""
        by = self._first_to_fail(mutant, chosen)
        while by is not None and not self._passes_alone(by, mutant.compiled):
            chosen = chosen[chosen.index(by) + 1 :]
            by = self._first_to_fail(mutant, chosen)
        return by.test if by else ""

    def _first_to_fail(self, mutant: Mutant, judges: list[Judge]) -> Judge | None:
        """The test that notices a mutant."""
        items = [self._item(judge) for judge in judges]
        diary = self.tests.kept / f"trial-{os.getpid()}"
        apart = self.tests.scratch / "mutant"

        def trial() -> bool:
            planted.plant(mutant, self.tests.loaded, apart)
            planted.reach_children(apart)
            for number, item in enumerate(items):
                diary.write_text(str(number), encoding="utf-8")
                limit(_patience(judges[number]))
                _, failed = self.tests.run(item, items[number + 1] if item != items[-1] else None)
                if failed:
                    return False
            return True

        if not judges:
            return None
        diary.unlink(missing_ok=True)
        fine = in_fork(trial)
        assert fine or diary.exists(), f"{mutant.file}:{mutant.line} cannot be planted"
        number = int(diary.read_text(encoding="utf-8"))
        diary.unlink()
        return None if fine else judges[number]

    def _passes_alone(self, judge: Judge, interpreted: bool) -> bool:
        """Whether a test that failed would have passed without the mutant, and without others."""
        if judge.test not in self._alone:
            item = self._item(judge)

            def trial() -> bool:
                if interpreted:
                    planted.interpret()
                planted.reach_children(self.tests.scratch / "nothing")
                limit(_patience(judge))
                passed, _ = self.tests.run(item, None)
                return passed

            self._alone[judge.test] = in_fork(trial)
        return self._alone[judge.test]

    def _item(self, judge: Judge) -> pytest.Item:
        items = self.tests.items[judge.test.split("::")[0]]
        return next(item for item in items if item.nodeid == judge.test)

    # What is known already

    def _known(self, mutant: Mutant, stage: int) -> Verdict | None:
        row = self._row(mutant, stage)
        if not row or row["content"] != self._content(mutant, stage, row["by"]):
            return None
        return Verdict(mutant, row["outcome"], row["by"], row["tests"], row["seconds"])

    def _row(self, mutant: Mutant, stage: int) -> dict[str, Any]:
        try:
            return json.loads(self._place(mutant, stage).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}

    def _place(self, mutant: Mutant, stage: int) -> Path:
        return self.tests.kept / f"{mutant.digest(mutant.file)[:24]}-{stage}.json"

    def _content(self, mutant: Mutant, stage: int, by: str) -> str:
        """Of the function, and of the test that killed, or of all those that did not."""
        if by:
            return digest_of([mutant.source, content_of(by.split("::")[0])])
        reaching = [
            file for file in self._files(mutant, stage) if self._reaching(mutant, file)
        ]  # fmt: skip
        budget = f"{self.terms.budget_s} s, and what is left goes on"
        return digest_of([mutant.source, budget, *map(content_of, reaching)])


def _patience(judge: Judge) -> float:
    return PATIENCE * judge.seconds + GRACE_S


def _together(before: Verdict | None, verdict: Verdict) -> Verdict:
    """The verdict of several stages."""
    if before is None or verdict.outcome == KILLED:
        return verdict
    tests = before.tests + verdict.tests
    return replace(verdict, outcome=SURVIVED if tests else UNREACHED, tests=tests)


def _within(judges: list[Judge], seconds: float) -> tuple[list[Judge], float]:
    """As many as fit into so much CPU time, in their order; and what is left of it."""
    chosen = []
    for judge in judges:
        if judge.seconds <= seconds:
            seconds -= judge.seconds
            chosen.append(judge)
    return chosen, seconds
