"""Kernels compile by whichever CUDA target of Numba is there, beside a NumPy without row_stack too.

numba-cuda 0.30.4 asks NumPy for `row_stack`, which NumPy 2.5 has no more; Numba's built-in target
does without, and stands in where numba-cuda is absent or broken. Which target a process has is
settled when it imports Numba, so that each case is a process of its own.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx

pytestmark = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "ooctrain"
CHOOSES = "layers/kernels/cuda/runtime"

#: As if numba-cuda were not installed.
ABSENT = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "NumbaCudaFinder"]
"""
#: As NumPy 2.5 is.
NEW_NUMPY = """
import numpy
if hasattr(numpy, "row_stack"):
    del numpy.row_stack
    numpy.__version__ = "2.5.0"
"""
QUICK = """
from ooctrain.layers.kernels.cuda.conv import conv_tf32
from ooctrain.layers.kernels.cuda.runtime import runner
kernels, capabilities = [runner.count_up, conv_tf32._correlate], [(9, 0)]
"""
EVERY = """
sys.path.insert(0, "tests")
from contracts.test_ptx_of_every_kernel import EVERY as kernels
capabilities = [(7, 5), (8, 0), (9, 0)]
"""
COMPILE = """
import numpy
from support.ptx_facts import assemble, read_ptx, why_no_assembler
for kernel in kernels:
    for capability in capabilities:
        if capability >= kernel.capability:
            facts = read_ptx(kernel, capability)
            assert f".target sm_{capability[0]}{capability[1]}" in facts.text
            if "assemble" in sys.argv and not why_no_assembler():
                assemble(facts)
from numba import cuda
print(cuda.implementation, hasattr(numpy, "row_stack"))
"""


def compiled_by(*pieces: str, path: Path | None = None, arguments: tuple[str, ...] = ()) -> str:
    """What a process says that runs these pieces: the target that it has used."""
    code = "import sys\n" + "".join(pieces)
    paths = [str(p) for p in (path, ROOT) if p]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code, *arguments], text=True,
        capture_output=True, env=environment, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_only_the_room_that_chooses_a_target_imports_one():
    """Whoever imports `numba.cuda` first settles which target the process has."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom) and imports_target(node)
    }
    assert found == {f"{CHOOSES}/shim.py"}


def imports_target(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether it is `numba.cuda`, or something in it."""
    module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return any(f"{module}{alias.name}.".startswith("numba.cuda.") for alias in node.names)


@pytest.mark.slow
def test_numba_cuda_beside_a_numpy_without_row_stack():
    assert compiled_by(NEW_NUMPY, QUICK, COMPILE) == "NVIDIA False"


@pytest.mark.slow
def test_the_built_in_target_where_numba_cuda_is_absent():
    assert compiled_by(ABSENT, NEW_NUMPY, QUICK, COMPILE) == "Built-in False"


@pytest.mark.slow
def test_the_built_in_target_where_numba_cuda_is_broken(tmp_path):
    broken = tmp_path / "numba_cuda" / "numba" / "cuda"
    broken.mkdir(parents=True)
    (tmp_path / "numba_cuda" / "__init__.py").touch()
    (broken / "__init__.py").write_text("raise ImportError('no cuda.bindings')", encoding="ascii")
    assert compiled_by(NEW_NUMPY, QUICK, COMPILE, path=tmp_path) == "Built-in False"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["", ABSENT], ids=["numba-cuda", "built-in"])
def test_every_kernel_compiles_by_both(target):
    said = compiled_by(target, NEW_NUMPY, EVERY, COMPILE, arguments=("assemble",))
    assert said == ("Built-in False" if target else "NVIDIA False")
