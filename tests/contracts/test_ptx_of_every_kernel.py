"""Every CUDA kernel compiles for every GPU that it is promised for, and the text of it is sound.

No GPU and no driver is needed: NVVM, which Numba finds in a CUDA toolkit or in the package
nvidia-nvvm, makes PTX of a kernel; ptxas, where it is on the path, counts registers and spills. The
kernels are found by walking the modules, so a new one cannot be forgotten.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType

import pytest

import ooctrain.layers.kernels.cuda as package
from ooctrain.layers.kernels.cuda import clipping, conv_gemm, conv_gemm_weights
from ooctrain.layers.kernels.cuda.shim import LOWEST_CAPABILITY, Capability, Kernel, why_no_ptx
from ooctrain.testing.ptx import assemble, read_ptx, why_no_assembler

HOPPER = (9, 0)
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
#: The common norm of all gradients is one float64 on the GPU (`clipping.py`); nothing else is.
WITH_DOUBLES = {
    clipping._total, clipping._add_squares, clipping._clip_factor, clipping._scale_by,
}  # fmt: skip
#: Shared memory of a block that needs no asking.
STATIC_SHARED_BYTES = 48 * 1024
REGISTERS = 65_536
needs_ptx = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())


def modules() -> list[ModuleType]:
    """All modules of CUDA kernels."""
    found = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    return [importlib.import_module(module.name) for module in found]


def made_by_shape() -> Iterator[Kernel]:
    """Kernels that a module makes when a shape first asks for them."""
    for columns in (conv_gemm.WIDE, conv_gemm.NARROW):
        yield conv_gemm._correlation_kernel(True, columns)
        yield conv_gemm._correlation_kernel(False, columns)
        yield conv_gemm_weights._weight_kernel(True, columns)
    yield conv_gemm_weights._weight_kernel(False, conv_gemm.NARROW)


def every_kernel() -> list[Kernel]:
    """Each once, by name."""
    found = set(made_by_shape())
    for module in modules():
        for value in vars(module).values():
            values = value.values() if isinstance(value, Mapping) else (value,)
            found |= {v for v in values if isinstance(v, Kernel)}
    return sorted(found, key=lambda kernel: (kernel.name, kernel.function.__code__.co_firstlineno))


def decorated(module: ModuleType) -> Iterator[tuple[str, str]]:
    """(module, function) for each function below a `@kernel(...)`."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(d, ast.Call) and ast.unparse(d.func) == "kernel" for d in node.decorator_list
        ):
            yield module.__name__, node.name


EVERY = every_kernel()


def check(kernel: Kernel, capability: Capability) -> None:
    """The laws of one kernel's compiled form."""
    facts = read_ptx(kernel, capability)
    assert f".target sm_{capability[0]}{capability[1]}" in facts.text
    if kernel not in WITH_DOUBLES:
        assert not facts.double_precision
    assert not facts.uses_local_memory
    assert not facts.count("atom")
    assert not facts.count("red.")
    if not why_no_assembler():
        resources = assemble(facts)
        assert resources.spill_bytes == resources.stack_bytes == 0
        assert resources.registers * kernel.threads <= REGISTERS
        assert resources.shared_bytes <= STATIC_SHARED_BYTES


def test_no_kernel_is_overlooked():
    found = {(kernel.function.__module__, kernel.function.__name__) for kernel in EVERY}
    written = {place for module in modules() for place in decorated(module)}
    assert len(written) > 40
    assert written <= found


@needs_ptx
@pytest.mark.parametrize("kernel", EVERY, ids=lambda kernel: kernel.name)
def test_for_the_lowest_capability_and_for_hopper(kernel):
    assert kernel.capability >= LOWEST_CAPABILITY
    for capability in sorted({kernel.capability, HOPPER}):
        check(kernel, capability)


@needs_ptx
@pytest.mark.slow
@pytest.mark.parametrize("kernel", EVERY, ids=lambda kernel: kernel.name)
def test_for_every_capability_from_the_stated_one(kernel):
    for capability in CAPABILITIES:
        if capability >= kernel.capability:
            check(kernel, capability)


@needs_ptx
def test_float64_is_where_it_is_said_to_be():
    for kernel in WITH_DOUBLES:
        assert read_ptx(kernel, LOWEST_CAPABILITY).double_precision
