"""A network from the user's own file, named as planners and allocators are: "file.py:function".

The function gets those of the arguments num_classes, stem and in_channels of `models.build` that
are among its parameters, and returns a `Module`. A network of fixed size therefore need not take
any argument. Where the number of classes or channels is not given, the function's own defaults
do. A graph or a state that another framework has written is not such a file; the error says
how its network and its weights come here. Read next: `__init__.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError
from ooctrain.plugins import load_from_file

#: Files of other frameworks: {ending: (what the file is, what is not read)}.
FOREIGN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        ".onnx": ("an ONNX graph", "ONNX graphs by name"),
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


def is_onnx(name: str) -> bool:
    """Whether a name is that of an ONNX file, which commands take as a network."""
    return PurePath(name).suffix.lower() == ".onnx"


def refuse_foreign(name: str) -> None:
    """Raises ConfigError: the name is that of a file which another framework has written."""
    found = FOREIGN.get(PurePath(name).suffix.lower())
    if found is not None:
        kind, unread = found
        if is_onnx(name):
            raise ConfigError(
                f"{name!r} is an ONNX graph, which is not built by name", code="OOC-106",
                fix=f"oc.from_onnx({name!r}), or ooctrain plan|simulate|train {name}",
            )  # fmt: skip
        raise ConfigError(
            f"{name!r} is {kind}, and ooctrain does not read {unread}", code="OOC-106",
            fix="name the function that makes the network, of PyTorch or of this library: --torch "
            "file.py:function; --weights FILE.safetensors is for its weights (`ooctrain docs "
            "howto/weights`)",
        )  # fmt: skip


def usual_of(name: str) -> dict[str, int]:
    """What the function itself takes by default, as fields of `models.Recipe`: its classes and
    channels, as far as it says.

    Args:
        name: "file.py:function".

    Raises:
        ConfigError: no such file or function.
    """
    accepted = inspect.signature(_function_of(name)).parameters
    words = {"classes": "num_classes", "channels": "in_channels"}
    found = {field: accepted[word].default for field, word in words.items() if word in accepted}
    return {
        field: int(value)
        for field, value in found.items()
        if isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0
    }


def takes(name: str, word: str) -> bool:
    """Whether the function can be given a "num_classes", or a "stem". Raises ConfigError as
    `usual_of`.
    """
    return word in inspect.signature(_function_of(name)).parameters


def own_network(name: str, *, num_classes: int, stem: str, in_channels: int) -> Any:
    """What the function makes, called with those of the arguments that it takes.

    Args:
        name: "file.py:function".

    Raises:
        ConfigError: no such file or function, or it takes something else.
    """
    function = _function_of(name)
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
    return function(**given)


def _function_of(name: str) -> Callable[..., Any]:
    """The function of a name; a network that is made already is what a function without arguments
    returns."""
    path, _, function_name = name.rpartition(":")
    found = load_from_file(path, function_name)
    return (lambda: found) if isinstance(found, Module) or _is_of_torch(found) else found


def _is_of_torch(network: object) -> bool:
    return any(kind.__module__.startswith("torch.nn") for kind in type(network).__mro__)


def own_model(name: str, **offered: Any) -> Module:
    """The model that the function makes; as `own_network` and `as_model`."""
    return as_model(name, own_network(name, **offered))


def as_model(name: str, network: Any) -> Module:
    """What a function in a file has made. Raises ConfigError: it is no model."""
    if isinstance(network, Module):
        return network
    raise ConfigError(
        f"{name} gave {type(network).__name__}, not a model (oc.nn.Module)",
        fix="oc.from_torch(net, (64, 3, 224, 224)) makes one of a PyTorch network"
        if _is_of_torch(network)
        else "a function without required arguments that returns an oc.nn.Module",
    )  # fmt: skip
