"""A plan file as it is read: the schema of each of its parts, and what becomes of them.

A file may come from any source, so what it says is compared with these classes; data that does not
read back as an equal list is refused with a ConfigError that names the place. `Schedule` and `Plan`
call this file for their `from_json`. Nothing here is needed to write a plan, so a planner that is
graded in a process of its own does without it. Read next: `plan_file.py`, which writes the same
rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import msgspec

from ooctrain.errors import ConfigError, PlanMismatch
from ooctrain.sched.instructions import End, Fence, Free, Instruction, Run, SwapIn, SwapOut
from ooctrain.sched.plan_file import FORMAT_VERSION, Parts
from ooctrain.step.schema import FileKind, Finite, Misfit, Whole
from ooctrain.step.trace import Trace
from ooctrain.units import Granule


class _RunRow(msgspec.Struct, array_like=True, tag="run", forbid_unknown_fields=True):
    """["run", call, keep or null]."""

    call: Whole
    keep: tuple[Whole, ...] | None


class _EndRow(msgspec.Struct, array_like=True, tag="end", forbid_unknown_fields=True):
    """["end", call]."""

    call: Whole


class _PartRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """[word, variable, lo, hi]."""

    var: Whole
    lo: Whole
    hi: Whole


class _OutRow(_PartRow, tag="out"):
    """A copy to the host."""


class _InRow(_PartRow, tag="in"):
    """A copy to the device."""


class _FreeRow(_PartRow, tag="free"):
    """Memory that is given back."""


class _FenceRow(msgspec.Struct, array_like=True, tag="fence", forbid_unknown_fields=True):
    """["fence"]."""


#: (variable, lo, hi)
_RangeRow = tuple[Whole, Whole, Whole]
_Row = _RunRow | _EndRow | _OutRow | _InRow | _FreeRow | _FenceRow


class _GranuleFile(msgspec.Struct):
    """A granule in a file."""

    size_bytes: Whole
    ranges: bool
    fixed_bytes: Whole = 0

    def __post_init__(self) -> None:
        self.granule()

    def granule(self) -> Granule:
        """The granule. Raises ConfigError: not a size."""
        return Granule(self.size_bytes, self.ranges, self.fixed_bytes)


class _ScheduleFile(msgspec.Struct):
    """A list in a file."""

    granule: _GranuleFile
    start_device: tuple[_RangeRow, ...]
    start_host: tuple[_RangeRow, ...]
    instructions: tuple[_Row, ...]


class _BoundFile(msgspec.Struct, forbid_unknown_fields=True):
    """A bound in a file."""

    makespan_us: Finite
    kind: str


class PlanFile(msgspec.Struct):
    """What stands in a plan file."""

    version: Literal[1]
    trace_fingerprint: str
    rewrites: tuple[str, ...]
    schedule: _ScheduleFile
    makespan_us: Finite
    peak_bytes: Whole
    host_peak_bytes: Whole
    lower_bound: _BoundFile | None
    notes: dict[str, Any]


_FIX = "`ooctrain plan MODEL --save FILE` writes one"
_SCHEDULE = FileKind(_ScheduleFile, "is not a schedule", "OOC-104", _FIX)
PLAN_FILE = FileKind(PlanFile, "is not a plan file", "OOC-104", _FIX)


def schedule_from_json(data: Mapping[str, Any]) -> Parts:
    """Raises ConfigError where the data is not a schedule."""
    return _parts(_SCHEDULE.made(data))


def plan_from_json(data: Any, trace: Trace, name: str) -> tuple[PlanFile, Parts]:
    """What a plan file says.

    Args:
        name: name of the file, for errors.

    Raises:
        ConfigError: it is not a plan file of this version.
        PlanMismatch: it was made for another trace.
    """
    trace_fingerprint = trace.fingerprint
    if not isinstance(data, Mapping) or data.get("version") != FORMAT_VERSION:
        raise PLAN_FILE.refused(name, f"it is not an object of version {FORMAT_VERSION}")
    if data.get("trace_fingerprint") != trace_fingerprint:
        raise PlanMismatch(
            "this plan was made for another trace",
            numbers=f"plan {data.get('trace_fingerprint')}, trace {trace_fingerprint}",
            fix="trace with the same model, batch, optimizer and threads, or plan again",
        )
    found = PLAN_FILE.made(data, name)
    if (misfit := _beyond(found.schedule, trace)) is not None:
        raise PLAN_FILE.refused(name, misfit)
    return found, _parts(found.schedule)


def _beyond(file: _ScheduleFile, trace: Trace) -> Misfit | None:
    """The first number that no list of the trace can hold: a call or variable that is not there, or
    bytes beyond all of one. What a list does with numbers that it can hold is the verifier's.
    """
    calls, variables = len(trace.calls), len(trace.variables)
    for side in ("start_device", "start_host"):
        for number, row in enumerate(getattr(file, side)):
            if (found := _beyond_row(row, variables, trace)) is not None:
                return Misfit(f"$.schedule.{side}[{number}][{found[0]}]", found[1])
    for number, row in enumerate(file.instructions):
        place = f"$.schedule.instructions[{number}]"
        if isinstance(row, _RunRow | _EndRow) and not 0 <= row.call < calls:
            return Misfit(f"{place}[1]", f"the trace has no call {row.call}, only {calls} calls")
        if isinstance(row, _RunRow):
            for which, v in enumerate(row.keep or ()):
                if not 0 <= v < variables:
                    return Misfit(f"{place}[2][{which}]", f"the trace has no variable {v}")
        if isinstance(row, _PartRow):
            part = (row.var, row.lo, row.hi)
            if (found := _beyond_row(part, variables, trace)) is not None:
                return Misfit(f"{place}[{found[0] + 1}]", found[1])
    return None


def _beyond_row(row: tuple[int, int, int], variables: int, trace: Trace) -> tuple[int, str] | None:
    """Which of the numbers of a range no list can hold, and why."""
    if not 0 <= row[0] < variables:
        return 0, f"the trace has no variable {row[0]}, only {variables} variables"
    size = trace.variables[row[0]].nbytes
    for which in (1, 2):
        if not 0 <= row[which] <= size:
            return which, f"{row[which]} is not a byte of a variable of {size} bytes"
    return None


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


def rows_of_file(
    path: str | PathLike[str], allowed: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """What a plan file holds, unchecked but for its rewrites, and the names of these.

    Args:
        allowed: rewrites of files ("file.py:name") that it may name: their code is run.

    Raises:
        ConfigError: not there, not a plan file, or it names other files.
    """
    data = PLAN_FILE.plain(str(path))
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
