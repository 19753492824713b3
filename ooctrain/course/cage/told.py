"""Errors as data: what a submission raises, on its way to the process that asked.

An exception becomes its kind, its words and its numbers, and on the other side an exception of the
same kind. A kind is a word from a short list, because laws and tests use it to tell a refusal
(`Infeasible`, `OutOfDeviceMemory`) from a mistake. Any other kind counts as the submission's own
error, so a submission can neither end nor skip a test. Read next: `serve.py`, which tells;
`../interview.py`, which hears.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

from ooctrain import errors
from ooctrain.plugins import fault_of_own_code

MOST_LETTERS = 4000
_OURS = (
    "OoctrainError", "ConfigError", "Infeasible", "InvalidFree", "OutOfDeviceMemory",
    "PlanMismatch", "ScheduleError", "ShapeError",
)  # fmt: skip
_PYTHON_S = (
    "ArithmeticError", "AssertionError", "AttributeError", "FileNotFoundError", "ImportError",
    "IndexError", "KeyError", "LookupError", "MemoryError", "ModuleNotFoundError", "NameError",
    "NotImplementedError", "OSError", "OverflowError", "PermissionError", "RecursionError",
    "RuntimeError", "TypeError", "ValueError", "ZeroDivisionError",
)  # fmt: skip
#: Numbers that an error of ours may carry, and those without which it cannot be made.
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "Infeasible": ("minimum_bytes",),
    "OutOfDeviceMemory": (
        "granted_bytes", "free_bytes", "largest_bytes", "budget_bytes", "enough_bytes",
    ),
}  # fmt: skip
_WORDS: Mapping[str, tuple[str, ...]] = {
    "Infeasible": ("witness_call",), "OutOfDeviceMemory": ("arena",), "ScheduleError": ("rule",),
}  # fmt: skip


class OwnError(Exception):
    """An error of a submission of a kind of its own."""


def error_data(error: BaseException, submission: str) -> dict[str, Any]:
    """An error as words and numbers."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    kind = next((name for name in kinds if name in (*_OURS, *_PYTHON_S)), "")
    ours = isinstance(error, errors.OoctrainError)
    what = error.what if isinstance(error, errors.OoctrainError) else str(error)
    data: dict[str, Any] = {"kind": kind, "what": what, "line": _line(error, submission)}
    if not kind:
        data["what"] = f"{type(error).__name__}: {error}"
    wanted = ("code", "where", "numbers", "fix", *_NUMBERS.get(kind, ()), *_WORDS.get(kind, ()))
    if ours:
        data |= {word: getattr(error, word, None) for word in wanted}
    told = {word: _short(value) for word, value in data.items()}
    return {**told, "driver": isinstance(error, errors.DriverError)}


def _line(error: BaseException, submission: str) -> str:
    """An error in one line, with its place in the submission."""
    fault = fault_of_own_code(error, [submission]) if isinstance(error, Exception) else None
    if fault is None:
        return next(iter(str(error).splitlines()), "") or type(error).__name__
    return f"{next(iter(fault.what.splitlines()), '')} ({fault.where})"


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MOST_LETTERS]
    return value if type(value) is int else None


def error_of(data: Any) -> tuple[Exception, str]:
    """(the exception that was told, the same in one line); a `TypeError` where none was told."""
    if not isinstance(data, Mapping):
        return _no_error(data)
    word = {key: printable(value) for key, value in data.items() if isinstance(value, str)}
    kind, what = word.get("kind", ""), word.get("what", "")
    line = word.get("line", "").replace("\n", " ") or what
    if kind in _PYTHON_S:
        return getattr(builtins, kind)(what), line
    if kind not in _OURS:
        return OwnError(what), line
    details: dict[str, Any] = {key: word.get(key, "") for key in ("where", "numbers", "fix")}
    for key in _NUMBERS.get(kind, ()):
        if type(data.get(key)) is not int or abs(data[key]) >= 2**63:
            return _no_error(data.get(key))
        details[key] = data[key]
    for key in _WORDS.get(kind, ()):
        details[key] = word.get(key, "")
    if kind != "ScheduleError":
        details["code"] = word.get("code", "OOC-000")[:16]
    return getattr(errors, kind)(what, **details), line


def printable(text: str) -> str:
    """A stranger's words: not too many, and nothing in them that a terminal obeys."""
    return "".join(c if c == "\n" or c.isprintable() else "?" for c in text[:MOST_LETTERS])


def _no_error(data: Any) -> tuple[Exception, str]:
    why = f"it reports an error of an unknown form: {data!r:.40}"
    return TypeError(why), why
