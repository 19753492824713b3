"""The six instructions of a list, each a line of data.

Three of them do work, each on its own stream: Run on C, SwapOut on D (device to host), SwapIn on H
(host to device). The other three release or wait. `docs/schedule.md` fixes what each one claims,
releases and waits for; `ledger.py` is that table as code. In messages, counterexamples and puzzles
an instruction is written as one line, such as `out x1[0:64K]`. Read next: `schedule.py`, the list
of them; `list_text.py`, which reads such lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ooctrain.step.trace import Call, Trace, Variable
from ooctrain.units import GIB, KIB, MIB


@dataclass(frozen=True, slots=True)
class Run:
    """Runs a call (again).

    Args:
        call: id of the call.
        keep: outputs that stay, the others being scratch until End; None: all stay.
    """

    call: int
    keep: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class End:
    """Releases workspace and scratch outputs of the last Run; implied before the next Run."""

    call: int


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Copies bytes [lo, hi) of a variable to the host. It stays on the device until Free."""

    var: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class SwapIn:
    """Claims bytes [lo, hi) of a variable on the device and fills them from the host copy."""

    var: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Free:
    """Gives bytes [lo, hi) back once their listed readers, writers and copies are done."""

    var: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Fence:
    """Everything after waits for everything before."""


Instruction = Run | End | SwapOut | SwapIn | Free | Fence
Range = tuple[int, int, int]  # (variable, lo, hi)


#: The word of each instruction in a list (`list_text.py`).
WORDS: Mapping[type, str] = {
    Run: "run", End: "end", SwapOut: "out", SwapIn: "in", Free: "free", Fence: "fence",
}  # fmt: skip
#: What stands for itself as a name; every other one is quoted.
_PLAIN = re.compile(r"[^\s\[\];\"#@][^\s\[\];\"]*")
_TAKEN = ("keep", "nothing")


def describe_instruction(instruction: Instruction, trace: Trace | None = None) -> str:
    """An instruction as its line of the list: "run f1 keep a", "out a[0:64K]", "free x".

    Args:
        trace: gives the names; where it has none, or is None, ids stand for them: "@3".
    """
    word = WORDS[type(instruction)]
    match instruction:
        case Run(call, keep):
            kept = "" if keep is None else " ".join(["", "keep", *_kept(keep, trace)])
            return f"{word} {spelled(call, trace.calls if trace else ())}{kept}"
        case End(call):
            return f"{word} {spelled(call, trace.calls if trace else ())}"
        case SwapOut(var, lo, hi) | SwapIn(var, lo, hi) | Free(var, lo, hi):
            return f"{word} {spelled_range((var, lo, hi), trace)}"
    return word


def spelled_range(part: Range, trace: Trace | None) -> str:
    """A range as a list has it: "x" for the whole of x, "x[0:64K]" for a part."""
    variable, lo, hi = part
    name = spelled(variable, trace.variables if trace else ())
    known = trace.variables if trace and variable >= 0 else ()
    if [(lo, hi)] == [(0, v.nbytes) for v in known[variable : variable + 1]]:
        return name
    return f"{name}[{spelled_size(lo)}:{spelled_size(hi)}]"


def spelled(number: int, named: Sequence[Variable] | Sequence[Call]) -> str:
    """The name of a call or variable, quoted where it must be; "@3" where there is none."""
    if not 0 <= number < len(named):
        return f"@{number}"
    name = named[number].name
    return name if _PLAIN.fullmatch(name) and name not in _TAKEN else json.dumps(name)


def unquoted(text: str) -> str:
    """The name that a quoted word stands for; the word itself where it stands for none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def spelled_size(size_bytes: int) -> str:
    """Bytes as a list has them: 65536 is "64K", 1000 is "1000"."""
    for letter, unit in (("G", GIB), ("M", MIB), ("K", KIB)):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{letter}"
    return str(size_bytes)


def _kept(keep: Sequence[int], trace: Trace | None) -> list[str]:
    return [spelled(v, trace.variables if trace else ()) for v in keep] or ["nothing"]


def default_start(trace: Trace) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """(device, host) ranges before a step unless a planner says otherwise.

    Persistent variables stand on the device only, inputs on the host (docs/schedule.md).
    """
    device: list[Range] = []
    host: list[Range] = []
    for variable in trace.initial:
        size = trace.variables[variable].nbytes
        (device if trace.variables[variable].persistent else host).append((variable, 0, size))
    return tuple(device), tuple(host)


def whole(trace: Trace, variable: int) -> Range:
    """The range of a whole variable."""
    return (variable, 0, trace.variables[variable].nbytes)
