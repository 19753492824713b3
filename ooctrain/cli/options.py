"""Options of commands, made of the fields of dataclasses; and the few that stand alone.

A field that was declared by `step/option.py` says all that click needs. A command asks for some
fields of a dataclass (`options_of`), or gets all of them as one value (`gathered`). Read next:
`values.py` for the values that options take; `step_options.py` for the groups of options that
commands share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import click

from ooctrain.cli.values import OneOf, OutputFile, PositiveNumber, UserPath, WholeNumber
from ooctrain.errors import ConfigError
from ooctrain.step.option import Typed, typed_fields

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]
ALLOCATORS_TEXT = "Allocators, comma-separated or repeated, such as va:chunk=1MiB."
POSITIVE = WholeNumber(min=1)


def options_of(kind: type, *names: str, **changed: Any) -> Decorator:
    """Adds options to a command: the fields of a dataclass that are called so; without names all.

    Args:
        changed: fields of `Typed` that are otherwise for this command; `default`, too.
    """
    known = typed_fields(kind)

    def add(command: Command) -> Command:
        for name in reversed(names or tuple(known)):
            typed, default = known[name]
            for_this = {field: value for field, value in changed.items() if field != "default"}
            add_one = _option(name, replace(typed, **for_this), changed.get("default", default))
            command = add_one(command)
        return command

    return add


def _option(name: str, typed: Typed, default: Any) -> Decorator:
    flag = f"--{typed.flag or name.replace('_', '-')}"
    if isinstance(default, tuple):
        return list_option(flag, name, text=typed.text or "")
    kind = typed.kind
    if typed.folder:
        kind = UserPath()
    elif typed.choices:
        kind = OneOf(name, typed.choices)
    elif typed.least is not None:
        kind = WholeNumber(typed.least, typed.most)
    elif typed.example is not None:
        kind = PositiveNumber(typed.example)
    given = {"is_flag": True} if default is False else {"default": default}
    return click.option(
        flag, name, type=kind, metavar=typed.metavar, show_default=typed.shown or None,
        help=typed.text, **given,
    )  # fmt: skip


def gathered(name: str, kind: type) -> Decorator:
    """Adds the options of a dataclass, which the command gets as one value called `name`."""

    def add(command: Command) -> Command:
        @wraps(command)
        def gather(**values: Any) -> Any:
            value = kind(**{key: values.pop(key) for key in typed_fields(kind)})
            return command(**{name: value}, **values)

        return options_of(kind)(gather)

    return add


def list_option(*names: str, text: str, default: str = "") -> Decorator:
    """An option of several values: separated by commas, or given several times.

    The command gets a list of words; an empty one where neither it nor a default is given.
    """

    def words(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[str]:
        given = values or ((default,) if default else ())
        found = split_names(",".join(given))
        if given and not found:
            name = param.opts[0]
            fix = f"{name} {default}" if default else f"leave {name} out"
            raise ConfigError(f"{name} names nothing", fix=fix)
        return found

    text = f"{text}  [default: {default}]" if default else text
    return click.option(*names, multiple=True, callback=words, help=text)


def split_names(text: str) -> list[str]:
    """Words separated by commas; "KEY=VALUE" behind a comma belongs to the word before."""
    found: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if found and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def file_option(*names: str, text: str) -> Decorator:
    """An option that names a file to be written."""
    return click.option(*names, metavar="FILE", type=OutputFile(), help=text)


json_option = file_option("--json", "json_path", text="Write the numbers here.")
