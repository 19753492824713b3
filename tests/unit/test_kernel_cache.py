"""The disk cache of compiled kernels: named by all that machine code depends on, never stale."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numba
import pytest
from numba.core import event
from support.quick import all_but

from ooctrain.layers.kernels.cpu.runtime import kernel_jit
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import KeptCode
from ooctrain.sched.search import jit as search_jit

ROOM = Path(kernel_jit.__file__).parents[1]

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

@kernel("void(f4[::1], i8, i8, i8)")
def add_one(y, lo, hi, thread):
    for i in range(lo, hi):
        y[i] += 1

def run():
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    scale(x, y, 0, 4, 0)
    add_one(y, 0, 4, 0)
    return y[0] - 1, sum(sum(f.from_python.stats.cache_hits.values()) for f in (scale, add_one))
"""


def copy_room(tmp_path: Path) -> Path:
    room = tmp_path / "room"
    shutil.copytree(ROOM, room, ignore=shutil.ignore_patterns("__pycache__"))
    return room


def test_every_source_changes_the_hash(tmp_path):
    """A changed, added, removed or renamed file anywhere in the room gives another folder."""
    room = copy_room(tmp_path)
    original = kernel_jit.source_hash(room)
    assert original == kernel_jit.source_hash(ROOM), "only contents and relative names may count"
    for path in sorted(room.rglob("*.py")):
        before = path.read_bytes()
        path.write_bytes(before + b"\n# one more line\n")
        assert kernel_jit.source_hash(room) != original, path.name
        path.write_bytes(before)
    (room / "extra.py").write_text("")
    assert kernel_jit.source_hash(room) != original
    (room / "extra.py").unlink()
    (room / "layout.py").rename(room / "layout2.py")
    assert kernel_jit.source_hash(room) != original
    (room / "layout2.py").rename(room / "layout.py")
    assert kernel_jit.source_hash(room) == original


@pytest.mark.parametrize("variable", ["OOCTRAIN_SIMD", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"])
def test_target_overrides_change_the_hash(monkeypatch, variable):
    monkeypatch.delenv(variable, raising=False)
    original = kernel_jit.source_hash()
    monkeypatch.setenv(variable, "avx2")
    assert kernel_jit.source_hash() != original


def run_kernel(folder: Path) -> tuple[float, int, str]:
    """Runs the kernels of `folder` in a fresh process: (result, kernels that came from disk, what
    was said on stderr)."""
    paths = os.pathsep.join([str(folder), str(ROOM.parents[3])])
    environment = {
        **os.environ, "OOCTRAIN_CACHE": str(folder / "cache"), "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",  # bytecode of a file is known by its size and its second
    }  # fmt: skip
    code = "import room_kernel; print(*room_kernel.run())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    value, hits = done.stdout.split()
    return float(value), int(hits), done.stderr


def make_kernels(folder: Path) -> None:
    (folder / "room_runtime").mkdir()
    for name in ("kernel_jit.py", "__init__.py"):
        shutil.copy(ROOM / "runtime" / name, folder / "room_runtime" / name)
    (folder / "room_kernel.py").write_text(KERNEL.format(jit="room_runtime.kernel_jit"))
    (folder / "callee.py").write_text(CALLEE.format(factor=2))


@pytest.mark.slow
def test_an_edited_callee_is_never_served_stale(tmp_path):
    """Numba alone would keep the old binary, for the kernel's own file has not changed."""
    make_kernels(tmp_path)
    assert run_kernel(tmp_path) == (2.0, 0, "")
    assert run_kernel(tmp_path) == (2.0, 2, ""), "an unchanged kernel must come from the disk"
    (tmp_path / "callee.py").write_text(CALLEE.format(factor=3))
    assert run_kernel(tmp_path) == (3.0, 0, "")


def flip(file: Path, place: float) -> None:
    """Changes one bit, so far into the file."""
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    file.write_bytes(content)


def to_folder(file: Path) -> None:
    """Cannot be read, nor be replaced as a file is: root may read whatever its mode says."""
    file.unlink()
    file.mkdir()
    (file / "lost+found").write_text("")


DAMAGE = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "empty": lambda file: file.write_bytes(b""),
    "garbage": lambda file: file.write_bytes(random.Random(1).randbytes(5000)),
    "another pickle": lambda file: file.write_bytes(pickle.dumps(("0.1", {"a": 1}))),
    "appended": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "unreadable": to_folder,
    "a bit at the start": lambda file: flip(file, 0.0),
    "a bit in the code": lambda file: flip(file, 0.6),
    "a bit at the end": lambda file: flip(file, 1.0),
}


@pytest.mark.slow
def test_a_damaged_cache_is_made_anew_with_one_line(tmp_path):
    make_kernels(tmp_path)
    assert run_kernel(tmp_path)[:2] == (2.0, 0)
    files = sorted((tmp_path / "cache").rglob("*.nb[ic]"))
    for damage, file in zip(("truncated", "unreadable"), files, strict=True):
        DAMAGE[damage](file)
    value, hits, said = run_kernel(tmp_path)
    assert (value, hits) == (2.0, 0)
    assert said.count("are damaged") == 1, said
    assert run_kernel(tmp_path) == (2.0, 2, ""), "it is as good as new"


def half(x):
    return x / 2


@pytest.mark.parametrize("kind", all_but(DAMAGE, *[*DAMAGE][1::2]))
def test_damaged_code_is_never_run(tmp_path, kind):
    """Whatever the damage: the kernel is right, and kept again."""

    def compiled():
        with kernel_jit.kept_in(tmp_path / "kernels-1"):
            kernel = numba.njit("f4(f4)", cache=True)(half)
        assert kernel(3.0) == 1.5
        return sum(kernel.stats.cache_hits.values())

    assert [compiled(), compiled()] == [0, 1]
    (file,) = tmp_path.rglob("*.nb[ic]")
    DAMAGE[kind](file)
    kernel_jit._warn_of_damage.cache_clear()
    with pytest.warns(UserWarning, match="are damaged"):
        assert compiled() == 0
    assert compiled() == 1
    assert list(tmp_path.rglob("*.nb*")) == [file]


def test_a_function_from_the_disk_is_machine_code_until_a_caller_is_compiled(tmp_path):
    """Its module for callers to be compiled is most of what it would hold."""
    for hits in (0, 1):
        with kernel_jit.kept_in(tmp_path / "kernels-1"):
            kernel = numba.njit("f4(f4)", cache=True)(half)
        assert sum(kernel.stats.cache_hits.values()) == hits
    (loaded,) = kernel.overloads.values()
    assert loaded.library._shared_module is None

    def of_both(x):
        return kernel(x) + kernel(-2 * x)

    assert numba.njit("f4(f4)")(of_both)(3.0) == -1.5
    assert kernel(3.0) == 1.5


def test_code_of_other_sources_or_versions_is_not_taken(tmp_path):
    """Such as a folder that was copied from another machine under this one's name."""
    one, other = (KeptCode(str(tmp_path), "f", None, sources) for sources in ("0.67 a", "0.68 a"))
    one.save("key", [1])
    kernel_jit._warn_of_damage.cache_clear()
    assert one.load("key") == [1]
    assert one.load("another") is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert other.load("key") is None
        other.save("key", [2])
    assert other.load("key") == [2]


def test_kernels_of_several_types_of_arguments_are_all_kept(tmp_path):
    kept = KeptCode(str(tmp_path), "f", None, "a")
    kept.save("floats", 1)
    kept.save("integers", 2)
    assert (kept.load("floats"), kept.load("integers")) == (1, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["f.nbc"]


def test_a_disk_that_is_full_keeps_nothing_and_stops_nobody(tmp_path):
    kept = KeptCode(str(tmp_path / "no folder"), "f", None, "a")
    kernel_jit._warn_of_disk.cache_clear()
    with pytest.warns(UserWarning, match="cannot be kept"):
        kept.save("key", 1)


OTHER_ISA = """
import sys
import numpy as np
sys.path.insert(0, "tests/unit")
from test_kernels_conv import SHAPES, arrays, reference, run
from ooctrain.layers.kernels.cpu.simd import simd
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
assert simd.ISA == {isa!r}
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


class Interrupting(event.Listener):
    """This process gets signals as soon as Numba compiles something."""

    def __init__(self, *numbers: int):
        self.numbers = numbers

    def on_start(self, event):
        """Sends them."""
        for number in self.numbers:
            signal.raise_signal(number)

    def on_end(self, event):
        """Nothing more."""

    def __enter__(self):
        # A shell starts what runs in the background so that it ignores Ctrl-C.
        self.before = signal.signal(signal.SIGINT, signal.default_int_handler)
        event.register("numba:compile", self)

    def __exit__(self, *raised):
        event.unregister("numba:compile", self)
        signal.signal(signal.SIGINT, self.before)


@kernel_jit.uninterrupted
@numba.njit
def doubled(x):
    return 2 * x


def test_an_interrupt_waits_until_numba_is_done():
    """A callback of LLVM swallowed it, and who had pressed Ctrl-C was told that a library had "no
    compiled object yet"; or half of a function was left, in which the next call crashed."""
    with Interrupting(signal.SIGINT), pytest.raises(KeyboardInterrupt):
        doubled(3)
    assert len(doubled.signatures) == 1
    assert doubled(3) == 6


def test_a_second_interrupt_does_not_wait():
    with Interrupting(signal.SIGINT, signal.SIGINT), pytest.raises(KeyboardInterrupt):
        doubled(3.0)
    assert (numba.float64,) not in doubled.signatures
    assert doubled(3.0) == 6.0


@pytest.mark.parametrize("name", ["kernel", "search"])
def test_kernels_and_searches_are_compiled_so(tmp_path, monkeypatch, name):
    monkeypatch.setattr(kernel_jit, "cache_folder", lambda: tmp_path / "kernels")
    monkeypatch.setattr(search_jit, "folder_of", lambda sources: tmp_path / "search")
    decorator = kernel_jit.kernel("i8(i8)") if name == "kernel" else search_jit.compiled
    with Interrupting(signal.SIGINT), pytest.raises(KeyboardInterrupt):
        decorator(plus_one)(1)
    assert list(tmp_path.rglob("*.nbc"))  # it was kept, so it was done


def plus_one(x):
    return x + 1
