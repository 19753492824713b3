"""Every error that the library raises on purpose, in one tree.

    OoctrainError
    +-- ConfigError (ValueError)         a wrong argument, budget, name or option
    |   +-- ShapeError                   shapes or dtypes that do not fit an operation
    |   +-- ListSyntaxError              a list in text that cannot be read (.line, .column)
    |   +-- NotRepeatable                a forward pass that differs from trace to trace
    |   +-- Withheld                     a part that a course wheel leaves out
    +-- Infeasible                       no schedule of this planner fits (carries the minimum)
    +-- PartFailed                       a planner or rewrite raised what is none of these errors
    +-- DoesNotFit                       planned, but the allocator's reserved peak is too high
    +-- ScheduleError                    a schedule breaks a verifier's rule (.rule, .index)
    +-- PlanMismatch                     a plan made for another trace, granule or device
    +-- OutOfDeviceMemory (MemoryError)  the arena has no room for a request
    +-- InvalidFree                      double free, foreign free, free after close
    +-- TransferError                    a copy engine failed
    +-- DriverError                      a memory or device call failed (.call, .status)
    |   +-- VmmUnavailable               virtual addressing is not available on this machine
    |   +-- DeviceUnavailable            no usable GPU (driver, device, compiler)
    +-- CaptureRefused                   a step cannot be recorded as a graph
    +-- DataFormatError                  a data file is broken (.path, .offset)
    +-- CheckpointError                  a checkpoint is broken, foreign or cannot be written
    +-- InUse                            two threads at once, or a fork, at one trainer
    +-- TrainingStopped                  the run ended early: NaN loss, interrupt (.step)
    +-- RanksDiffer                      ranks that train together do not agree, or one is lost
    +-- AutogradError                    second backward, no graph, in-place write on a saved value

Each message has up to four lines: code and problem; place; numbers; likely fix. Where memory is
short, the map of the arena is drawn as well. Names of files, variables and classes come from
outside, so any control characters in them that a terminal would obey are escaped (`printable`).
`ooctrain explain CODE` shows the smallest example that raises a code. Read next: `units.py`, then
`step/trace.py`.
"""

from __future__ import annotations

import difflib
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

#: How the numbers of an error begin that are names to choose from.
KNOWN = "known: "
# Tabs and newlines apart; a lone surrogate stands for a byte of a file's name that is no UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class OoctrainError(Exception):
    """Base of all library errors.

    Args:
        what: one sentence that says what is wrong.
        code: stable code such as "OOC-101"; `ooctrain explain CODE` tells more.
        where: step, function, variable or device concerned.
        numbers: the figures that decide (already formatted with `units`).
        fix: what most likely mends it.
    """

    default_code = "OOC-000"

    def __init__(
        self,
        what: str,
        *,
        code: str | None = None,
        where: str = "",
        numbers: str = "",
        fix: str = "",
    ):
        self.what, self.where, self.numbers, self.fix = what, where, numbers, fix
        self.code = code or self.default_code
        super().__init__(what)

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.what}"]
        lines += [f"  {label}: {text}" for label, text in self._details() if text]
        return printable("\n".join(lines))

    def _details(self) -> list[tuple[str, str]]:
        known = self.numbers.startswith(KNOWN)  # names, not numbers
        label, text = ("known", self.numbers[len(KNOWN) :]) if known else ("numbers", self.numbers)
        return [("where", self.where), (label, text), ("likely fix", self.fix)]

    def __reduce__(self):
        # Keyword-only arguments do not survive the default pickling of exceptions.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[OoctrainError], args: tuple, state: dict) -> OoctrainError:
    # Not cls.__new__: where that is MemoryError's, it refuses to make subclasses.
    error = Exception.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(OoctrainError, ValueError):
    """A wrong argument, budget, name or option."""

    default_code = "OOC-100"


def unknown_name(
    what: str, name: str, known: Iterable[str], otherwise: str, *, where: str = ""
) -> ConfigError:
    """The error for a name that stands for nothing.

    Args:
        what: how the sentence begins, for example "no model is called".
        known: all names that stand for something.
        otherwise: the fix where none of them is near.
        where: the place concerned.
    """
    choices = list(known)
    return ConfigError(
        f"{what} {name!r}",
        code="OOC-106",
        where=where,
        numbers=f"{KNOWN}{', '.join(choices)}",
        fix=did_you_mean(name, choices) or otherwise,
    )


def reason(error: Exception) -> str:
    """Why something failed; of what the system refuses without its number and the file's name."""
    return getattr(error, "strerror", None) or str(error)


def caller() -> tuple[FrameType, int]:
    """The nearest calling frame that is not of this package, and how many frames it is away."""
    frame, away = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "ooctrain":
        frame, away = frame.f_back, away + 1
    return frame, away


def warn(text: str) -> None:
    """A warning at the user's line that led to it, however deep in the library it arises."""
    warnings.warn(text, stacklevel=caller()[1])


def printable(text: str) -> str:
    """Text as a terminal may see it: control characters, and what no encoding can write, as escapes
    such as "\\x1b".
    """
    return _UNPRINTABLE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A question that names the one or two choices nearest to a word; "" where none is near."""
    near = difflib.get_close_matches(word, list(choices), n=2, cutoff=0.5)
    return f"did you mean {' or '.join(repr(choice) for choice in near)}?" if near else ""


class ShapeError(ConfigError):
    """Shapes or dtypes that do not fit an operation."""

    default_code = "OOC-110"


class ListSyntaxError(ConfigError):
    """A list in text that cannot be read.

    Attributes:
        line, column: where, counted from 1.
    """

    default_code = "OOC-220"

    def __init__(self, what: str, *, line: int, column: int, **details: str):
        super().__init__(what, **details)
        self.line, self.column = line, column


class NotRepeatable(ConfigError):
    """A forward pass or a loss that comes out differently each time it is traced."""

    default_code = "OOC-340"


class Withheld(ConfigError):
    """A part of the library that a course wheel leaves out, as an assignment requests it."""

    default_code = "OOC-180"

    def __init__(self, what: str, assignment: str = "", **details: str):
        # `course/handout.py` writes Withheld("sched/planners/lru.py: Lru.plan", "lru_planner").
        if assignment:
            what = f"{what} is left out of this course wheel: assignment {assignment} requests it"
            details = {"fix": "your own, as file.py:Class; the whole library is ooctrain without "
                       "+course in its version", **details}  # fmt: skip
        super().__init__(what, **details)


#: Memory that may be too small: that of the device, of the host, or one budget for both.
Needs = Literal["device", "host", "process"]


class Infeasible(OoctrainError):
    """No schedule of this planner fits the budget.

    Attributes:
        minimum_bytes: the same question has a plan at exactly this budget of what it `needs`; None:
            none is known.
        needs: what is too small: "device", "host", or "process" (`--memory`).
        witness_call: name of the call that needs it.
    """

    default_code = "OOC-120"

    def __init__(
        self, what: str, *, minimum_bytes: int | None, needs: Needs = "device",
        witness_call: str = "", **details: str,
    ):  # fmt: skip
        super().__init__(what, **details)
        self.minimum_bytes, self.needs, self.witness_call = minimum_bytes, needs, witness_call


class PartFailed(OoctrainError):
    """A planner or a rewrite raised something that is not an error of this tree.

    Where several planners run, as in `auto`, the others go on, and the plan's remarks name
    the failure. `__cause__` is what was raised, with its traceback.
    """

    default_code = "OOC-126"


@contextmanager
def failing_as(part: str) -> Iterator[None]:
    """Meanwhile what `part` raises, if it is not an error of this tree, becomes a `PartFailed`;
    short memory and interrupts stay what they are, also those that a signal's handler raises.

    Args:
        part: as in a message, for example "planner 'lru'".
    """
    try:
        yield
    except (OoctrainError, MemoryError):
        raise
    except Exception as error:
        if raised_by_a_handler(error):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise PartFailed(
            f"{part} failed: {text}", where=f"{last.filename}, line {last.lineno}, in {last.name}",
            fix="another one; of your own, `ooctrain --traceback COMMAND ...` shows the whole way "
            "there; of this library, please report it",
        ) from error  # fmt: skip


def raised_by_a_handler(error: BaseException) -> bool:
    """Whether the handler of a signal raised it, such as a time limit: it ends whatever is done,
    and says nothing about the code that it happened to meet."""
    # Not at the top: it is needed only when something has failed.
    import signal

    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_code in handlers - {None} for frame in frames)


def _code_of(handler: Any) -> Any:
    """The code that runs when a handler is called; None if it is not Python's."""
    while (inner := getattr(handler, "func", None)) is not None:  # functools.partial
        handler = inner
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    of_class = vars(type(handler)).get("__call__")
    return code or getattr(of_class, "__code__", None)


class DoesNotFit(OoctrainError):
    """The plan fits, but the allocator's reserved peak, or the host slab, does not (fragmentation
    included).

    Attributes:
        reserved_bytes: the reserved peak that the replay found, or the length of the slab.
        budget_bytes: the budget it had to stay under.
        minimum_bytes: the same question has a plan that fits at exactly this budget of what it
            `needs`; None: none is known.
        needs: what is too small: "device" or "host".
    """

    default_code = "OOC-121"

    def __init__(
        self, what: str, *, reserved_bytes: int, budget_bytes: int,
        minimum_bytes: int | None = None, needs: Needs = "device", **details: str,
    ):  # fmt: skip
        super().__init__(what, **details)
        self.reserved_bytes, self.budget_bytes = reserved_bytes, budget_bytes
        self.minimum_bytes, self.needs = minimum_bytes, needs

    def naming(self, minimum_bytes: int | None, fix: str) -> DoesNotFit:
        """The same refusal with another budget that does."""
        return DoesNotFit(
            self.what, reserved_bytes=self.reserved_bytes, budget_bytes=self.budget_bytes,
            minimum_bytes=minimum_bytes, needs=self.needs, numbers=self.numbers, fix=fix,
        )  # fmt: skip


class ScheduleError(OoctrainError):
    """A schedule breaks a rule of the verifier.

    Attributes:
        rule: stable rule code, for example "R203".
        index: position of the offending instruction in the list, or None for a rule on the whole.
    """

    default_code = "OOC-200"

    def __init__(self, what: str, *, rule: str, index: int | None = None, **details: str):
        super().__init__(what, code=rule, **details)
        self.rule, self.index = rule, index


class PlanMismatch(OoctrainError):
    """A plan made for another trace, granule, allocator or device."""

    default_code = "OOC-210"


class OutOfDeviceMemory(OoctrainError, MemoryError):
    """The arena has no room for a request; the allocator's state is as before.

    Attributes:
        granted_bytes: what was requested, rounded as the allocator does.
        free_bytes: free bytes of the arena, in one piece or in many.
        largest_bytes: the largest request that would have been served.
        budget_bytes: budget of the arena.
        enough_bytes: a budget with which it would have been served.
        arena: its map, which block is where.
    """

    default_code = "OOC-130"

    def __init__(
        self, what: str, *, granted_bytes: int = 0, free_bytes: int = 0, largest_bytes: int = 0,
        budget_bytes: int = 0, enough_bytes: int = 0, arena: str = "", **details: str,
    ):  # fmt: skip
        super().__init__(what, **details)
        self.granted_bytes, self.free_bytes = granted_bytes, free_bytes
        self.largest_bytes, self.budget_bytes = largest_bytes, budget_bytes
        self.enough_bytes, self.arena = enough_bytes, arena

    @property
    def fragmented(self) -> bool:
        """Whether enough is free, only not in one piece."""
        return self.largest_bytes < self.granted_bytes <= self.free_bytes

    def _details(self) -> list[tuple[str, str]]:
        where, numbers, fix = super()._details()
        return [where, numbers, ("arena", self.arena.replace("\n", "\n    ")), fix]


class InvalidFree(OoctrainError):
    """Double free, foreign free, or free after close."""

    default_code = "OOC-131"


class TransferError(OoctrainError):
    """A copy engine failed."""

    default_code = "OOC-140"


class DriverError(OoctrainError):
    """A memory or device call failed.

    Attributes:
        call: name of the call, for example "mmap" or "cuMemMap".
        status: the number that it returned.
        lost: whether the device is lost to this process, so that nothing can be given back.
    """

    default_code = "OOC-150"

    def __init__(self, what: str, *, call: str, status: int = 0, **details: str):
        super().__init__(what, **details)
        self.call, self.status = call, status
        self.lost = False


class VmmUnavailable(DriverError):
    """Virtual addressing is not available on this machine."""

    default_code = "OOC-151"


class DeviceUnavailable(DriverError):
    """No usable GPU: no driver, an old one, no device, no compiler for it."""

    default_code = "OOC-152"


class CaptureRefused(OoctrainError):
    """A step cannot be recorded once and launched as a whole; it runs piece by piece."""

    default_code = "OOC-154"


class DataFormatError(OoctrainError):
    """A data file is broken.

    Attributes:
        path: the file.
        offset: byte where it goes wrong, if known.
    """

    default_code = "OOC-300"

    def __init__(self, what: str, *, path: str, offset: int | None = None, **details: str):
        super().__init__(what, **details)
        self.path, self.offset = path, offset


class CheckpointError(OoctrainError):
    """A checkpoint is broken, foreign or cannot be written."""

    default_code = "OOC-310"


class InUse(OoctrainError):
    """A trainer is used by two threads at once, or by a fork of its process; nothing changes."""

    default_code = "OOC-162"


class TrainingStopped(OoctrainError):
    """The run ended early: NaN loss, interrupt. The last checkpoint is kept.

    Attributes:
        step: number of the step that was not finished.
    """

    default_code = "OOC-320"

    def __init__(self, what: str, *, step: int, **details: str):
        super().__init__(what, **details)
        self.step = step


class RanksDiffer(OoctrainError):
    """Ranks that train together were not given the same, or one of them is lost."""

    default_code = "OOC-330"


class AutogradError(OoctrainError):
    """Wrong use of the tape: second backward, no graph, in-place write on a saved value."""

    default_code = "OOC-400"
