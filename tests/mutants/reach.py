"""Which blocks a test reaches, and how long it takes: found once for each test file.

A fork of the process runs the tests of a file, with a probe at the head of every block of the rooms
that may be mutated, also in the processes that these tests start. What it finds is kept, and stays
true until the test file or one of the functions that its tests reach is another. Read next:
`court.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path

import pytest
from mutants import planted
from mutants.forks import cpu_seconds, in_fork, interrupt_after
from mutants.nearby import LATE
from mutants.operators import ROOT, digest_of, files, sources

#: CPU seconds of a test that judges, and of a file in which tests are timed; of what comes late,
#: three times as many.
LONGEST_TEST_S, LONGEST_FILE_S = 10, 150
#: How reach is found: what was kept by another way is found again.
WAY = "in children, as plug-ins of pytest too, and in the cage"


@dataclass(frozen=True, slots=True)
class Judge:
    """A test as it is without a mutant.

    Args:
        seconds: of CPU time, with that of processes which it starts.
        reached: a bit for each block of its file's `Reach`.
    """

    test: str
    seconds: float
    reached: int


@dataclass(frozen=True, slots=True)
class Reach:
    """What the tests of a file reach.

    Args:
        bits: {name of a block: its bit}.
        judges: in the order of the file.
    """

    bits: Mapping[str, int]
    judges: Sequence[Judge]

    def reaching(self, block: str) -> list[tuple[bool, float, Judge]]:
        """Tests that reach a block, the quickest first: (False, seconds of all up to it, test).
        Then (True, ..) those that come after them, for a fixture or a cache may have reached it
        on their behalf.
        """
        if block not in self.bits:
            return []
        bit = 1 << self.bits[block]
        first = next(n for n, judge in enumerate(self.judges) if judge.reached & bit)
        found = sorted(self.judges[first:], key=lambda j: (not j.reached & bit, j.seconds))
        ends = accumulate(judge.seconds for judge in found)
        return [(not j.reached & bit, end, j) for j, end in zip(found, ends, strict=True)]


@dataclass(eq=False)
class Tests:
    """The tests that pytest has collected: a plugin, so it hears what becomes of each.

    Args:
        kept: folder of what is known already.
        scratch: folder of what other processes of this run need.
        skipped: {a test file that cannot be collected here: what is missing}.
    """

    kept: Path
    scratch: Path
    items: dict[str, list[pytest.Item]] = field(default_factory=dict)
    loaded: planted.Loaded = field(default_factory=dict)
    probed: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[str, bool], Reach] = field(default_factory=dict)
    _failed: bool = False
    _passed: bool = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skipped[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed
        self._passed |= report.when == "call" and report.passed

    def begin(self, items: Iterable[pytest.Item]) -> None:
        """Takes what has been collected, and plants the probes."""
        for item in items:
            self.items.setdefault(item.nodeid.split("::")[0], []).append(item)
        self.loaded = planted.loaded()
        self.probed = planted.plant_probes(files(), self.loaded, self.scratch / "probed")

    def run(self, item: pytest.Item, following: pytest.Item | None) -> tuple[bool, bool]:
        """(whether a test has passed, whether it has failed): neither, if it is skipped."""
        self._passed = self._failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return self._passed and not self._failed, self._failed

    def reach(self, file: str, interpreted: bool) -> Reach:
        """Of the tests of a file that pass in a fork.

        Args:
            interpreted: what is otherwise compiled.
        """
        if (file, interpreted) not in self._known:
            name = file.removesuffix(".py").replace("/", "-") + "-interpreted" * interpreted
            place = self.kept / f"reach-{name}.json"
            found = read(place, file)
            if found is None:
                notes = place.with_suffix(f".{os.getpid()}.part")
                notes.write_text("", encoding="utf-8")
                in_fork(lambda: self._note(file, interpreted, notes))
                write(place, file, notes)
                found = read(place, file)
                assert found is not None, place
                notes.unlink()
            self._known[file, interpreted] = found
        return self._known[file, interpreted]

    def _note(self, file: str, interpreted: bool, notes: Path) -> bool:
        """Runs the tests of a file, and writes a line of each one that passes in time."""
        if interpreted:
            planted.interpret()
            self.probed = planted.plant_probes(files(), self.loaded, compiled=True)
        items, times = self.items[file], 3 if file.startswith(LATE) else 1
        longest_s, longest_file_s = LONGEST_TEST_S * times, LONGEST_FILE_S * times
        resource.setrlimit(resource.RLIMIT_CPU, (longest_file_s, longest_file_s))
        apart = self.scratch / f"reached-{os.getpid()}"
        planted.reach_children(self.scratch / "probed", apart)
        start = cpu_seconds()
        with notes.open("w", encoding="utf-8") as lines:
            for item, following in zip(items, [*items[1:], None], strict=True):
                self.probed.clear()
                apart.write_text("", encoding="utf-8")
                begin = cpu_seconds()
                interrupt_after(longest_s)
                passed, _ = self.run(item, following)
                interrupt_after(0)
                seconds = cpu_seconds() - begin
                if passed and seconds <= longest_s:
                    blocks = self.probed.union(apart.read_text(encoding="utf-8").split("\n")[:-1])
                    row = item.nodeid, round(seconds, 4), sorted(blocks)
                    lines.write(json.dumps(row) + "\n")
                    lines.flush()
                if cpu_seconds() - start > longest_file_s:
                    break
        return True


def write(place: Path, file: str, notes: Path) -> None:
    """Keeps what a fork has noted: a test's blocks as bits."""
    bits: dict[str, int] = {}
    judges = []
    for line in notes.read_text(encoding="utf-8").splitlines():
        test, seconds, blocks = json.loads(line)
        reached = sum(1 << bits.setdefault(block, len(bits)) for block in blocks)
        judges.append((test, seconds, hex(reached)))
    functions = {block.partition("+")[0] for block in bits}
    kept = {
        "content": _content(file), "functions": {f: _source_of(f) for f in sorted(functions)},
        "bits": bits, "judges": judges,
    }  # fmt: skip
    whole = place.with_suffix(f".{os.getpid()}.whole")
    whole.write_text(json.dumps(kept), encoding="utf-8")
    whole.replace(place)  # another court may read it meanwhile


def read(place: Path, file: str) -> Reach | None:
    """What is kept of a file, if it is still true."""
    if not place.exists():
        return None
    kept = json.loads(place.read_text(encoding="utf-8"))
    same = all(_source_of(name) == digest for name, digest in kept["functions"].items())
    if kept["content"] != _content(file) or not same:
        return None
    judges = [Judge(test, seconds, int(reached, 16)) for test, seconds, reached in kept["judges"]]
    return Reach(kept["bits"], judges)


def _source_of(function: str) -> str:
    file, _, place = function.partition(":")
    return sources(file).get(place, "") if (ROOT / file).exists() else ""


def _content(file: str) -> str:
    return digest_of([content_of(file), WAY])


@cache
def content_of(file: str) -> str:
    """Digest of a test file."""
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()
