"""Modules, as in PyTorch: a tree of layers with named parameters and buffers.

Assigning a `Parameter` or a `Module` to an attribute, usually in `__init__`, registers it under
that name. The names of all calls and variables of a trace come from this tree, and its `state_dict`
has PyTorch's keys and layouts. Read next: `parameter.py`, what is registered; `nn/`, then
`functional/`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np

from ooctrain.engine.eager import write_all
from ooctrain.engine.parameter import Parameter, as_buffer, clear_grad
from ooctrain.engine.state_dicts import COUNTS, as_values, check_keys, plain_state
from ooctrain.engine.tensor import Tensor, current_tape
from ooctrain.errors import ConfigError
from ooctrain.step.arguments import checked, checked_but

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
#: What a module holds for itself, under names that are none of its user's.
NOT_ATTRIBUTES = frozenset(
    ("training", "_parameters", "_buffers", "_modules", "_change_count", "_not_saved")
)


class LoadResult(NamedTuple):
    """What `load_state_dict(strict=False)` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class HasForward(Protocol[P, R]):
    """What a call of a module asks of it; so a call takes and gives what `forward` says."""

    def forward(self, *inputs: P.args, **named: P.kwargs) -> R: ...


def _no_forward(self: Module, *inputs: Any) -> Any:
    """What a module without a `forward` computes. Raises TypeError."""
    raise TypeError(f"{type(self).__name__} lacks forward()")


class Module:
    """A layer, or a network of them. Subclasses define `__init__` and `forward`.

    It counts its changes: attributes set or deleted, parts, parameters and buffers registered, its
    mode. Counts only grow, so one sum over all modules shows a trainer whether any has changed
    (ResNet-50: 4 us for 151 modules). One counter for a whole tree would have to be handed on
    whenever modules are joined or shared. What is written to its `__dict__` is not counted; what
    changes within an attribute, such as a list, is seen by its content (`fingerprint.py`).
    """

    training: bool
    _change_count: int
    _not_saved: frozenset[str]  # names of buffers that are not persistent

    def __init__(self) -> None:
        # Set around __setattr__, which needs these to be there.
        for attribute in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, attribute, OrderedDict())
        object.__setattr__(self, "_not_saved", frozenset())
        object.__setattr__(self, "training", True)
        object.__setattr__(self, "_change_count", 0)

    #: What the module computes. Annotated as any function, so that subclasses may take what they
    #: like; a method here would ask every `forward` for the same parameters.
    forward: Callable[..., Any] = _no_forward

    def __call__(self: HasForward[P, R], *inputs: P.args, **named: P.kwargs) -> R:
        with inside(self):  # type: ignore[arg-type]
            return self.forward(*inputs, **named)

    # Registration

    def __setattr__(self, name: str, value: Any) -> None:
        if "_modules" not in self.__dict__:
            raise ConfigError(
                f"{type(self).__name__}: call super().__init__() before assigning {name!r}"
            )
        self._changed()
        registries = (self._parameters, self._modules, self._buffers)
        for kind, registry in ((Parameter, self._parameters), (Module, self._modules)):
            if isinstance(value, kind):
                for other in registries:
                    other.pop(name, None)
                self.__dict__.pop(name, None)
                registry[name] = value
                return
        if value is None:
            for registry in registries:
                if name in registry:
                    registry[name] = None
                    return
        elif name in self._buffers and isinstance(value, Tensor):
            self._buffers[name] = value if value.kind == "state" else as_buffer(value)
            return
        elif any(name in registry for registry in registries):
            allowed = "a tensor" if name in self._buffers else "a parameter, a module"
            raise ConfigError(f"{name!r} is registered; only {allowed} or None can replace it")
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        for registry in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__.get(registry, ()):
                return self.__dict__[registry][name]
        # Not at the top: a table of words, read when a name is missing.
        from ooctrain.engine.torch_names import refusal

        own = [known for r in ("_parameters", "_buffers", "_modules") for known in
               self.__dict__.get(r, ())]  # fmt: skip
        raise refusal(type(self).__name__, name, "module", [*dir(type(self)), *self.__dict__, *own])

    def __delattr__(self, name: str) -> None:
        self._changed()
        for registry in (self._parameters, self._modules, self._buffers):
            if name in registry:
                del registry[name]
                return
        object.__delattr__(self, name)

    def _changed(self) -> None:
        self.__dict__["_change_count"] += 1

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Registers a parameter under a name, or with None its absence (`bias=False`)."""
        self._changed()
        self._parameters[name] = param

    @checked
    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Registers a value under a name that is not trained, such as a running mean.

        Args:
            tensor: array or tensor, float32 or int64; None: no such buffer.
            persistent: False: not in `state_dict`; a trainer's checkpoint has it all the same.
        """
        self._changed()
        others = self._not_saved - {name}
        object.__setattr__(self, "_not_saved", others if persistent else others | {name})
        self._buffers[name] = None if tensor is None else as_buffer(tensor)

    def register_module(self, name: str, module: Module) -> None:
        """The same as `add_module`."""
        self.add_module(name, module)

    @checked
    def get_submodule(self, target: str) -> Module:
        """The part with a dotted name; "" is itself. Raises AttributeError: there is none."""
        found = self
        for place, name in enumerate(target.split(".") if target else ()):
            part = found._modules.get(name)
            if part is None:
                reached = ".".join(target.split(".")[:place])
                known = ", ".join(name for name, _ in found.named_children()) or "none"
                raise AttributeError(
                    f"{reached or type(self).__name__!r} has no part {name!r}; it has {known}"
                )
            found = part
        return found

    def get_parameter(self, target: str) -> Parameter:
        """The parameter with a dotted name. Raises AttributeError: there is none."""
        return self._registered("_parameters", target, "parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with a dotted name. Raises AttributeError: there is none."""
        return self._registered("_buffers", target, "buffer")

    def _registered(self, registry: str, target: str, what: str) -> Any:
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        found = owner.__dict__[registry].get(name)
        if found is None:
            known = ", ".join(owner.__dict__[registry]) or "none"
            raise AttributeError(f"there is no {what} {target!r}; {path or 'here'} has {known}")
        return found

    @checked
    def add_module(self, name: str, module: Module) -> None:
        """Registers a part under a name."""
        self._changed()
        self._modules[name] = module

    # The tree

    @property
    def has_parts(self) -> bool:
        """Whether it consists of other modules."""
        return bool(self._modules)

    def children(self) -> Iterator[Module]:
        """Its direct parts."""
        yield from (part for part in self._modules.values() if part is not None)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Its direct parts with their names."""
        yield from ((name, part) for name, part in self._modules.items() if part is not None)

    def modules(self) -> Iterator[Module]:
        """Itself and all parts, each once."""
        yield from (module for _, module in self.named_modules())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Itself and all parts with dotted names, each module once."""
        yield from self._named_modules(prefix, set())

    def _named_modules(self, prefix: str, seen: set[Module]) -> Iterator[tuple[str, Module]]:
        if self in seen:
            return
        seen.add(self)
        yield prefix, self
        for name, part in self.named_children():
            yield from part._named_modules(f"{prefix}.{name}" if prefix else name, seen)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters with dotted names, a shared one once, under its first name.

        Args:
            prefix: prefix of all names.
            recurse: False: its own alone, without those of its parts.
        """
        yield from self._named("_parameters", prefix, recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters."""
        yield from (parameter for _, parameter in self.named_parameters("", recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """All buffers with dotted names; arguments as for `named_parameters`."""
        yield from self._named("_buffers", prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers."""
        yield from (buffer for _, buffer in self.named_buffers("", recurse))

    def _named(self, registry: str, prefix: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        seen: set[Tensor] = set()
        modules = self.named_modules(prefix) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, value in module.__dict__[registry].items():
                if value is not None and value not in seen:
                    seen.add(value)
                    yield f"{path}.{name}" if path else name, value

    @checked
    def apply(self, fn: Callable[[Module], None]) -> Module:
        """Calls `fn` on all parts and itself, parts first."""
        for part in self.children():
            part.apply(fn)
        fn(self)
        return self

    # Mode and state

    @checked
    def train(self, mode: bool = True) -> Module:
        """Training mode: batch statistics, dropout."""
        for module in self.modules():
            if module.training != mode:  # else it is no change: some call it before each step
                object.__setattr__(module, "training", mode)
                module._changed()
        return self

    def begin_step(self, number: int) -> None:
        """Called by a trainer before each training step, for parts that change from step to step.

        Args:
            number: number of steps done.
        """
        for part in self.children():
            part.begin_step(number)

    def eval(self) -> Module:
        """Evaluation mode: running statistics, no dropout."""
        return self.train(False)

    def to(self, device: str) -> Module:
        """Itself: parameters are on the host, until a trainer takes them to its own device.

        Raises:
            ConfigError: any device but "cpu".
        """
        if device != "cpu":
            raise ConfigError(
                f"a module cannot be moved to {device!r}",
                code="OOC-106",
                fix=f"Trainer(model, ..., device={device!r}) trains it there",
            )
        return self

    def cpu(self) -> Module:
        """Itself: parameters are on the host, see `to`."""
        return self

    def float(self) -> Module:
        """Itself: parameters are float32."""
        return self

    @checked
    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Whether its parameters are trained."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    @checked
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients (with `set_to_none=False`: sets them to zero)."""
        for parameter in self.parameters():
            clear_grad(parameter, set_to_none)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers, in PyTorch's keys and layouts (OIHW weights)."""
        return {name: np.array(value.storage.read(), order="C") for name, value in self._state()}

    @checked_but("state_dict")
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadResult:
        """Writes parameters and buffers; the reverse of `state_dict`.

        Taken as well are {"state_dict": ...} and the like, the prefixes of torch's wrappers
        ("module.", "_orig_mod.") if all keys have them, any other prefix that all keys have
        ("model." of Lightning) if the keys without it are just the model's, tensors of torch, and
        files without `num_batches_tracked`, whose counts stay.

        Args:
            strict: keys must be the same; else what matches is loaded.

        Returns:
            The keys that did not match.

        Raises:
            ShapeError: a value of another shape, or no array of real numbers.
            ConfigError: `strict` and keys are missing or unexpected; no key fits; no state dict.
            InUse: a trainer that has the values is at work in another thread.
            Whatever is raised, an interrupt too, nothing is changed; or, at its end, all is loaded.
        """
        mine = dict(self._state())
        given = plain_state(state_dict, mine)
        result = LoadResult(
            [key for key in mine if key not in given and key.rpartition(".")[2] != COUNTS],
            [key for key in given if key not in mine],
        )
        check_keys(given, mine, *result, strict=strict)
        arrays = as_values(given, mine)
        write_all((mine[key].storage, partial(arrays.__getitem__, key)) for key in arrays)
        return result

    def _state(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Parameters and buffers in PyTorch's order; shared ones under each of their names."""
        saved = (item for item in self._buffers.items() if item[0] not in self._not_saved)
        for name, value in (*self._parameters.items(), *saved):
            if value is not None:
                yield prefix + name, value
        for name, part in self.named_children():
            yield from part._state(f"{prefix}{name}.")

    def extra_repr(self) -> str:
        """Its settings, for `repr`."""
        return ""

    def __repr__(self) -> str:
        parts = [
            f"({name}): {part!r}".replace("\n", "\n  ") for name, part in self.named_children()
        ]
        body = "\n  ".join(filter(None, [self.extra_repr(), *parts]))
        inner = f"\n  {body}\n" if parts else body
        return f"{type(self).__name__}({inner})"


@contextmanager
def inside(module: Module) -> Iterator[None]:
    """Records inside `module`; the outermost one names all its parts."""
    tape = current_tape()
    outermost = module not in tape.module_paths
    if outermost:
        tape.look_at(module)
        before = tape.module_paths
        named = module.named_modules() if module.has_parts else [("", module)]
        tape.module_paths = {part: path for path, part in named}
    try:
        with tape.at(path=tape.module_paths[module], leaf=not module.has_parts):
            yield
    finally:
        if outermost:
            tape.module_paths = before


@contextmanager
def frozen(module: Module) -> Iterator[None]:
    """Within the `with` block the module's parameters are constants; gradients pass through it.

    So one player of a game learns from the other: the discriminator judges what the generator made,
    and only the generator is changed. Where the same step trains both, record the loss of the
    frozen module's own training *before* this block: backward then comes to it last, when the
    old parameters are no longer needed.
    """
    tape = current_tape()
    with tape.reading({p: tape.runner.constant(p) for p in module.parameters()}):
        yield
