"""Modules that hold modules: one after the other, or a list of them.

In: modules. Out: a module whose children are named by their places, as PyTorch names them, so that
weights have the same names. Read next: `weights.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ooctrain.autograd import Tensor
from ooctrain.module import Module


class Sequential(Module):
    """Modules one after the other; takes them as arguments, or one OrderedDict of named ones."""

    def __init__(self, *modules: Module | OrderedDict[str, Module]):
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], OrderedDict):
            named = dict(modules[0])
        else:
            named = {str(i): m for i, m in enumerate(modules) if isinstance(m, Module)}
        for name, module in named.items():
            self.add_module(name, module)

    def forward(self, input: Tensor) -> Tensor:
        for module in self.children():
            input = module(input)
        return input

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int | slice) -> Module:
        modules = list(self.children())
        return Sequential(*modules[index]) if isinstance(index, slice) else modules[index]

    def __iter__(self) -> Iterator[Module]:
        return self.children()


class ModuleList(Module):
    """Modules in a list; the owner calls them."""

    def __init__(self, modules: list[Module] | None = None):
        super().__init__()
        for module in modules or []:
            self.append(module)

    def append(self, module: Module) -> ModuleList:
        """Adds one at the end."""
        self.add_module(str(len(self)), module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> Module:
        return list(self.children())[index]

    def __iter__(self) -> Iterator[Module]:
        return self.children()


class Identity(Module):
    """Hands its input on."""

    def forward(self, input: Tensor) -> Tensor:
        return input
