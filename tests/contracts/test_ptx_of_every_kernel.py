"""Every CUDA kernel compiles for every GPU that it is promised for, and the text of it is sound.

No GPU and no driver is needed: NVVM, which Numba finds in a CUDA toolkit or in the package
nvidia-nvvm, makes PTX of a kernel; ptxas, where it is on the path, counts registers and spills. The
kernels are found by walking the modules, so a new one cannot be forgotten.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest
from support.ptx_facts import assemble, read_ptx, why_no_assembler
from support.quick import quick

from ooctrain.layers.kernels.cuda.every_kernel import every_kernel, modules
from ooctrain.layers.kernels.cuda.runtime.shim import (
    LOWEST_CAPABILITY,
    Capability,
    Kernel,
    cuda,
    float32,
    int32,
    kernel,
    why_no_ptx,
)

HOPPER = (9, 0)
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
#: Shared memory of a block that needs no asking.
STATIC_SHARED_BYTES = 48 * 1024
REGISTERS = 65_536
needs_ptx = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())


def decorated(module: ModuleType) -> Iterator[tuple[str, str]]:
    """(module, function) for each function below a `@kernel(...)`."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(d, ast.Call) and ast.unparse(d.func) == "kernel" for d in node.decorator_list
        ):
            yield module.__name__, node.name


EVERY = every_kernel()
#: A function that is compiled in several forms is tried in its first.
FIRST_FORMS = {kernel.function.__code__: n for n, kernel in reversed([*enumerate(EVERY)])}.values()


def test_no_kernel_is_overlooked():
    found = {(kernel.function.__module__, kernel.function.__name__) for kernel in EVERY}
    written = {place for module in modules() for place in decorated(module)}
    assert len(written) > 40
    assert written <= found


def laws_broken(kernel: Kernel, capability: Capability) -> list[str]:
    """What is wrong with a kernel's compiled form, in words; nothing if it is sound."""
    facts = read_ptx(kernel, capability)
    resources = None if why_no_assembler() else assemble(facts)
    laws = {
        "compiled for another GPU": f".target sm_{capability[0]}{capability[1]}" in facts.text,
        "float64": not facts.double_precision,
        "local memory": not facts.uses_local_memory,
        "atomics": not facts.count("atom") and not facts.count("red."),
        facts.wrongly_aligned: not facts.wrongly_aligned,
        "spills": resources is None or resources.spill_bytes == resources.stack_bytes == 0,
        "registers": resources is None or resources.registers * kernel.threads <= REGISTERS,
        "shared memory": resources is None or resources.shared_bytes <= STATIC_SHARED_BYTES,
    }
    return [what for what, holds in laws.items() if not holds]


@kernel("void(f4[::1])", threads=1024)
def unsound(x):
    mine = cuda.local.array(8, float32)
    for j in range(8):
        mine[j] = x[j] * 0.1
    cuda.atomic.add(x, 0, mine[int32(x[8])])


@needs_ptx
def test_the_laws_bite():
    assert laws_broken(unsound, HOPPER)[:3] == ["float64", "local memory", "atomics"]


@needs_ptx
@pytest.mark.parametrize(
    "kernel", quick(EVERY, *[*FIRST_FORMS][::12]), ids=lambda kernel: kernel.name
)
def test_for_hopper(kernel):
    assert LOWEST_CAPABILITY <= kernel.capability <= HOPPER
    assert not laws_broken(kernel, HOPPER)


@needs_ptx
@pytest.mark.slow
@pytest.mark.parametrize("kernel", EVERY, ids=lambda kernel: kernel.name)
def test_for_every_capability_from_the_stated_one(kernel):
    for capability in CAPABILITIES:
        if capability >= kernel.capability:
            assert laws_broken(kernel, capability) == [], capability
