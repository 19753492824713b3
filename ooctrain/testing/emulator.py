"""Runs CUDA kernels on the CPU, as a GPU would that tolerates no fault.

A `Kernel` runs on NumPy arrays, or an `EmulationError` names kernel, block, thread and word. Its
source becomes a Python module (`translate`) in which a barrier is a `yield`: one thread of the
kernel is a generator, and the code that drives the generators from barrier to barrier decides the
order of the threads, ascending or descending. Shared memory is full of NaN at first, and its
accesses are logged. Conflicting accesses that a GPU does not order are an error here, even where
the emulator's own order would give the right result. Blocks run one after the other. Time is not
modelled. Read next: `emulator_block.py`; `tests/zoo/kernel_bugs.py` for the bugs that it catches.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numba.core import types

from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import cache_folder
from ooctrain.layers.kernels.cuda.conv import tensor_core, tile_product
from ooctrain.layers.kernels.cuda.runtime import intrinsics
from ooctrain.layers.kernels.cuda.runtime.intrinsics import shared_array
from ooctrain.layers.kernels.cuda.runtime.launcher import Blocks, part_of, prepare_arguments
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel
from ooctrain.layers.kernels.cuda.runtime.twins import TWINS
from ooctrain.testing import emulator_block
from ooctrain.testing.emulator_block import (
    COPIES,
    EXCHANGES,
    SEVERAL,
    SHUFFLES,
    SLOTS,
    WARP,
    Fault,
    SharedArray,
)

# From the source of a kernel to a Python module. Values that lanes of a warp exchange are
# published, yielded over and collected. Numbers, device functions and twins of intrinsics that the
# kernel's globals name are written into the module too, so that it stands alone and Numba can keep
# its compiled form on disk.

#: a yielded number is `site * 4 + kind`; sites distinguish the barriers of a kernel
EXCHANGE, WARP_BARRIER, BARRIER, KINDS = 0, 1, 2, 4

_INDICES = {
    "threadIdx.x": "_int32(_thread)", "threadIdx.y": "_int32(0)", "threadIdx.z": "_int32(0)",
    "blockIdx.x": "_int32(_bx)", "blockIdx.y": "_int32(_by)", "blockIdx.z": "_int32(_bz)",
    "blockDim.x": "_int32(_threads)", "blockDim.y": "_int32(1)", "blockDim.z": "_int32(1)",
    "gridDim.x": "_int32(_gx)", "gridDim.y": "_int32(_gy)", "gridDim.z": "_int32(_gz)",
    "laneid": "_int32(_thread & 31)", "warpsize": "32",
}  # fmt: skip
_MEMORY = ("words", "log", "places", "values", "counts")
_MEMORY_TYPES = "i8[:, ::1], i8[:, :, ::1], f4[:, :, ::1], i8[:, ::1]"
_PLACE = ("_thread", "_bx", "_by", "_bz", "_gx", "_gy", "_gz", "_threads")

_HEAD = """\
import numpy as _np
from numba import njit as _njit, int32 as _int32
from functools import partial as _partial
from ooctrain.testing import emulator_block as _block
from ooctrain.testing.emulator_block import local_array as _local_array
from ooctrain.testing.emulator_block import shared_of as _shared_of
_as_on_gpu = {"boundscheck": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_inner = _njit(no_cpython_wrapper=True, **_as_on_gpu)
_outer = _partial(_njit, cache=True, **_as_on_gpu)
"""

# Names with an underscore: a kernel's own parameters may be called `block` or `thread`.
_RUN = """
@_outer("void({types})")
def run(_order, _gx, _gy, _gz, _threads, {names}):
    _blocks = _gx * _gy * _gz
    for _b in range(_blocks):
        _block = _b if _order > 0 else _blocks - 1 - _b
        _bx, _by, _bz = _block % _gx, _block // _gx % _gy, _block // (_gx * _gy)
        for _t in range(_threads):
            _thread = _t if _order > 0 else _threads - 1 - _t
            {name}(_thread, _bx, _by, _bz, _gx, _gy, _gz, _threads, {names})
"""


@dataclass(frozen=True, slots=True)
class EmulatedKernel:
    """The emulated form of a kernel.

    Args:
        text: Python source; it defines `run` (threads independent) or `start` (a generator).
        waits: whether threads wait for each other, so that `start` is there.
        shared: (name, words, dtype) of each shared array.
    """

    text: str
    waits: bool
    shared: tuple[tuple[str, int, str], ...]


def translate(kernel: Kernel) -> EmulatedKernel:
    """The module of a kernel. Raises ConfigError where it uses what the emulator does not know."""
    writer = _Writer()
    function = _translate_function(kernel.function, writer)
    shared = tuple(function.shared)
    parameters = ", ".join(function.parameters)
    argument_types = kernel.signature.partition("(")[2].removesuffix(")")
    if function.sites or shared:
        extra = "".join(f", {_memory_names(i)}" for i in range(len(shared)))
        extra_types = "".join(f", {dtype}[::1], {_MEMORY_TYPES}" for _, _, dtype in shared)
        head = f"{', '.join(_PLACE)}, _exchange, _clock{extra}, {parameters}"
        kinds = f"({'i8, ' * len(_PLACE)}f8[:, :, ::1], i8[::1]{extra_types}, {argument_types})"
        body = ["_turn = 0", *function.lines, f"yield {BARRIER}"]
        text = _definition("start", head, body, f'@_outer("{kinds}")')
        return EmulatedKernel(writer.text() + text, True, shared)
    head = f"{', '.join(_PLACE)}, {parameters}"
    text = _definition("_body", head, function.lines, "@_inner")
    run = _RUN.format(types="i8, " * 5 + argument_types, names=parameters, name="_body")
    return EmulatedKernel(writer.text() + text + run, False, shared)


def _definition(name: str, parameters: str, lines: list[str], decorator: str) -> str:
    body = textwrap.indent("\n".join(lines), "    ")
    return f"\n{decorator}\ndef {name}({parameters}):\n{body}\n"


@dataclass
class _Writer:
    """Collects definitions; a name that means two things gets a number."""

    lines: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        return _HEAD + "\n".join(self.lines) + "\n"

    def name_for(self, name: str, value: Any) -> str:
        """The module's name for a global of a kernel; defined by the first call."""
        candidate, number = name, 1
        while candidate in self.values and not _same(self.values[candidate], value):
            number += 1
            candidate = f"{name}_{number}"
        if candidate not in self.values:
            self.values[candidate] = value
            self.lines.append(self._define(candidate, value))
        return candidate

    def _define(self, name: str, value: Any) -> str:
        if isinstance(value, ModuleType):
            return f"import {value.__name__} as {name}"
        if isinstance(value, types.Type):
            return f"from numba import {value} as {name}"
        if isinstance(value, np.generic):
            return f"{name} = _np.{value.dtype}({str(value)!r})"
        if isinstance(value, bool | int | float | tuple):
            return f"{name} = {value!r}"
        twin: Any = TWINS.get(value) or COPIES.get(value)
        if twin is not None:
            return f"from {twin.py_func.__module__} import {twin.__name__} as {name}"
        if hasattr(value, "py_func"):
            return self._device_function(name, value.py_func)
        raise ConfigError(f"the emulator cannot carry the global {name} = {value!r}")

    def _device_function(self, name: str, function: Callable) -> str:
        inner = _translate_function(function, self)
        if inner.sites or inner.shared:
            raise ConfigError(f"a barrier or shared array inside the device function {name}")
        decorator = "@_inner"
        return _definition(name, ", ".join(inner.parameters), inner.lines, decorator)


def _same(a: Any, b: Any) -> bool:
    plain = type(a) is type(b) and isinstance(a, int | float | tuple | np.generic)
    return a is b or (plain and a == b)


def _globals_of(function: Callable) -> Mapping[str, Any]:
    """What the names of a function mean that are not its own variables."""
    closed, own = inspect.getclosurevars(function), function.__code__.co_varnames
    known = {**closed.globals, **closed.nonlocals}
    return {name: value for name, value in known.items() if name not in own}


def _tree_of(function: Callable) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _exchanges(value: Any) -> bool:
    """Whether lanes exchange something in a device function itself."""
    if not hasattr(value, "py_func"):
        return False
    known = _globals_of(value.py_func)
    calls = (node for node in ast.walk(_tree_of(value.py_func)) if isinstance(node, ast.Call))
    names = [ast.unparse(call.func) for call in calls]
    return any(name in SHUFFLES or known.get(name) in EXCHANGES for name in names)


@dataclass
class _Translated:
    parameters: list[str]
    lines: list[str]
    shared: list[tuple[str, int, str]]
    sites: int


def _translate_function(function: Callable, writer: _Writer) -> _Translated:
    tree = _tree_of(function)
    rewriter = _Rewriter(function.__name__, _globals_of(function), writer)
    body = rewriter.statements(tree.body)
    lines = [ast.unparse(ast.fix_missing_locations(statement)) for statement in body]
    parameters = [argument.arg for argument in tree.args.args]
    return _Translated(parameters, lines, rewriter.shared, rewriter.sites)


class _Rewriter(ast.NodeTransformer):
    """Rewrites the statements of one function."""

    def __init__(self, name: str, known: Mapping[str, Any], writer: _Writer):
        self._name, self._known, self._writer = name, known, writer
        self._before: list[ast.stmt] = []
        self.shared: list[tuple[str, int, str]] = []
        self.sites = 0

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Rewritten statements, each with the exchanges that it needs before it."""
        done: list[ast.stmt] = []
        for statement in body:
            self._before = []
            rewritten = self._statement(statement)
            done += [*self._before, rewritten]
            self._before = []
        return done

    def _statement(self, statement: ast.stmt) -> ast.stmt:
        if isinstance(statement, ast.If | ast.While | ast.For):
            return self._compound(statement)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            kind = {"cuda.syncthreads": BARRIER, "cuda.syncwarp": WARP_BARRIER}.get(
                ast.unparse(statement.value.func)
            )
            if kind is not None:
                return self._yield(kind)
            function: Any = self._known.get(ast.unparse(statement.value.func))
            if _exchanges(function):
                return self._inlined(function.py_func, statement.value.args)
        if isinstance(statement, ast.Assign) and self._makes_shared(statement.value):
            statement.value = self._shared_array(statement)
            return statement
        return self.visit(statement)

    def _inlined(self, function: Callable, arguments: list[ast.expr]) -> ast.stmt:
        """The statements of a device function in which lanes exchange, in its call's place."""
        tree, own = _tree_of(function), set(function.__code__.co_varnames)
        known = _globals_of(function)
        # A name of the kernel may mean something else here.
        theirs = {name: name if name == "cuda" else f"_its_{name}" for name in known}
        for node in ast.walk(tree):
            if isinstance(node, ast.Return):
                raise self._unknown(f"a result of {function.__name__}, where lanes exchange")
            if isinstance(node, ast.Name):
                renamed = f"_{node.id}_of{self.sites}" if node.id in own else node.id
                node.id = theirs.get(node.id, renamed)
        given = [ast.Name(f"_{a.arg}_of{self.sites}", ast.Store()) for a in tree.args.args]
        assigned: list[ast.stmt] = [
            ast.Assign([name], self.visit(argument))
            for name, argument in zip(given, arguments, strict=True)
        ]
        given_to_it = {theirs[name]: value for name, value in known.items()}
        rewriter = _Rewriter(function.__name__, given_to_it, self._writer)
        rewriter.sites = self.sites
        body = assigned + rewriter.statements(tree.body)
        self.sites = rewriter.sites
        return ast.If(ast.Constant(True), body, [])

    def _makes_shared(self, node: ast.expr) -> bool:
        """Whether a call makes a shared array: Numba's own, or the aligned one."""
        text = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        return text == "cuda.shared.array" or self._known.get(text) is shared_array

    def _compound(self, statement: ast.If | ast.While | ast.For) -> ast.stmt:
        header = "iter" if isinstance(statement, ast.For) else "test"
        setattr(statement, header, self.visit(getattr(statement, header)))
        before = self._before
        if before and isinstance(statement, ast.While):
            raise self._unknown("an exchange between lanes in the condition of a loop")
        statement.body = self.statements(statement.body)
        statement.orelse = self.statements(statement.orelse)
        self._before = before
        return statement

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self._known:
            value = self._known[node.id]
            node.id = self._writer.name_for(node.id, value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        text = ast.unparse(node)
        if not text.startswith("cuda."):
            return self.generic_visit(node)  # type: ignore[return-value]
        if text.removeprefix("cuda.") not in _INDICES:
            raise self._unknown(text)
        return _expression(_INDICES[text.removeprefix("cuda.")])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        text = ast.unparse(node.func)
        if text == "cuda.grid":
            return _expression("(_bx * _threads + _thread)")
        if text == "cuda.gridsize":
            return _expression("(_gx * _threads)")
        if text == "cuda.local.array":
            return ast.Call(ast.Name("_local_array"), [self.visit(a) for a in node.args], [])
        if text in SHUFFLES:  # all lanes take part, whatever the mask in front says
            return self._exchange(SHUFFLES[text], [self.visit(given) for given in node.args[1:]])
        exchange = EXCHANGES.get(self._known.get(text))
        if exchange is not None:
            return self._exchange(exchange, [self.visit(given) for given in node.args])
        if text.startswith("cuda."):
            raise self._unknown(text)
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return self._without_exchange(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return self._without_exchange(node)

    def _without_exchange(self, node: ast.expr) -> ast.expr:
        before = len(self._before)
        visited = self.generic_visit(node)
        if len(self._before) != before:
            raise self._unknown("an exchange between lanes inside a condition")
        return visited  # type: ignore[return-value]

    def _exchange(self, name: str, arguments: list[ast.expr]) -> ast.expr:
        """Publish, wait, collect; the slots of two turns alternate, so that one wait is enough."""
        self.sites += 1
        site, result = self.sites, f"_got{self.sites}"
        names = [f"_given{site}_{i}" for i in range(len(arguments))]
        lines = [f"{n} = {ast.unparse(a)}" for n, a in zip(names, arguments, strict=True)]
        given = ", ".join(["_exchange", "_turn", "_thread", *names])
        lines += [
            f"_block.publish_{name}({given})",
            f"yield {site * KINDS + EXCHANGE}",
            f"{result} = _block.collect_{name}({given})",
            "_turn = 1 - _turn",
        ]
        self._before += ast.parse("\n".join(lines)).body
        return _expression(result)

    def _yield(self, kind: int) -> ast.stmt:
        self.sites += 1
        return ast.parse(f"yield {self.sites * KINDS + kind}").body[0]

    def _shared_array(self, statement: ast.Assign) -> ast.expr:
        call, number = statement.value, len(self.shared)
        assert isinstance(call, ast.Call)
        words, dtype = (eval(ast.unparse(a), dict(self._known)) for a in call.args[:2])
        self.shared.append((ast.unparse(statement.targets[0]), int(words), str(dtype)))
        return _expression(f"_shared_of({_memory_names(number)}, _clock, {number}, _thread)")

    def _unknown(self, what: str) -> ConfigError:
        return ConfigError(f"the emulator does not know {what}", where=f"kernel {self._name}")


def _memory_names(number: int) -> str:
    """Parameters of a generator that hold `SharedArray.arrays`."""
    return ", ".join(f"_{part}{number}" for part in _MEMORY)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


# Running it

END = -1
#: Numba compiles these into every kernel, and its disk cache does not see that they have changed.
_SOURCES = (emulator_block, intrinsics, tensor_core, tile_product)


class EmulationError(OoctrainError, AssertionError):
    """A kernel did what a GPU leaves undefined: a race, a stray index, a barrier not for all."""


@dataclass(frozen=True, slots=True)
class Emulated:
    """A kernel ready to run on the CPU."""

    kernel: Kernel
    module: EmulatedKernel
    entry: Any

    def run(self, blocks: Blocks, args: list[Any], order: int = 1) -> None:
        """Runs all blocks.

        Args:
            blocks: a number, or up to three.
            args: flat arrays and numbers as the signature asks.
            order: 1 runs blocks and threads ascending, -1 descending.
        """
        grid = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
        try:
            if self.module.waits:
                _Launch(self, grid, args, order).run()
            else:
                self.entry(order, *grid, self.kernel.threads, *args)
        except (IndexError, ValueError) as error:
            raise EmulationError(f"{self.kernel.name}: {error}") from error


@cache
def emulate(kernel: Kernel) -> Emulated:
    """The CPU form of a kernel; compiled once, kept on disk."""
    module = translate(kernel)
    loaded = _load(kernel, module.text)
    return Emulated(kernel, module, loaded.start if module.waits else loaded.run)


class EmulatedLauncher:
    """`Launcher` on NumPy arrays; each launch runs at once.

    Args:
        order: 1 runs blocks and threads ascending, -1 descending.
    """

    def __init__(self, order: int = 1):
        self._order = order

    def launch(self, kernel: Kernel, blocks: Blocks, *args: Any) -> None:
        emulate(kernel).run(blocks, prepare_arguments(kernel, args, flat), self._order)

    def part(self, workspace: Any, offset_bytes: int, count: int, dtype: str) -> Any:
        return part_of(workspace, offset_bytes, count, dtype)


class _Launch:
    """One launch of a kernel whose threads wait for each other."""

    def __init__(self, emulated: Emulated, grid: tuple, args: list[Any], order: int):
        kernel = emulated.kernel
        self._emulated, self._grid, self._args = emulated, grid, args
        warps = -(-kernel.threads // WARP)
        self._threads = range(kernel.threads)[::order]
        self._warps = range(warps)[::order]
        self._blocks = range(grid[0] * grid[1] * grid[2])[::order]
        self._clock = np.zeros(1 + warps, np.int64)
        self._table = np.zeros((2, kernel.threads, SLOTS))
        self._shared = [
            SharedArray(words, dtype, kernel.threads) for _, words, dtype in emulated.module.shared
        ]

    def run(self) -> None:
        for block in self._blocks:
            x, y = self._grid[:2]
            place = (block % x, block // x % y, block // (x * y))
            try:
                self._run_block(place)
            except Fault as fault:
                raise self._explain(fault, place) from None

    def _run_block(self, place: tuple[int, int, int]) -> None:
        for shared in self._shared:
            shared.poison()
        waiting: dict[int, list[Iterator[int]]] = {warp: [] for warp in self._warps}
        memory = [array for shared in self._shared for array in shared.arrays]
        rest = (*self._grid, len(self._threads), self._table, self._clock, *memory, *self._args)
        for thread in self._threads:
            waiting[thread // WARP].append(self._emulated.entry(thread, *place, *rest))
        while True:
            sites = {self._advance(warp, lanes) for warp, lanes in waiting.items()}
            self._clock[0] += 1
            if len(sites) > 1:
                raise self._error("a barrier is not reached by all threads of the block", place)
            if sites == {END}:
                return

    def _advance(self, warp: int, lanes: list[Iterator[int]]) -> int:
        """Runs a warp to its next barrier of the block, or to its end."""
        while True:
            sites = {next(lane, END) for lane in lanes}
            if len(sites) > 1:
                raise self._error(f"the lanes of warp {warp} wait at different places", None)
            (site,) = sites
            if site == END or site % KINDS == BARRIER:
                return site
            if site % KINDS == WARP_BARRIER:
                self._clock[1 + warp] += 1

    def _error(self, what: str, place: tuple | None, numbers: str = "") -> EmulationError:
        where = f"block {place}" if place else ""
        return EmulationError(f"{self._emulated.kernel.name}: {what}", where=where, numbers=numbers)

    def _explain(self, fault: Fault, place: tuple) -> EmulationError:
        what, number, word, thread, other = fault.args
        name, words, _ = self._emulated.module.shared[number]
        numbers = f"{name}[{word}] of {words} words, thread {thread}"
        if other > SEVERAL:
            numbers += f" and thread {other}"
        return self._error(what, place, numbers)


def flat(array: np.ndarray) -> np.ndarray:
    """An array in one dimension, as a kernel gets it."""
    if not array.flags.c_contiguous:
        raise EmulationError("an array is not C-contiguous", numbers=str(array.shape))
    flat = array.reshape(-1)
    # Kernels are compiled for writeable arrays; nothing may be written into a read-only one.
    return flat if flat.flags.writeable else flat.copy()


def _load(kernel: Kernel, text: str) -> ModuleType:
    """The module of `text`, written where Numba's disk cache finds it again."""
    folder = cache_folder() / "emulated"
    sources = [Path(str(module.__file__)).read_bytes() for module in _SOURCES]
    digest = hashlib.sha1(b"\0".join([text.encode(), *sources]), usedforsecurity=False)
    path = folder / f"{kernel.name.replace('.', '_')}_{digest.hexdigest()[:16]}.py"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(f".{id(text)}.part")
        whole.write_text(text, encoding="utf-8")
        whole.replace(path)
    spec = importlib.util.spec_from_file_location(f"ooctrain_emulated_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Numba's cache names the functions by their module, and looks for it among those loaded.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
