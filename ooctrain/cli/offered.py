"""What a shell offers where a name is requested: the networks, planners, allocators that there are.

A parameter of a command says by its own name what it takes: `--planner` a planner, `MODEL` a
network. While a shell asks what can follow, such parameters get a type that knows the names; a
command that is run never loads this file. A list keeps what stands in front of its last comma, and
where no name begins as the word does, the shell offers files, since a file may be given too.
Read next: `completion_command.py`, which teaches a shell to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import click
from click.shell_completion import CompletionItem

from ooctrain.alloc.registry import allocators
from ooctrain.course.assignments import ASSIGNMENTS
from ooctrain.execution.planners import planners
from ooctrain.explain import all_codes
from ooctrain.models import MODELS
from ooctrain.rewrite import rewrites
from ooctrain.step.presets import HERE, PRESETS


def _machines() -> Iterable[str]:
    return HERE, *PRESETS


#: By an option, without its dashes, or by an argument: what gives the names.
OFFERED: Mapping[str, Callable[[], Iterable[str]]] = MappingProxyType({
    "planner": planners, "allocator": allocators, "machine": _machines, "rewrite": rewrites,
    "model": lambda: MODELS, "models": lambda: MODELS, "code": all_codes,
    "assignment": lambda: ASSIGNMENTS,
})  # fmt: skip


class OfferedName(click.ParamType):
    """A word as it stands, with the names that a shell offers for it.

    Args:
        names: gives all of them.
    """

    name = "text"

    def __init__(self, names: Callable[[], Iterable[str]]):
        self.names = names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Those that begin as the word behind the last comma does; else files."""
        before, comma, last = incomplete.rpartition(",")
        found = [before + comma + name for name in self.names() if name.startswith(last)]
        return [CompletionItem(word) for word in found] or [CompletionItem(incomplete, type="file")]


def offer_names(command: click.Command) -> None:
    """Gives each parameter of a command that takes a name the type that offers the names; of a
    group, each of its commands'.
    """
    if isinstance(command, click.Group):
        for each in command.commands.values():
            offer_names(each)
    for parameter in command.params:
        long = parameter.opts[0].removeprefix("--")
        if long in OFFERED:
            parameter.type = OfferedName(OFFERED[long])
