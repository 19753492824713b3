"""One list of `torch.export`, read as a program.

The list has a node for each input and value, for each call and for the output. Five things in it
are not calls of a program: counting batches, which the batch norm of this library does itself;
operations in place, which become calls that change nothing; the mode, which PyTorch writes as a
constant; what depends on constants alone, which PyTorch computes once; assertions. Read next:
`storages.py`; `graph.py`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.interop.graph import (
    CallList,
    Extents,
    GraphCall,
    ImportedModule,
    Mode,
    Ref,
    Registered,
    changed,
)
from ooctrain.interop.storages import Storages

#: {operation: which of its arguments says that it is in training}
_MODE_AT = {"batch_norm.default": 5, "dropout.default": 2, "feature_dropout.default": 2}
#: How the names of operations begin that only assert what is known here.
ASSERTIONS = ("_assert", "sym_constrain")
#: Operations whose result may share the memory of their first argument.
VIEWS = frozenset(
    ("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "transpose", "permute",
     "slice", "select", "chunk", "split", "split_with_sizes", "unbind", "expand", "expand_as",
     "squeeze", "unsqueeze", "detach", "alias", "contiguous", "to", "getitem", "t", "mT", "narrow")
)  # fmt: skip
#: Where a node says which operation of the user's code its call is a part of, if another.
STANDS_FOR = "stands_for"
#: How the names of buffers begin that hold constants of the code.
_CONSTANT = "_constant_"
_PLAIN = (bool, int, float, str, type(None))
_MEAN_AT, _MEAN, _COUNTER = 3, "running_mean", "num_batches_tracked"


class ListReader:
    """Reads one list.

    Args:
        exported: a `torch.export.ExportedProgram`.
        model: the parts and values that it is about; gets the constants that it holds besides.
        paths: {path of a part: its first path}.
        known: {operation: what computes it}.
        shape: that of the example.
        training: the mode in which it was written.
    """

    def __init__(
        self, exported: Any, model: ImportedModule, paths: Mapping[str, str],
        known: Mapping[str, Callable[..., Any]], shape: Sequence[int], training: bool,
    ):  # fmt: skip
        self._training = training
        self._exported, self._model, self._paths = exported, model, paths
        self._known, self._shape = known, tuple(shape)
        self._nodes = list(exported.graph.nodes)
        number = {node: i for i, node in enumerate(self._nodes)}
        self._storages = Storages(
            {node: max(number[user] for user in node.users) for node in self._nodes if node.users}
        )
        self._inputs: dict[str, Extents] = {}
        self._registered: dict[str, Registered] = {}
        self._constants: dict[str, Any] = {}  # tensors of PyTorch, by name
        self._counted: set[str] = set()  # names of counters that the list counts up
        self._calls: list[GraphCall] = []

    def program(self) -> CallList:
        """What the list computes."""
        self._read_inputs()
        output: Any = None
        for number, node in enumerate(self._nodes):
            if node.op == "placeholder":
                self._storages.add(node)
            elif node.op == "output":
                output = self._output(node)
            elif (constant := self._computed_once(node)) is not None:
                self._constants[node.name] = constant
                view = operation_of(node).partition(".")[0] in VIEWS
                self._storages.add(node, view_of=node.args[0] if view else None)
            elif not _needless(node):
                self._read_call(number, node)
        return CallList(self._inputs, self._registered, self._calls, output)

    def _read_inputs(self) -> None:
        for spec in self._exported.graph_signature.input_specs:
            name, kind = spec.arg.name, spec.kind.name
            if kind in ("PARAMETER", "BUFFER"):
                self._registered[name] = self._place(spec.target)
            elif kind == "CONSTANT_TENSOR":
                self._constants[name] = self._exported.constants[spec.target]
            else:
                self._inputs[name] = (None, *self._shape[1:])

    def _place(self, target: str) -> Registered:
        path, _, name = target.rpartition(".")
        return Registered(self._paths[path], name)

    def _computed_once(self, node: Any) -> Any:
        """The result of a call of constants alone; None of any other, and of random numbers."""
        import torch  # the user's own

        operation, inputs = node.target, [self._storages.now(n) for n in node.all_input_nodes]
        if any(n.name not in self._constants for n in inputs):
            return None
        if "empty" in str(operation):  # whatever was in the memory
            return None
        if isinstance(operation, torch._ops.OpOverload):
            drawn = torch.Tag.nondeterministic_seeded in operation.tags
            written = operation._schema.is_mutable and operation_of(node) != "detach_.default"
            if written or drawn:
                return None
        elif operation_of(node) != "getitem":
            return None

        def constant(value: Any) -> Any:
            is_node = hasattr(value, "users")
            return self._constants[self._storages.now(value).name] if is_node else value

        args, options = changed((node.args, dict(node.kwargs)), constant)
        return operation(*args, **options)

    def _constant(self, node: str) -> Any:
        """A constant as an argument: a number, whole numbers, or a buffer that is not saved."""
        value = self._constants[node].numpy()
        if not value.ndim or value.dtype.kind == "i":
            return value.tolist()
        buffers = self._model._buffers
        mine = [
            name for name, buffer in buffers.items()
            if name.startswith(_CONSTANT) and np.array_equal(buffer.numpy(), value)
        ]  # fmt: skip
        own = mine[0] if mine else f"{_CONSTANT}{len(buffers)}"
        if not mine:
            self._model.register_buffer(own, value, persistent=False)
        self._registered[node] = Registered("", own)
        return Ref(node)

    def _output(self, node: Any) -> Any:
        """The structure that the network returns, which PyTorch keeps apart from its tensors."""
        from torch.utils import _pytree  # the user's own

        specs = self._exported.graph_signature.output_specs
        leaves = [
            self._form(leaf) for leaf, spec in zip(node.args[0], specs, strict=True)
            if spec.kind.name == "USER_OUTPUT"
        ]  # fmt: skip
        return _pytree.tree_unflatten(leaves, self._exported.call_spec.out_spec)

    def _read_call(self, number: int, node: Any) -> None:
        name = operation_of(node)
        operation = without_change(name)
        target = node.args[0] if operation != name else None
        if target is not None and self._is_counter(target):
            self._counted.add(target.name)
            self._storages.change(node, target)
            return
        function = self._known.get(operation) or partial(_missing, "it is not here")
        if target is not None and self._storages.made_first(target).name in self._registered:
            function = partial(_missing, "it changes a parameter or a buffer")
        elif target is not None and self._storages.others_are_read(target, number):
            function = partial(_missing, "it changes a tensor of which a view is read later")
        args, options = self._arguments(operation, node)
        self._calls.append(
            GraphCall(
                node.name, node.meta.get(STANDS_FOR, name), function, args, options,
                self._path(node), _shape_of(node.meta.get("val")),
            )
        )  # fmt: skip
        if target is not None:
            self._storages.change(node, target)
        else:
            kind = name.partition(".")[0]
            views = kind in VIEWS or (kind == "dropout" and not node.args[2])
            self._storages.add(node, view_of=node.args[0] if views else None)

    def _is_counter(self, node: Any) -> bool:
        place = self._registered.get(self._storages.made_first(node).name)
        return place is not None and place.name == _COUNTER

    def _arguments(self, operation: str, node: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args = [self._form(value) for value in node.args]
        options = {name: self._form(value) for name, value in node.kwargs.items()}
        if self._training and operation in _MODE_AT and args[_MODE_AT[operation]]:
            args[_MODE_AT[operation]] = Mode()
        if operation == "batch_norm.default" and isinstance(mean := args[_MEAN_AT], Ref):
            path, name = self._registered.get(mean.name, Registered("", ""))
            counter = Registered(path, _COUNTER)
            names = [n for n, place in self._registered.items() if place == counter]
            if name == _MEAN and not self._counted.isdisjoint(names):
                options[_COUNTER] = Ref(names[0])
        return tuple(args), options

    def _form(self, value: Any) -> Any:
        """An argument as a program has it."""
        if hasattr(value, "users"):  # a node
            now = self._storages.now(value)
            return self._constant(now.name) if now.name in self._constants else Ref(now.name)
        if isinstance(value, list | tuple):
            return tuple(map(self._form, value))
        return value if isinstance(value, _PLAIN) else str(value).removeprefix("torch.")

    def _path(self, node: Any) -> str:
        """The part that a call is in; one that is called again has "@1" behind its path."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = stack[-1][0].partition("@")[0] if stack else ""
        return self._paths.get(path, "")


def operation_of(node: Any) -> str:
    """Such as "conv2d.default"; Python's own functions by their name."""
    if isinstance(node.target, types.BuiltinFunctionType):
        return node.target.__name__
    return str(node.target).removeprefix("aten.")


def _needless(node: Any) -> bool:
    """Whether it only asserts something, or takes a part of a result that nothing reads."""
    name = operation_of(node)
    return name.startswith(ASSERTIONS) or (name == "getitem" and not node.users)


def without_change(operation: str) -> str:
    """The operation that leaves its input as it is: "add.Tensor" for "add_.Tensor"."""
    name, dot, overload = operation.partition(".")
    in_place = name.endswith("_") and not name.endswith("__")
    return f"{name[:-1] if in_place else name}{dot}{overload}"


def _missing(reason: str, *_args: Any, **_options: Any) -> NoReturn:
    raise ConfigError(reason, code="OOC-190", fix="see oc.interop.torch.register")


def _shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of a result for the example; None where it is no tensor."""
    shape = getattr(value, "shape", None)
    return None if shape is None else tuple(int(_extent(n)) for n in shape)


def _extent(n: Any) -> int:
    """A number, or what a symbol such as the batch's is for the example."""
    return n.node.hint if hasattr(n, "node") else n
