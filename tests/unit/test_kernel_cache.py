"""The disk cache of compiled kernels: named by all that machine code depends on, never stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ooctrain.layers.kernels.cpu.runtime import jit

ROOM = Path(jit.__file__).parents[1]

CALLEE = """
import numba

@numba.njit
def weight(x):
    return x * {factor}
"""

KERNEL = """
import numpy as np
from callee import weight
from {jit} import kernel

@kernel("void(f4[::1], f4[::1], i8, i8, i8)")
def scale(x, y, lo, hi, thread):
    for i in range(lo, hi):
        y[i] = weight(x[i])

def run():
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    scale(x, y, 0, 4, 0)
    return y[0], sum(scale.stats.cache_hits.values())
"""


def copy_room(tmp_path: Path) -> Path:
    room = tmp_path / "room"
    shutil.copytree(ROOM, room, ignore=shutil.ignore_patterns("__pycache__"))
    return room


def test_every_source_changes_the_hash(tmp_path):
    """A changed, added, removed or renamed file anywhere in the room gives another folder."""
    room = copy_room(tmp_path)
    original = jit.source_hash(room)
    assert original == jit.source_hash(ROOM), "only contents and relative names may count"
    for path in sorted(room.rglob("*.py")):
        before = path.read_bytes()
        path.write_bytes(before + b"\n# one more line\n")
        assert jit.source_hash(room) != original, path.name
        path.write_bytes(before)
    (room / "extra.py").write_text("")
    assert jit.source_hash(room) != original
    (room / "extra.py").unlink()
    (room / "layout.py").rename(room / "layout2.py")
    assert jit.source_hash(room) != original
    (room / "layout2.py").rename(room / "layout.py")
    assert jit.source_hash(room) == original


@pytest.mark.parametrize("variable", ["OOCTRAIN_SIMD", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"])
def test_target_overrides_change_the_hash(monkeypatch, variable):
    monkeypatch.delenv(variable, raising=False)
    original = jit.source_hash()
    monkeypatch.setenv(variable, "avx2")
    assert jit.source_hash() != original


def run_kernel(folder: Path) -> tuple[float, int]:
    """Runs the kernel of `folder` in a fresh process: (result, kernels that came from disk)."""
    environment = {**os.environ, "OOCTRAIN_CACHE": str(folder / "cache"), "PYTHONPATH": str(folder)}
    code = "import room_kernel; print(*room_kernel.run())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    value, hits = done.stdout.split()
    return float(value), int(hits)


def test_an_edited_callee_is_never_served_stale(tmp_path):
    """Numba alone would keep the old binary, for the kernel's own file has not changed."""
    (tmp_path / "room_runtime").mkdir()
    for name in ("jit.py", "__init__.py"):
        shutil.copy(ROOM / "runtime" / name, tmp_path / "room_runtime" / name)
    (tmp_path / "room_kernel.py").write_text(KERNEL.format(jit="room_runtime.jit"))
    (tmp_path / "callee.py").write_text(CALLEE.format(factor=2))
    assert run_kernel(tmp_path) == (2.0, 0)
    assert run_kernel(tmp_path) == (2.0, 1), "an unchanged kernel must come from the disk"
    (tmp_path / "callee.py").write_text(CALLEE.format(factor=3))
    assert run_kernel(tmp_path) == (3.0, 0)


OTHER_ISA = """
import sys
import numpy as np
sys.path.insert(0, "tests/unit")
from test_kernels_conv import SHAPES, arrays, reference, run
from ooctrain.layers.kernels.cpu.simd import vector
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
assert vector.ISA == {isa!r}
pool = ThreadPool(2)
for name, algorithm in {cases!r}:
    data = arrays(SHAPES[name], integers=True)
    got, want = run(pool, SHAPES[name], algorithm, data), reference(SHAPES[name], *data)
    for a, b in zip(got, want):
        np.testing.assert_array_equal(a, b.astype(np.float32))
print("equal")
"""
FEW = ("odd channels", "3x3, stride 2", "stem", "two groups", "few channels, many filters")
DIRECT = [(name, "direct") for name in FEW]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isa", "cases"),
    [("avx2", [*DIRECT, ("3x3", "winograd2")]), ("generic", DIRECT)],
    ids=["avx2", "generic"],
)
def test_other_instruction_sets_agree(isa, cases):
    """Kernels for narrower vectors give the same sums of whole numbers, each in its process."""
    root = ROOM.parents[3]
    environment = {**os.environ, "OOCTRAIN_SIMD": isa, "PYTHONPATH": str(root)}
    code = OTHER_ISA.format(isa=isa, cases=cases)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True
    )
    if isa == "avx2" and done.returncode < 0:
        pytest.skip("this CPU has no AVX2")
    assert done.stdout.strip() == "equal", done.stderr
