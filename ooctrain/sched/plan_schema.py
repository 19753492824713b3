"""A plan file as it is read: the schema of each of its parts, and what becomes of them.

A file may come from any source, so what it says is compared with these classes; data that does not
read back as an equal list is refused with a ConfigError that names the place. `Schedule` and `Plan`
call this file for their `from_json`. Nothing here is needed to write a plan, so a planner that is
graded in a process of its own does without it. Read next: `plan_file.py`, which writes the same
rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from ooctrain.errors import ConfigError, PlanMismatch
from ooctrain.sched.instructions import End, Fence, Free, Instruction, Range, Run, SwapIn, SwapOut
from ooctrain.sched.plan_file import FORMAT_VERSION, Parts
from ooctrain.step.schema import FileKind
from ooctrain.units import Granule


class _RunRow(msgspec.Struct, array_like=True, tag="run", forbid_unknown_fields=True):
    """["run", call, keep or null]."""

    call: int
    keep: tuple[int, ...] | None


class _EndRow(msgspec.Struct, array_like=True, tag="end", forbid_unknown_fields=True):
    """["end", call]."""

    call: int


class _PartRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """[word, variable, lo, hi]."""

    var: int
    lo: int
    hi: int


class _OutRow(_PartRow, tag="out"):
    """A copy to the host."""


class _InRow(_PartRow, tag="in"):
    """A copy to the device."""


class _FreeRow(_PartRow, tag="free"):
    """Memory that is given back."""


class _FenceRow(msgspec.Struct, array_like=True, tag="fence", forbid_unknown_fields=True):
    """["fence"]."""


_Row = _RunRow | _EndRow | _OutRow | _InRow | _FreeRow | _FenceRow


class _GranuleFile(msgspec.Struct):
    """A granule in a file."""

    size_bytes: int
    ranges: bool
    fixed_bytes: int = 0

    def __post_init__(self) -> None:
        self.granule()

    def granule(self) -> Granule:
        """The granule. Raises ConfigError: not a size."""
        return Granule(self.size_bytes, self.ranges, self.fixed_bytes)


class _ScheduleFile(msgspec.Struct):
    """A list in a file."""

    granule: _GranuleFile
    start_device: tuple[Range, ...]
    start_host: tuple[Range, ...]
    instructions: tuple[_Row, ...]


class _BoundFile(msgspec.Struct, forbid_unknown_fields=True):
    """A bound in a file."""

    makespan_us: float
    kind: str


class PlanFile(msgspec.Struct):
    """What stands in a plan file."""

    version: Literal[1]
    trace_fingerprint: str
    rewrites: tuple[str, ...]
    schedule: _ScheduleFile
    makespan_us: float
    peak_bytes: int
    host_peak_bytes: int
    lower_bound: _BoundFile | None
    notes: dict[str, Any]


_FIX = "`ooctrain plan MODEL --save FILE` writes one"
_SCHEDULE = FileKind(_ScheduleFile, "is not a schedule", "OOC-104", _FIX)
PLAN_FILE = FileKind(PlanFile, "is not a plan file", "OOC-104", _FIX)


def schedule_from_json(data: Mapping[str, Any]) -> Parts:
    """Raises ConfigError where the data is not a schedule."""
    return _parts(_SCHEDULE.made(data))


def plan_from_json(data: Any, trace_fingerprint: str, name: str) -> tuple[PlanFile, Parts]:
    """What a plan file says.

    Args:
        name: of the file, for errors.

    Raises:
        ConfigError: it is not a plan file of this version.
        PlanMismatch: it was made for another trace.
    """
    if not isinstance(data, Mapping) or data.get("version") != FORMAT_VERSION:
        raise PLAN_FILE.refused(name, f"it is not an object of version {FORMAT_VERSION}")
    if data.get("trace_fingerprint") != trace_fingerprint:
        raise PlanMismatch(
            "this plan was made for another trace",
            numbers=f"plan {data.get('trace_fingerprint')}, trace {trace_fingerprint}",
            fix="trace with the same model, batch, optimizer and threads, or plan again",
        )
    found = PLAN_FILE.made(data, name)
    return found, _parts(found.schedule)


def _parts(file: _ScheduleFile) -> Parts:
    instructions = tuple(_instruction(row) for row in file.instructions)
    return instructions, file.start_device, file.start_host, file.granule.granule()


def _instruction(row: _Row) -> Instruction:
    """The instruction of a row."""
    match row:
        case _RunRow(call, keep):
            return Run(call, keep)
        case _EndRow(call):
            return End(call)
        case _OutRow(var, lo, hi):
            return SwapOut(var, lo, hi)
        case _InRow(var, lo, hi):
            return SwapIn(var, lo, hi)
        case _FreeRow(var, lo, hi):
            return Free(var, lo, hi)
    return Fence()


def rows_of_file(path: str, allowed: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """What a plan file holds, unchecked but for its rewrites, and the names of these.

    Args:
        allowed: rewrites of files ("file.py:name") that it may name: their code is run.

    Raises:
        ConfigError: not there, not a plan file, or it names other files.
    """
    data = PLAN_FILE.plain(path)
    of_a_plan = isinstance(data, dict) and "trace_fingerprint" in data
    if not of_a_plan or not isinstance(data.get("rewrites", []), list):
        raise PLAN_FILE.refused(str(path), "it has no trace_fingerprint and no list of rewrites")
    names = data.get("rewrites", [])
    for name in names:
        if isinstance(name, str) and ".py:" in name and name not in allowed:
            raise ConfigError(
                f"{path} would run the file of rewrite {name!r}", code="OOC-104",
                fix=f"look at it, then load_plan(..., rewrites=[{name!r}]), or --rewrite {name}",
            )  # fmt: skip
    return data, names
