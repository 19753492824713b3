"""A PyTorch network as a module of this library, and its weights back.

`torch.export` writes a forward pass as a list of aten calls whose parameters have their
`state_dict` names. Each call becomes one of this library (`aten.py`). The list is written once in
training and once in evaluation, since a network's own code may read which of them it is in. What
cannot be done here is refused, all of it in one error, before anything is trained. Read next:
`exported.py`, how a list is read; `graph.py`, the module that is made.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ooctrain.engine.module import Module
from ooctrain.engine.parameter import Parameter
from ooctrain.errors import ConfigError
from ooctrain.interop.aten import ATEN
from ooctrain.interop.definitions import write_out
from ooctrain.interop.exported import ListReader
from ooctrain.interop.graph import ImportedModule, ImportedPart, refuse
from ooctrain.models.own import as_model, own_network

if TYPE_CHECKING:
    import torch

Function = Callable[..., Any]
_REGISTERED: ContextVar[Mapping[str, Function]] = ContextVar(
    "registered", default=MappingProxyType({})
)
_MODES = False, True  # evaluation, training
_TYPES = {"float32", "int64"}
_OWN = "oc.interop.torch.register('aten.{}', function), where an oc.Op may do the work"


def register(operation: str, function: Function) -> None:
    """From now on `from_torch` knows one more operation of PyTorch.

    Args:
        operation: as an error names it, such as "aten.cumsum.default".
        function: computes it of tensors of this library; its arguments are those of the operation.
    """
    _REGISTERED.set({**_REGISTERED.get(), operation.removeprefix("aten."): function})


def from_torch(net: torch.nn.Module, example_shape: Sequence[int]) -> ImportedModule:
    """A module of this library that computes what a PyTorch network does, with copies of its
    weights.

    It has PyTorch's names: those of parameters and buffers, in `state_dict`'s order, and those of
    the parts that calls are in. Shared parameters are shared, frozen ones frozen, and each part is
    in the mode that it is in there. A batch may have any size; other extents are the example's.

    Args:
        net: float32, on the CPU, of one input. It is left as it was.
        example_shape: of a batch, such as (32, 3, 224, 224).

    Raises:
        ConfigError: OOC-190: operations that this library lacks, each with how often it is there
            and where first; OOC-191: PyTorch cannot write the network as a list (control flow that
            depends on data, a batch size that is a constant), or values of another type or device.

    Cost: `torch.export` twice (seconds), then O(calls). Nothing is computed.
    """
    shape = _checked(net, example_shape)
    lists = [exported_list(net, shape, training) for training in _MODES]
    model, paths = _tree(net)
    known = {**ATEN, **_REGISTERED.get()}
    for each in lists:
        write_out(each, known)
    read = [
        ListReader(each, model, paths, known, shape, training).program()
        for training, each in zip(_MODES, lists, strict=True)
    ]
    model.set_programs(*read)
    if problems := model.problems(shape[0]):
        refuse(problems, _OWN)
    return model


def to_torch(model: Module, net: torch.nn.Module) -> torch.nn.Module:
    """Writes a module's parameters and buffers into the PyTorch network that it was made of.

    Returns:
        That network.

    Raises:
        ConfigError: the two have other names or shapes.
    """
    import torch  # the user's own

    values = net.state_dict()  # which has its parts' versions besides
    mine = model.state_dict()
    try:
        if values.keys() != mine.keys():
            raise RuntimeError(f"other names, such as {min(values.keys() ^ mine.keys())!r}")
        values.update((name, torch.from_numpy(array)) for name, array in mine.items())
        net.load_state_dict(values)
    except RuntimeError as error:
        raise ConfigError(
            f"{type(net).__name__} is another network: {error}".splitlines()[0], code="OOC-112",
            fix="the network that from_torch was given, or one made in the same way",
        ) from None  # fmt: skip
    return net


def imported(
    name: str, options: Mapping[str, Any], example_shape: Sequence[int], seed: int
) -> Module:
    """The network that a user's function makes, whether it is of this library or of PyTorch.

    Args:
        name: "file.py:function".
        options: what it is called with, as far as it takes it.
        example_shape: as of `from_torch`.
        seed: of PyTorch's first weights.

    Raises:
        ConfigError: as `models.own_model` and `from_torch`.
    """
    torch = sys.modules.get("torch")  # loaded with the user's file, if that needs it
    if torch is not None:
        torch.manual_seed(seed)
    network = own_network(name, **options)
    if torch is None or not isinstance(network, torch.nn.Module):
        return as_model(name, network)
    return from_torch(network, example_shape)


# What is imported


def _checked(net: Any, example_shape: Any) -> tuple[int, ...]:
    """The example's shape, with at least two samples: PyTorch takes one for a constant."""
    try:
        import torch  # the user's own, and no dependency
    except ImportError as error:
        raise ConfigError(
            f"from_torch needs PyTorch: {error}", code="OOC-101", fix="pip install torch"
        ) from error
    if not isinstance(net, torch.nn.Module):
        raise ConfigError(
            f"{type(net).__name__} is not a network of PyTorch", code="OOC-106",
            fix="from_torch(net, (32, 3, 224, 224)) with a torch.nn.Module",
        )  # fmt: skip
    shape = tuple(example_shape) if isinstance(example_shape, Sequence) else ()
    if not shape or any(not isinstance(n, int) or n < 1 for n in shape):
        raise ConfigError(
            f"{example_shape!r} is not the shape of a batch", code="OOC-106",
            fix="such as (32, 3, 224, 224)",
        )  # fmt: skip
    for name, value in chain(net.named_parameters(), net.named_buffers()):
        kind, wanted = str(value.dtype).removeprefix("torch."), _TYPES
        if isinstance(value, torch.nn.Parameter):
            wanted = {"float32"}
        if value.device.type != "cpu" or kind not in wanted:
            raise ConfigError(
                f"{name!r} is {kind} on {value.device}", code="OOC-191",
                fix="net.float().cpu(); here all values are float32 on the CPU until a trainer "
                "takes them to its device",
            )  # fmt: skip
        if value._backward_hooks or getattr(value, "_post_accumulate_grad_hooks", None):
            raise ConfigError(
                f"{name!r} has a hook on its gradient", code="OOC-190",
                fix="net without hooks; gradients are clipped by Trainer(clip=...)",
            )  # fmt: skip
    return max(2, shape[0]), *shape[1:]


def exported_list(net: torch.nn.Module, shape: Sequence[int], training: bool) -> Any:
    """PyTorch's list of the calls of a forward pass in one mode."""
    import torch  # the user's own

    modes = {part: part.training for part in net.modules()}
    if net.training != training:  # else each part as it is: some may be frozen in evaluation
        net.train(training)
    device = next((value.device for value in net.parameters()), None)
    batch, example = torch.export.Dim.DYNAMIC, torch.empty(tuple(shape), device=device)
    own: set[str] = set()
    try:
        with _quiet(), _own_gradients(own):
            found = torch.export.export(net, (example,), dynamic_shapes=({0: batch},), strict=False)
    except Exception as error:  # whatever it is, PyTorch could not write the list
        raise _not_exported(net, error) from None
    finally:
        for part, mode in modes.items():
            part.training = mode
    if own:
        raise ConfigError(
            f"{type(net).__name__} has gradients of its own, which a list of calls does not have",
            code="OOC-190", numbers=", ".join(sorted(own)),
            fix="the same by operations of PyTorch, whose gradients are known",
        )  # fmt: skip
    return found


@contextmanager
def _own_gradients(found: set[str]) -> Iterator[None]:
    """Meanwhile it is noted what sets gradients otherwise than the calls of a list do: functions
    with a backward of their own, and hooks on tensors. Checkpoints change none."""
    import torch  # the user's own

    function, hook = vars(torch.autograd.Function)["apply"], torch.Tensor.register_hook

    def apply(kind: Any, *args: Any, **options: Any) -> Any:
        if not kind.__module__.startswith("torch.utils.checkpoint"):
            found.add(f"{kind.__qualname__}.backward")
        return function.__func__(kind, *args, **options)

    def register_hook(tensor: Any, own_hook: Any) -> Any:
        found.add("Tensor.register_hook")
        return hook(tensor, own_hook)

    torch.autograd.Function.apply = classmethod(apply)
    torch.Tensor.register_hook = register_hook
    try:
        yield
    finally:
        torch.autograd.Function.apply, torch.Tensor.register_hook = function, hook


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PyTorch's log lines and warnings: what matters of them is in the error."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _not_exported(net: torch.nn.Module, error: Exception) -> ConfigError:
    text = " ".join(str(error).split()) or _raised_at(error)
    reason, fix = f"{type(error).__name__}: {text[:200]}", "what torch.export can write as a list"
    if "data-dependent" in text or "DataDependent" in type(error).__name__:
        reason = "what is computed depends on the values of tensors"
        fix = "a forward pass without `if`, loops or sizes that depend on a tensor's values"
    elif "specialized" in text or "Constraints violated" in text:
        reason = "the batch size is a constant of its code"
        fix = "x.flatten(1) or x.reshape(x.shape[0], ...) in place of a number of samples"
    return ConfigError(
        f"PyTorch cannot write {type(net).__name__} as a list of calls: {reason}", code="OOC-191",
        fix=fix,
    )  # fmt: skip


def _raised_at(error: Exception) -> str:
    """Where an error without words was raised: file, line, and what stands there."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(at.filename)}:{at.lineno}: {at.line}"


def _tree(net: torch.nn.Module) -> tuple[ImportedModule, dict[str, str]]:
    """The tree of parts with copies of all values, and {each path: the part's first path}."""
    root = ImportedModule(type(net).__name__)
    parts: dict[Any, ImportedPart] = {net: root}
    first: dict[Any, str] = {}
    paths = {}
    values: dict[Any, Parameter] = {}
    for path, module in net.named_modules(remove_duplicate=False):
        paths[path] = first.setdefault(module, path)
        if path != paths[path]:
            continue
        part = parts[module]
        part.training = module.training
        for name, value in module._parameters.items():
            if value is not None and value not in values:
                values[value] = Parameter(value.detach().numpy(), value.requires_grad)
            part.register_parameter(name, None if value is None else values[value])
        for name, value in module._buffers.items():
            persistent = name not in module._non_persistent_buffers_set
            part.register_buffer(name, None if value is None else value.numpy(), persistent)
        for name, child in module._modules.items():
            if child is not None:
                part.add_module(name, parts.setdefault(child, ImportedPart(type(child).__name__)))
    return root, paths
