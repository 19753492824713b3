"""The list: instructions in issue order, and the plan that wraps it. Pure data.

A planner writes its decisions as a `Schedule`, which verifier, simulator, executor and report all
read. The order of the list alone decides correctness and memory; the three streams it runs on
decide speed. The six instructions are defined in `instructions.py`, and other files import them
from here together with the list. The form of both in a file is in `plan_file.py`, as text in
`list_text.py`. Read next: `instructions.py`, then `ledger.py`, `simulate.py`, `verify.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

from ooctrain.sched.instructions import (
    WORDS,
    End,
    Fence,
    Free,
    Instruction,
    Range,
    Run,
    SwapIn,
    SwapOut,
    default_start,
    describe_instruction,
    whole,
)
from ooctrain.step.shown import html_of, svg_of
from ooctrain.step.trace import Trace
from ooctrain.units import BYTES, Granule, format_bytes, format_us

__all__ = [
    "BYTES", "End", "Fence", "Free", "Granule", "Instruction", "LowerBound", "Plan", "Range",
    "Run", "Schedule", "SwapIn", "SwapOut", "default_start", "describe_instruction", "whole",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Schedule:
    """A list of instructions with its starting point.

    Args:
        instructions: in issue order.
        start_device: ranges (variable, lo, hi) on the device before the step.
        start_host: ranges with a valid host copy before the step.
        granule: what the device ledger rounds with.
    """

    instructions: tuple[Instruction, ...]
    start_device: tuple[Range, ...] = ()
    start_host: tuple[Range, ...] = ()
    granule: Granule = BYTES

    def __len__(self) -> int:
        return len(self.instructions)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers; `from_json` gives back an equal schedule."""
        return _plan_file().schedule_to_json(
            (self.instructions, self.start_device, self.start_host, self.granule)
        )

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Schedule:
        """Raises ConfigError where the data is not a schedule."""
        return Schedule(*_plan_schema().schedule_from_json(data))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        counts = Counter(WORDS[type(instruction)] for instruction in self.instructions)
        words = ", ".join(f"{count} {word}" for word, count in counts.items())
        return f"Schedule({len(self)} instructions{': ' if words else ''}{words})"

    def _repr_html_(self) -> str:
        return html_of(self)

    def _repr_svg_(self) -> str:
        return svg_of(self)

    def text(self, trace: Trace | None = None) -> str:
        """The list as text, an instruction a line, with the names of a trace or with ids."""
        parts = (self.instructions, self.start_device, self.start_host, self.granule)
        return _list_text().list_to_text(parts, trace)

    @staticmethod
    def parse(text: str, trace: Trace | None = None) -> Schedule:
        """The list that a text says (docs/schedule.md); without a trace it has ids for names.

        Raises:
            ListSyntaxError: with the line and the column that cannot be read.
        """
        return Schedule(*_list_text().list_from_text(text, trace))

    def diff(self, other: Schedule, trace: Trace | None = None) -> str:
        """The first instruction in which another list differs, both in text; "" for equal ones."""
        return _list_text().first_difference(self.text(trace), other.text(trace))

    def describe(self, index: int, trace: Trace) -> str:
        """Instruction `index` as a line of the list: "out layer1.0.conv1.out[0:64K]"."""
        return describe_instruction(self.instructions[index], trace)


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A makespan that no schedule of a stated class can beat.

    Args:
        kind: what it covers: "compute", "proposition 3", "per-call link", "lp", ...
    """

    makespan_us: float
    kind: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule with the trace it is for and what the planner claims of it (the verifier
    recomputes).

    Args:
        trace: the (rewritten) trace that the schedule runs.
        rewrites: names of the rewrites that made it from the original, in order, such as "fuse".
        makespan_us, peak_bytes, host_peak_bytes: claimed, simulated on the planner's machine.
        lower_bound: what the makespan can be measured against, or None.
        notes: {word: value}: what the planner wants to say (planner, seed, evaluations, chosen
            variant).
    """

    trace: Trace
    rewrites: tuple[str, ...]
    schedule: Schedule
    makespan_us: float
    peak_bytes: int
    host_peak_bytes: int
    lower_bound: LowerBound | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The plan file: everything but the trace, of which it carries the fingerprint.

        Raises:
            ConfigError: the notes hold what JSON has no word for.
        """
        parts = {
            "rewrites": list(self.rewrites),
            "schedule": self.schedule.to_json(),
            "makespan_us": self.makespan_us,
            "peak_bytes": self.peak_bytes,
            "host_peak_bytes": self.host_peak_bytes,
            "lower_bound": self.lower_bound and asdict(self.lower_bound),
            "notes": dict(self.notes),
        }
        return _plan_file().plan_to_json(self.trace.fingerprint, parts)

    @staticmethod
    def from_json(data: Mapping[str, Any], trace: Trace, name: str = "") -> Plan:
        """A plan file read back for the (rewritten) trace that it was made for.

        Args:
            name: name of the file, for errors.

        Raises:
            ConfigError: not a plan file, or of a version this library does not know.
            PlanMismatch: made for another trace.
        """
        file, parts = _plan_schema().plan_from_json(data, trace, name)
        found = file.lower_bound
        bound = None if found is None else LowerBound(found.makespan_us, found.kind)
        return Plan(
            trace, file.rewrites, Schedule(*parts), file.makespan_us, file.peak_bytes,
            file.host_peak_bytes, bound, file.notes,
        )  # fmt: skip

    def __repr__(self) -> str:
        bound = f" (bound {format_us(self.lower_bound.makespan_us)})" if self.lower_bound else ""
        return (
            f"Plan({self.notes.get('planner', 'a list')}: {format_us(self.makespan_us)}{bound}, "
            f"peak {format_bytes(self.peak_bytes)}, {self.schedule!r}, for {self.trace!r})"
        )

    def _repr_html_(self) -> str:
        return html_of(self)

    def _repr_svg_(self) -> str:
        return svg_of(self)

    def save(self, path: str) -> None:
        """Writes the plan file."""
        # As in `_forms`; and a graded planner's process has not the module.
        from ooctrain.step.user_values import as_path

        text = json.dumps(self.to_json())
        with as_path(path).open("w", encoding="utf-8") as file:
            file.write(text)


def _list_text() -> ModuleType:
    return _forms()[0]


def _plan_file() -> ModuleType:
    return _forms()[1]


def _forms() -> tuple[ModuleType, ModuleType]:
    # Not at the top: lists are planned, proved and run a thousand times for each one that is read.
    from ooctrain.sched import list_text, plan_file

    return list_text, plan_file


def _plan_schema() -> ModuleType:
    # As in `_forms`; and a graded planner's process has no msgspec.
    from ooctrain.sched import plan_schema

    return plan_schema
