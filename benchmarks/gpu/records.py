"""What a run found: checks, targets, and the two files they are written to.

In: checks as the parts make them. Out: one JSON and one Markdown file, written anew after each part
so that a run that is killed keeps what was done. The one idea: a check is "ok", "failed" or "not
run", with its numbers and a note, and nothing else; a target of the project is the least that all
checks with its number reached, so that one slow shape is not hidden behind the others. Read next:
`__main__.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "failed", "not run"]
NAMES = {False: "gpu", True: "rehearsal"}
_REHEARSED = (
    "**A rehearsal over the strict fake driver, without a GPU: it shows that the program runs. No "
    "figure below is a result.**"
)


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
    """All that a run has found so far.

    Args:
        folder: where it is written.
        rehearsed: whether it ran without a GPU.
        facts: date, device, versions.
        checks: in the order in which they were made.
    """

    folder: Path
    rehearsed: bool
    facts: dict[str, Any]
    checks: list[Check] = field(default_factory=list)

    def write(self) -> None:
        """Writes both files, whole or not at all."""
        name = NAMES[self.rehearsed]
        _replace(self.folder / f"{name}.json", json.dumps(self.to_json(), indent=1) + "\n")
        _replace(self.folder / f"{name}.md", self.to_markdown())

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "version": 1, "rehearsal": self.rehearsed, "facts": self.facts,
            "targets": [target.judge(self.checks, self.rehearsed) for target in TARGETS],
            "checks": [asdict(check) for check in self.checks],
        }  # fmt: skip

    def to_markdown(self) -> str:
        """The same for reading: facts, targets, failures first, then every number."""
        lines = ["# What the GPU showed", "", *([_REHEARSED, ""] if self.rehearsed else [])]
        lines += [f"- {name}: {value}" for name, value in self.facts.items()]
        lines += ["", "## Targets", "", *_targets(self.to_json()["targets"])]
        failed = [c for c in self.checks if c.status == "failed"]
        if failed:
            lines += ["", "## Failed", ""]
            lines += [f"- {c.part}, {c.name}: {_one_line(c.note)}" for c in failed]
        for part in dict.fromkeys(check.part for check in self.checks):
            lines += ["", *_section(part, [c for c in self.checks if c.part == part])]
        return "\n".join(lines) + "\n"


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
