"""The results of a run: checks, targets, and the two files they are written to.

A check is "ok", "failed" or "not run", with its numbers and a note, and nothing else. A target of
the project is compared with the least that all checks with its number reached, so that one slow
shape is not hidden behind the others. Checks that were not reached are listed like failed ones. One
JSON and one Markdown file are written anew after each part, so that a run that is killed keeps what
was done. Read next: `__main__.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.parts import AGAIN

Status = Literal["ok", "failed", "not run"]
NAMES = {False: "gpu", True: "rehearsal"}
_REHEARSED = (
    "**A rehearsal over the stub driver, without a GPU: it shows that kernels compile, link and "
    "launch, and at small sizes that their values are right. No figure below is a result.**"
)
_A_DAY_S = 86_400.0
#: From this compute capability on a GPU is of the class that the targets are for.
CLASS = 9.0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried.

    Args:
        part, name: which.
        status: "ok", "failed", "not run".
        numbers: what was measured, by names with units.
        note: why it failed or was not run, or what should be known.
        seconds: that it took.
    """

    part: str
    name: str
    status: Status
    numbers: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """What is wanted of a GPU of the class of an H200.

    Args:
        what: in words.
        key: of `Check.numbers`.
        wanted: at least this, in each check that has the number.
        unit: of both.
    """

    what: str
    key: str
    wanted: float
    unit: str = ""

    def judge(self, checks: Sequence[Check], rehearsed: bool) -> dict[str, Any]:
        """The target with what was measured and "met", "missed" or "not run"."""
        found = [check.numbers[self.key] for check in checks if self.key in check.numbers]
        if rehearsed or not found:
            return {**asdict(self), "measured": None, "verdict": "not run"}
        verdict = "met" if min(found) >= self.wanted else "missed"
        if any(float(c.numbers.get("capability", CLASS)) < CLASS for c in checks):
            verdict = "of another class of GPU"
        return {**asdict(self), "measured": min(found), "verdict": verdict}


TARGETS = (
    Target("fp32 convolution, 128 channels and up", "fp32_conv_tflops", 38, "TFLOP/s"),
    Target("TF32 convolution, forward", "tf32_forward_tflops", 150, "TFLOP/s"),
    Target("memory-bound kernels, share of copy bandwidth", "share_of_copy", 0.80),
    Target("copies beside kernels, share of the link", "share_of_link", 0.90),
    Target("ResNet-50 at 7.5 times the memory, `auto`: throughput kept", "kept_of_best", 0.80),
)


@dataclass
class Report:
    """All that the runs of a GPU have found so far.

    Args:
        folder: where it is written.
        rehearsed: whether it ran without a GPU.
        facts: date, device, versions; "runs": what has been run, and when.
        checks: in the order in which they were made.
        name: of both files, without their endings.
        parts: that are to be run; one without any check has not begun.
    """

    folder: Path
    rehearsed: bool
    facts: dict[str, Any]
    checks: list[Check] = field(default_factory=list)
    name: str = ""
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.name = self.name or NAMES[self.rehearsed]

    def write(self) -> None:
        """Writes both files, whole or not at all."""
        _replace(self.folder / f"{self.name}.json", json.dumps(self.to_json(), indent=1) + "\n")
        _replace(self.folder / f"{self.name}.md", self.to_markdown())

    def replaced(
        self, part: str, found: Sequence[Check], only: Collection[str] = ()
    ) -> list[Check]:
        """The checks with new ones of a part in the place of those that it had.

        Args:
            only: names of the checks that were made again; empty: all of the part.
        """
        kept = [c for c in self.checks if c.part != part or (only and c.name not in only)]
        return [*kept, *found]

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "version": 1, "rehearsal": self.rehearsed, "facts": self.facts,
            "targets": [t.judge(self.checks, self.rehearsed) for t in TARGETS],
            "not_begun": self.not_begun(), "checks": [asdict(check) for check in self.checks],
        }  # fmt: skip

    def not_begun(self) -> list[str]:
        """Parts of which there is nothing."""
        begun = {AGAIN, *(check.part for check in self.checks)}
        return [part for part in self.parts if part not in begun]

    def to_markdown(self) -> str:
        """The same for reading: facts, targets, what failed, what was not reached, every number."""
        lines = ["# What the GPU showed", "", *([_REHEARSED, ""] if self.rehearsed else [])]
        lines += [f"- {name}: {_fact(value)}" for name, value in self.facts.items()]
        lines += ["", "## Targets", "", *_targets(self.to_json()["targets"])]
        failed = [c for c in self.checks if c.status == "failed"]
        if failed:
            lines += ["", "## Failed", ""]
            lines += [f"- {c.part}, {c.name}: {_one_line(c.note)}" for c in failed]
        lines += self._not_reached()
        for part in dict.fromkeys(check.part for check in self.checks):
            lines += ["", *_section(part, [c for c in self.checks if c.part == part])]
        return "\n".join(lines) + "\n"

    def _not_reached(self) -> list[str]:
        """What was not run, by reasons, and what was not even begun."""
        reasons: dict[tuple[str, str], list[str]] = {}
        for check in self.checks:
            if check.status == "not run":
                reasons.setdefault((check.part, _one_line(check.note)), []).append(check.name)
        told = [f"- {part}, {', '.join(names)}: {why}" for (part, why), names in reasons.items()]
        told += [f"- {part}: not begun" for part in self.not_begun()]
        return ["", "## Not reached", "", *told] if told else []


def continued(folder: Path, facts: dict[str, Any], run: int) -> Report:
    """The report of a run on a GPU: that of an earlier run on the same GPU goes on for a day.

    Args:
        run: its number, for the list of runs; 0: all.
    """
    this = {"run": run or "all", "date": facts["date"], "commit": facts["commit"]}
    day = facts["date"][:10]
    for path in sorted(folder.glob("gpu-*.json"), key=_written, reverse=True):
        data = json.loads(path.read_text(encoding="utf-8"))
        same = data["facts"].get("GPU") == facts["GPU"] and not data["rehearsal"]
        if same and time.time() - _written(path) < _A_DAY_S:
            checks = [Check(**check) for check in data["checks"]]
            runs = [*data["facts"].get("runs", []), this]
            return Report(folder, False, {**facts, "runs": runs}, checks, path.stem)
    taken = len(list(folder.glob(f"gpu-{day}*.json")))
    name = f"gpu-{day}" + (f"-{taken + 1}" if taken else "")
    return Report(folder, False, {**facts, "runs": [this]}, name=name)


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _fact(value: Any) -> str:
    """A fact on one line; of the runs, one after the other."""
    if not isinstance(value, list):
        return str(value)
    return "; ".join(", ".join(f"{k} {v}" for k, v in each.items()) for each in value)


def _targets(judged: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| target | wanted | measured | |", "|---|---|---|---|"]
    for target in judged:
        measured = "-" if target["measured"] is None else f"{target['measured']:.3g}"
        wanted = f"{target['wanted']:g} {target['unit']}".strip()
        lines.append(f"| {target['what']} | {wanted} | {measured} | {target['verdict']} |")
    return lines


def _section(part: str, checks: Sequence[Check]) -> list[str]:
    """A part: how many checks of each kind, then those that have something to tell."""
    counts = {s: sum(c.status == s for c in checks) for s in ("ok", "failed", "not run")}
    told = [c for c in checks if c.numbers or c.note]
    lines = [f"## {part}", "", ", ".join(f"{n} {status}" for status, n in counts.items() if n), ""]
    if told:
        lines += ["| check | status | numbers | note |", "|---|---|---|---|"]
    for check in told:
        numbers = ", ".join(f"{key} {_show(value)}" for key, value in check.numbers.items())
        lines.append(f"| {check.name} | {check.status} | {numbers} | {_one_line(check.note)} |")
    return lines


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:400]


def _replace(path: Path, text: str) -> None:
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
