"""A plan as a file: the JSON form of each of its parts.

Instructions, ranges and a granule are converted to the rows of a file; a row holds a word and whole
numbers. `Schedule` and `Plan` call this file for their `to_json`. Read next: `plan_schema.py`,
which reads such rows; `schedule.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from ooctrain.errors import ConfigError
from ooctrain.sched.instructions import (
    WORDS,
    End,
    Free,
    Instruction,
    Range,
    Run,
    SwapIn,
    SwapOut,
)  # fmt: skip
from ooctrain.units import Granule

FORMAT_VERSION = 1
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


def _row(instruction: Instruction) -> list:
    """Its row in a plan file: its name, then its fields."""
    row: list = [WORDS[type(instruction)]]
    match instruction:
        case Run(call, keep):
            return [*row, call, keep if keep is None else list(keep)]
        case End(call):
            return [*row, call]
        case SwapOut(var, lo, hi) | SwapIn(var, lo, hi) | Free(var, lo, hi):
            return [*row, var, lo, hi]
    return row


def _python_number(value: object) -> int | float:
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"JSON has no {type(value).__name__}")
