"""A network from the user's own file, named as planners and allocators are: "file.py:function".

The function gets those of the arguments num_classes, stem and in_channels of `models.build` that
are among its parameters, and returns a `Module`. A network of fixed size therefore need not take
any argument. Read next: `__init__.py`.
"""

from __future__ import annotations

import inspect

from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError
from ooctrain.plugins import load_from_file


def is_own(name: str) -> bool:
    """Whether a name is that of a function in a file."""
    return ".py:" in name


def own_model(name: str, *, num_classes: int, stem: str, in_channels: int) -> Module:
    """Calls the function with those of the arguments that it takes.

    Args:
        name: "file.py:function".

    Raises:
        ConfigError: no such file or function, it takes something else, or gives no model.
    """
    path, _, function_name = name.rpartition(":")
    function = load_from_file(path, function_name)
    offered = {"num_classes": num_classes, "stem": stem, "in_channels": in_channels}
    accepted = inspect.signature(function).parameters
    given = {key: value for key, value in offered.items() if key in accepted}
    missing = [
        word
        for word, parameter in accepted.items()
        if word not in given
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if missing:
        raise ConfigError(
            f"{name} requires {', '.join(missing)}, which ooctrain does not supply",
            code="OOC-106",
            fix=f"give it defaults; only {', '.join(offered)} are given where taken",
        )
    model = function(**given)
    if not isinstance(model, Module):
        raise ConfigError(
            f"{name} gave {type(model).__name__}, not a model (oc.nn.Module)",
            fix="a function without required arguments that returns an oc.nn.Module",
        )
    return model
