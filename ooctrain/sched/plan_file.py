"""A plan as a file: the JSON form of each of its parts, and the check of what is read.

Instructions, ranges and a granule are converted to the rows of a file, and back. A row holds a word
and whole numbers. A file may come from any source, so data that does not read back as an equal list
is refused with a ConfigError. `Schedule` and `Plan` call this file for their `to_json` and
`from_json`. Read next: `schedule.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from operator import index
from typing import Any

from ooctrain.errors import ConfigError, PlanMismatch
from ooctrain.sched.instructions import End, Fence, Free, Instruction, Range, Run, SwapIn, SwapOut
from ooctrain.units import Granule

FORMAT_VERSION = 1
_KINDS: Mapping[str, type] = {
    "run": Run, "end": End, "out": SwapOut, "in": SwapIn, "free": Free, "fence": Fence,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _KINDS.items()}

#: The four parts of a schedule: instructions, ranges on the device and on the host, granule.
Parts = tuple[tuple[Instruction, ...], tuple[Range, ...], tuple[Range, ...], Granule]


def schedule_to_json(parts: Parts) -> dict[str, Any]:
    """Plain lists and numbers; `schedule_from_json` gives back equal parts."""
    instructions, start_device, start_host, granule = parts
    return {
        "granule": {
            "size_bytes": granule.size_bytes,
            "ranges": granule.ranges,
            "fixed_bytes": granule.fixed_bytes,
        },
        "start_device": [list(r) for r in start_device],
        "start_host": [list(r) for r in start_host],
        "instructions": [_row(instruction) for instruction in instructions],
    }


def schedule_from_json(data: Mapping[str, Any]) -> Parts:
    """Raises ConfigError where the data is not a schedule."""
    with refused_as("not a schedule"):
        return (
            tuple(_instruction(row) for row in data["instructions"]),
            tuple(_range(row) for row in data["start_device"]),
            tuple(_range(row) for row in data["start_host"]),
            _granule(data["granule"]),
        )


def plan_to_json(trace_fingerprint: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """A plan file of these parts, with Python's numbers: planners may compute with NumPy's.

    Raises:
        ConfigError: a part holds what JSON has no word for.
    """
    data = {"version": FORMAT_VERSION, "trace_fingerprint": trace_fingerprint, **parts}
    try:
        return json.loads(json.dumps(data, default=_python_number))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"this plan cannot be written down: {error}", code="OOC-108",
            fix="numbers, text, lists and dictionaries in the plan's notes",
        ) from error  # fmt: skip


def check_plan_file(data: Any, trace_fingerprint: str) -> None:
    """Raises ConfigError unless it is a plan file of this version, PlanMismatch unless it was made
    for this trace.
    """
    if not isinstance(data, Mapping) or data.get("version") != FORMAT_VERSION:
        raise ConfigError(
            "not a plan file of version 1",
            code="OOC-104",
            fix="`ooctrain plan MODEL --save FILE` writes one",
        )
    if data.get("trace_fingerprint") != trace_fingerprint:
        raise PlanMismatch(
            "this plan was made for another trace",
            numbers=f"plan {data.get('trace_fingerprint')}, trace {trace_fingerprint}",
            fix="trace with the same model, batch, optimizer and threads, or plan again",
        )


@contextmanager
def refused_as(what: str) -> Iterator[None]:
    """Within the `with` block, what cannot be read raises ConfigError(what)."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{what}: {error!r}",
            code="OOC-104",
            fix="`ooctrain plan MODEL --save FILE` writes another",
        ) from error


def _row(instruction: Instruction) -> list:
    """Its row in a plan file: its name, then its fields."""
    row: list = [_NAMES[type(instruction)]]
    match instruction:
        case Run(call, keep):
            return [*row, call, keep if keep is None else list(keep)]
        case End(call):
            return [*row, call]
        case SwapOut(var, lo, hi) | SwapIn(var, lo, hi) | Free(var, lo, hi):
            return [*row, var, lo, hi]
    return row


def _instruction(row: Sequence) -> Instruction:
    """The instruction of a row; KeyError, TypeError or ValueError where it is none."""
    name, *fields = row
    kind = _KINDS[name]
    if kind is Run:
        call, keep = fields
        return Run(index(call), None if keep is None else tuple(map(index, keep)))
    return kind(*map(index, fields))


def _range(row: Sequence) -> Range:
    variable, lo, hi = map(index, row)
    return variable, lo, hi


def _granule(data: Mapping[str, Any]) -> Granule:
    ranges = data["ranges"]
    if not isinstance(ranges, bool):
        raise TypeError(f"ranges: {ranges!r} is neither true nor false")
    return Granule(index(data["size_bytes"]), ranges, index(data.get("fixed_bytes", 0)))


def _python_number(value: object) -> int | float:
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"JSON has no {type(value).__name__}")
