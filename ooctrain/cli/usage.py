"""Faults of a command line that click finds before any value is read, as errors of this library.

When click finds an unknown option, or an argument too many or too few, its error becomes a
`ConfigError` with code, place and likely fix. So the user reads the same kind of block for every
fault, whichever library found it. Read next: `values.py`, which refuses values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import click

from ooctrain.errors import ConfigError, did_you_mean, unknown_name

#: What other commands and other libraries call an option, and what it is called here.
ELSEWHERE: Mapping[str, str] = MappingProxyType({
    "--save": "--checkpoint", "--output": "--checkpoint", "--load": "--resume", "--ram": "--memory",
    "--disk": "--spill", "--learning-rate": "--lr", "--batch-size": "--batch",
})  # fmt: skip


def usage_error(error: click.UsageError, command: str) -> ConfigError:
    """The same fault as an error of the library: code, place, likely fix.

    Args:
        command: that was called, as typed; click does not always know.
    """
    if isinstance(error, click.NoSuchOption):
        name, options = error.option_name, _options(error.ctx)
        meant = ELSEWHERE.get(name)
        near = f"did you mean {meant!r}?" if meant in options else did_you_mean(name, options)
        return ConfigError(
            f"no option is called {name!r}", code="OOC-106", where=command,
            fix=near or f"`{command} --help` lists them",
        )  # fmt: skip
    if error.ctx is None:
        fix = f"`{command} --help` says how it is called"
        return ConfigError(_sentence(error), where=command, fix=fix)
    group, said = error.ctx.command, re.match("No such command '(.+?)'", error.format_message())
    if isinstance(group, click.Group) and said:  # of `tutorials` or `course`
        helps = f"`{command} --help` says what each does"
        return unknown_name("no command is called", said[1], group.commands, helps, where=command)
    what, usage = _sentence(error), " ".join(error.ctx.get_usage().split())
    if isinstance(error, click.MissingParameter) and error.param:
        what = f"{error.param.make_metavar(error.ctx)} is missing"
    return ConfigError(what, where=command, fix=usage.removeprefix("Usage: "))


def check_values_follow(command: click.Command, given: Sequence[str]) -> None:
    """Whether each option that wants a value has one.

    click takes whatever word follows, be it another option, and what is left over is then an
    argument too many.

    Args:
        given: the words behind the command, as typed.

    Raises:
        click.BadOptionUsage: an option of the command stands where a value belongs.
    """
    options = [p for p in command.params if isinstance(p, click.Option)]
    wanting = {name for p in options if not (p.is_flag or p.count) for name in p.opts}
    known = {name for p in options for name in (*p.opts, *p.secondary_opts)}
    for option, word in pairwise(given):
        if option in wanting and word in known:
            raise click.BadOptionUsage(option, f"option '{option}' requires an argument")


def _options(ctx: click.Context | None) -> list[str]:
    """All options of a command, as typed."""
    parameters = ctx.command.get_params(ctx) if ctx else []
    return [name for parameter in parameters for name in parameter.opts if name.startswith("--")]


def _sentence(error: click.UsageError) -> str:
    """click's own words, as one sentence among others."""
    text = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]
