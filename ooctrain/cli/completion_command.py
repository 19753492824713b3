"""`ooctrain completion SHELL`: the lines that teach a shell to complete commands and options.

    ooctrain completion bash >> ~/.bashrc
    ooctrain completion zsh >> ~/.zshrc
    ooctrain completion fish > ~/.config/fish/completions/ooctrain.fish

click writes them; they ask `ooctrain` itself what can follow. Read next: `cli/__init__.py`.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ooctrain.cli.values import OneOf

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=OneOf("shell", SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what SHELL (bash, zsh or fish) reads to complete commands and options."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    whole = context.find_root().command
    click.echo(kind(whole, {}, "ooctrain", "_OOCTRAIN_COMPLETE").source())
