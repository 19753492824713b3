"""A field of a dataclass that can also be typed behind a command: type, default and help in one.

    batch: int = option(64, "Images in a step.", least=1, shown=True)

So an option is declared once, where the dataclass is that the library itself works with. This file
knows no command line: what it says of a field is plain data. Read next: `../execution/settings.py`,
which declares the options of a run; `../cli/options.py`, which makes click's options of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

#: In a field's metadata: what a command needs to know of it.
TYPED = "typed"


@dataclass(frozen=True, slots=True)
class Typed:
    """How a field of a dataclass is typed behind a command.

    Args:
        text: what `--help` says of it.
        flag: without dashes; "": the field's name.
        metavar: what stands for its value in `--help`; None: its kind.
        shown: whether `--help` says the default.
        least, most: of a whole number.
        example: of a number above 0.
        choices: all words that it can be.
        folder: whether it is the path of one.
        kind: another kind of value, as `click` knows kinds.
    """

    text: str | None
    flag: str = ""
    metavar: str | None = None
    shown: bool = False
    least: int | None = None
    most: int | None = None
    example: float | None = None
    choices: tuple[str, ...] = ()
    folder: bool = False
    kind: Any = None


def option(default: Any, text: str | None, **how: Any) -> Any:
    """A field with its default, and how it is typed, as `Typed` has it."""
    return field(default=default, metadata={TYPED: Typed(text, **how)})


def typed_fields(kind: type) -> Mapping[str, tuple[Typed, Any]]:
    """{name: how it is typed, its default} of the fields of a dataclass that a command can take."""
    return {
        each.name: (each.metadata[TYPED], each.default)
        for each in fields(kind) if TYPED in each.metadata
    }  # fmt: skip
