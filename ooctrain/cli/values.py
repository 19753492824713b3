"""The types of option values, each with the error for a word that is not such a value.

A word behind an option becomes a value that the command can use, or a `ConfigError`. The error
names the option and the command, says which values are allowed, and shows one that would do.
Read next: `options.py`; `usage.py` for faults that are found before any value is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import click

from ooctrain.errors import ConfigError, unknown_name
from ooctrain.step.user_values import as_path


class WholeNumber(click.IntRange):
    """A whole number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises ConfigError: not a number, or out of bounds."""
        try:
            # Python would read "1_0" and the digits of every script.
            if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]+", value):
                self.fail(value)
            return super().convert(value, param, ctx)
        except click.BadParameter:
            why = f"is not a whole number of {self.min} or more"
            why += "" if self.max is None else f", {self.max} at most"
            usual = param.default if param else None
            example = usual if isinstance(usual, int) else self.min
            raise _refusal(value, why, param, ctx, example) from None


class PositiveNumber(click.ParamType):
    """A finite number above 0; "nan" is not a number.

    Args:
        example: one that makes sense.
    """

    name = "float"

    def __init__(self, example: float):
        self.example = example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number. Raises ConfigError: not a number, or not above 0."""
        try:
            number = math.nan if "_" in str(value) else float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise _refusal(value, "is not a finite number above 0", param, ctx, self.example)
        return number


class OneOf(click.Choice):
    """One of some names.

    Args:
        what: such as "device".
        names: all that there are.
    """

    def __init__(self, what: str, names: tuple[str, ...]):
        super().__init__(names)
        self.what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name. Raises ConfigError: none of them; the nearest ones are suggested."""
        if value not in self.choices:
            what, otherwise = f"no {self.what} is called", "one of these"
            raise unknown_name(what, value, self.choices, otherwise, where=_place(param, ctx))
        return super().convert(value, param, ctx)


class Named(click.ParamType):
    """Something named with parameters, such as "rmsprop:alpha=0.9".

    Args:
        find: finds what is named. Raises ConfigError.
    """

    name = "text"

    def __init__(self, find: Callable[[str], object]):
        self.find = find

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text. Raises ConfigError: nothing is called so, or takes such parameters."""
        try:
            self.find(value)
        except ConfigError as error:
            error.where = error.where or _place(param, ctx)
            raise
        return str(value)


class OutputFile(click.ParamType):
    """A file to be written: its folder must be there before hours of work go into it."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The path. Raises ConfigError: nothing can be written there."""
        path = as_path(value)
        problem = ""
        if path.is_dir():
            problem = f"{value!r} is a folder, not a file"
        elif not path.absolute().parent.is_dir():
            problem = f"there is no folder {str(path.parent)!r}"
        if problem:
            raise ConfigError(
                problem, code="OOC-117", where=_place(param, ctx),
                fix="a file in a folder that is there",
            )  # fmt: skip
        return str(path)


class UserPath(click.Path):
    """A path that may begin with a tilde, where no shell has replaced it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, as `click.Path` checks it."""
        return super().convert(str(as_path(value)), param, ctx)


def _refusal(
    value: object, why: str, param: click.Parameter | None, ctx: click.Context | None,
    example: object,
) -> ConfigError:  # fmt: skip
    return ConfigError(
        f"{_spelled(param)} {str(value)!r} {why}", where=_place(param, ctx),
        fix=f"such as {_spelled(param)} {example}",
    )  # fmt: skip


def _spelled(param: click.Parameter | None) -> str:
    return param.opts[0] if param else "value"


def _place(param: click.Parameter | None, ctx: click.Context | None) -> str:
    """The option and its command, as typed."""
    command = ctx.command_path if ctx else "ooctrain"
    return f"{command} {_spelled(param)}" if isinstance(param, click.Option) else command
