"""Which kernels a Python function may start: read off its code, without running it.

A kernel is compiled when it is first needed, one after the other. Several processes can do it at
once if the list is known before. Functions that start kernels name them, or name functions of this
room that do; so the list is what can be reached by names, a little more than what a call will run.
What is reached in another way is compiled when it is needed. Read next: `kernel_jit.py`;
`execution/compile_apart.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ooctrain.layers.kernels.cpu.runtime.kernel_jit import Lazy

#: Only functions below this package are looked into.
ROOM = __name__.rpartition(".runtime.")[0]


def kernels_of(functions: Iterable[Callable]) -> list[Lazy]:
    """Those that the functions can reach, each once."""
    found = dict[Lazy, None]()
    todo, seen = list[Any](functions), set[int]()
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Lazy):
            found[value] = None
        elif isinstance(value, partial):
            todo.append(value.func)
        elif isinstance(value, FunctionType) and value.__module__.startswith(ROOM):
            todo.extend(_named(value))
    return list(found)


def _named(function: FunctionType) -> Iterator[Any]:
    """What a function's code names, at the top of its module or of one that it names."""
    names = dict.fromkeys(function.__code__.co_names)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType) and value.__name__.startswith(ROOM):
            yield from (vars(value)[each] for each in names if each in vars(value))
        else:
            yield value


def kernels_of_module(module: ModuleType) -> list[Lazy]:
    """Those that a module defines."""
    found = (value for value in vars(module).values() if isinstance(value, Lazy))
    return [kernel for kernel in found if kernel.__module__ == module.__name__]


def size_of(kernel: Lazy) -> int:
    """Bytes of its code and of all that is compiled into it: some measure of how long that takes,
    without compiling it."""
    todo, seen, size = [kernel.py_func], set[CodeType](), 0
    while todo:
        function = todo.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        size += len(function.__code__.co_code)
        named = (function.__globals__.get(name) for name in function.__code__.co_names)
        todo += [inner for inner in (getattr(value, "py_func", None) for value in named) if inner]
    return size
