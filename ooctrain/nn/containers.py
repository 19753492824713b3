"""Modules that hold modules: one after the other, a list of them, or some by name.

A container names its children by their places, as PyTorch does, so that weights have the same
names. Read next: `weights.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError
from ooctrain.step.trace import Trace

L = TypeVar("L", list, dict)


class _InOrder(Module):
    """Modules in a list, which can be changed as in PyTorch."""

    def append(self, module: Module) -> Self:
        """Adds one at the end. Raises ConfigError: it is not a module."""
        return self.insert(len(self), module)

    def extend(self, modules: Iterable[Module]) -> Self:
        """Adds some at the end. Raises ConfigError: one is not a module."""
        for module in _given(self, list, modules, "modules in a list"):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Adds one before a place; those behind it get other names. Raises ConfigError: it is not
        a module."""
        parts = list(self.children())
        parts.insert(index, _checked_module(str(index), module))
        if index == len(self):
            self.add_module(str(index), module)
        else:
            self._hold(parts)
        return self

    def pop(self, index: int) -> Module:
        """Takes one out; those behind it get other names."""
        module = list(self.children())[index]
        del self[index]
        return module

    def __setitem__(self, index: int, module: Module) -> None:
        name = list(self._modules)[index]
        self.add_module(name, _checked_module(name, module))

    def __delitem__(self, index: int | slice) -> None:
        parts = list(self.children())
        del parts[index]
        self._hold(parts)

    def _hold(self, parts: Iterable[Module]) -> None:
        """These and no others, under the names 0, 1 and so on."""
        self._modules.clear()
        for place, module in enumerate(parts):
            self.add_module(str(place), module)
        self._changed()

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()


class Sequential(_InOrder):
    """Modules one after the other; takes them as arguments, or one OrderedDict of named ones.

    A slice of it is a Sequential of the same modules under the same names, as in PyTorch.

    Attributes:
        tiling: how a step runs it, "bands:16" for example (see `tiled`); "": as it is.

    Raises:
        ConfigError: one of them is not a module (a function such as `functional.relu`, say).
    """

    def __init__(self, *modules: Module | OrderedDict[str, Module]):
        super().__init__()
        named: Mapping[str, object] = {str(place): module for place, module in enumerate(modules)}
        if len(modules) == 1 and isinstance(modules[0], OrderedDict):
            named = modules[0]
        for name, module in named.items():
            self.add_module(name, _checked_module(name, module))
        self.tiling = ""

    def tiled(self, bands: int | tuple[int, int] = 8, *, again: bool = True) -> Sequential:
        """The same module, which steps run in bands of rows or in tiles, with the same gradients.

        Only the trace of a step changes: `model.features.tiled(16)` is enough. Not
        for steps that accumulate: bands take the images of a batch one after the other anyway.

        Args:
            bands: number of bands of its input, which keep their halos; or (tiles in H, in W) of
                its output, which compute their halos again.
            again: bands run their forward calls once more in backward; False: what they make is
                kept, swapped or made again as a planner likes. Tiles always run again.

        Raises:
            ConfigError: no number of bands; when a step is traced: an operation without a row rule.
        """
        in_tiles = isinstance(bands, tuple)
        grid = bands if isinstance(bands, tuple) else (bands, 1)
        if len(grid) != 2 or not all(type(n) is int and n >= 1 for n in grid):
            raise ConfigError(
                f"{bands!r} is neither a number of bands nor two numbers of tiles", code="OOC-113",
                fix="tiled(16) or tiled((4, 4))",
            )  # fmt: skip
        if not isinstance(again, bool):
            raise ConfigError(
                f"again={again!r} is neither True nor False", code="OOC-113",
                fix="tiled(16, again=False)",
            )  # fmt: skip
        kind = "bands_again" if again else "bands"
        self.tiling = f"tile:{grid[0]}x{grid[1]}" if in_tiles else f"{kind}:{bands}"
        return self

    def forward(self, input: Tensor) -> Tensor:
        for module in self.children():
            input = module(input)
        return input

    def __getitem__(self, index: int | slice) -> Module:
        named = list(self.named_children())
        if isinstance(index, slice):
            return Sequential(OrderedDict(named[index]))
        return named[index][1]


class ModuleList(_InOrder):
    """Modules in a list; the owner calls them."""

    def __init__(self, modules: Iterable[Module] | None = None):
        super().__init__()
        self.extend(() if modules is None else modules)

    def __getitem__(self, index: int | slice) -> Module:
        found = list(self.children())[index]
        return ModuleList(found) if isinstance(found, list) else found


class ModuleDict(Module):
    """Modules by name, in the order in which they came; the owner calls them."""

    def __init__(self, modules: Mapping[str, Module] | None = None):
        super().__init__()
        self.update({} if modules is None else modules)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Adds modules, or replaces those that have their names."""
        named = _given(self, dict, modules, "{name: module}, or pairs of a name and a module")
        for name, module in named.items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, _checked_module(name, module))

    def __getitem__(self, name: str) -> Module:
        return self._modules[name]

    def __delitem__(self, name: str) -> None:
        self._changed()
        del self._modules[name]

    def pop(self, name: str) -> Module:
        """Takes one out."""
        module = self[name]
        del self[name]
        return module

    def clear(self) -> None:
        """Takes all out."""
        self._changed()
        self._modules.clear()

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """The modules."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Names and modules."""
        return self._modules.items()


class Identity(Module):
    """Hands its input on."""

    def forward(self, input: Tensor) -> Tensor:
        return input


def _given(to: Module, kind: type[L], modules: Any, fix: str) -> L:
    """The modules in a list, or a dictionary. Raises ConfigError: they make none."""
    try:
        return kind(modules)
    except (TypeError, ValueError) as error:
        what = f"{type(to).__name__} is given {type(modules).__name__}"
        raise ConfigError(what, code="OOC-106", fix=fix) from error


def _checked_module(name: str, module: object) -> Module:
    """The module itself. Raises ConfigError for anything else: the network would leave it out."""
    if not isinstance(module, Module):
        raise ConfigError(
            f"part {name!r} is {module!r}, which is not a module",
            fix="use the module in place of the function, such as nn.ReLU() for functional.relu",
        )
    return module


def tilings_wanted(trace: Trace, model: Module) -> tuple[str, ...]:
    """Names of the tilings that parts of the model want (`nn.Sequential.tiled`), as of rewrites.

    Args:
        trace: trace of a step, untiled.
    """
    found = []
    for name, part in model.named_modules():
        if isinstance(part, Sequential) and part.tiling:
            prefix = f"{name}." if name else ""
            inside = [
                call.name for call in trace.calls
                if call.phase == "forward" and call.pure and call.name.startswith(prefix)
            ]  # fmt: skip
            found += [f"{part.tiling}:{inside[0]}:{inside[-1]}"] if inside else []
    return tuple(found)
