"""A network from the user's own file, named as planners and allocators are: "file.py:function".

The function gets those of the arguments num_classes, stem and in_channels of `models.build` that
are among its parameters, and returns a `Module`. A network of fixed size therefore need not take
any argument. A graph or a state that another framework has written is no such file; the error says
how its network and its weights come here. Read next: `__init__.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType

from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError
from ooctrain.plugins import load_from_file

#: Files of other frameworks: {ending: (what the file is, what is not read)}.
FOREIGN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        ".onnx": ("an ONNX graph", "ONNX graphs"),
        ".pt": ("a PyTorch file", "pickled files"),
        ".pth": ("a PyTorch file", "pickled files"),
        ".ckpt": ("a checkpoint", "a network from a checkpoint"),
        ".safetensors": ("a file of weights", "a network from weights alone"),
        ".h5": ("a Keras file", "Keras models"),
        ".keras": ("a Keras file", "Keras models"),
        ".pb": ("a TensorFlow graph", "TensorFlow graphs"),
        ".tflite": ("a TensorFlow Lite graph", "TensorFlow graphs"),
    }
)


def is_own(name: str) -> bool:
    """Whether a name is that of a function in a file."""
    return ".py:" in name


def refuse_foreign(name: str) -> None:
    """Raises ConfigError: the name is that of a file which another framework has written."""
    found = FOREIGN.get(PurePath(name).suffix.lower())
    if found is not None:
        kind, unread = found
        raise ConfigError(
            f"{name!r} is {kind}, and ooctrain does not read {unread}", code="OOC-106",
            fix="write the network in Python and name it file.py:function (docs/howto/network.md); "
            "its load_state_dict takes the state_dict of a torch model (docs/howto/weights.md)",
        )  # fmt: skip


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
