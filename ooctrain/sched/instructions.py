"""What a list can say: six instructions, each a line of data.

In: ids of calls and variables, bytes. Out: instructions, and each in words. The one idea: three of
them work, each on a stream of its own: Run on C, SwapOut on D (device to host), SwapIn on H (host
to device); the other three release or wait. What each claims, releases and waits for is fixed in
`docs/schedule.md`; `ledger.py` is that table as code. Read next: `schedule.py`, the list of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ooctrain.step.trace import Trace


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


def describe_instruction(instruction: Instruction, trace: Trace) -> str:
    """An instruction in words, with the names of its call or variable."""
    match instruction:
        case Run(call, keep):
            names = ", ".join(trace.variables[v].name for v in keep or ())
            return f"Run {trace.calls[call].name}" + (
                "" if keep is None else f" keep {names or 'nothing'}"
            )
        case End(call):
            return f"End {trace.calls[call].name}"
        case Fence():
            return "Fence"
        case SwapOut(var, lo, hi) | SwapIn(var, lo, hi) | Free(var, lo, hi):
            return f"{type(instruction).__name__} {trace.variables[var].name} [{lo}, {hi})"
