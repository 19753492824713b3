"""The interpreter as a stub driver calls it: raw arguments, raw memory, errors as numbers.

The last tests train over the stub itself, with Numba's real compiler and linker.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from doubles import ptx_machine
from doubles.ptx_machine import LaunchRunner, Texts
from doubles.ptx_memory import OutOfBounds
from support.hand_ptx import module

from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx

ROOT = Path(__file__).parents[3]
ADD_ONE = """
    mul.wide.u32 %rd9, %r0, 4;
    add.s64 %rd10, %rd0, %rd9;
    ld.global.f32 %f1, [%rd10];
    add.f32 %f2, %f1, 0f3F800000;
    st.global.f32 [%rd10], %f2;
"""


def launch(runner, array, image, threads=32):
    """As the stub does it, pointer by pointer."""
    arguments = (ctypes.c_uint64 * 1)(array.ctypes.data)
    grid, block = ((ctypes.c_uint * 3)(n, 1, 1) for n in (1, threads))
    pointers = [ctypes.pointer(extent) for extent in (grid, block)]
    kept = ctypes.create_string_buffer(image, len(image))
    place = ctypes.addressof(kept)
    return runner(b"hand", place, len(image), *pointers, 0, ctypes.addressof(arguments))


def only(*arrays):
    """What `stub_hole` says where nothing but these arrays may be touched."""

    def hole(address, size_bytes):
        for array in arrays:
            start, end = array.ctypes.data, array.ctypes.data + array.nbytes
            if start <= address < end:
                return 0 if address + size_bytes <= end else end
        return address

    return hole


def test_an_image_of_ptx_is_run_and_one_of_machine_code_by_its_name():
    x, text = np.zeros(32, np.float32), module(ADD_ONE, 1)
    texts = Texts()
    runner = LaunchRunner(texts, only(x))
    assert launch(runner, x, text.encode() + b"\0") == 0
    assert (x == 1).all()
    assert launch(runner, x, b"\x7fELF machine code") == 209
    texts.keep(text)
    assert launch(runner, x, b"\x7fELF machine code") == 0
    assert (x == 2).all()
    assert (runner.launches, len(runner.faults)) == (2, 1)


def test_machine_code_of_another_process_is_known_by_itself_and_not_by_its_name():
    x, texts = np.zeros(32, np.float32), Texts()
    texts.keep(module(ADD_ONE, 1))
    add_two = module(ADD_ONE.replace("0f3F800000", "0f40000000"), 1).replace("hand", "elsewhere")
    texts.keep_for(b"\x7fELF of two", "hand", add_two)
    runner = LaunchRunner(texts, only(x))
    assert launch(runner, x, b"\x7fELF of two") == 0
    assert (x == 2).all()
    assert launch(runner, x, b"\x7fELF of one") == 0
    assert (x == 3).all()


def test_faults_end_a_launch_in_the_numbers_that_cuda_gives(monkeypatch):
    monkeypatch.setattr(ptx_machine, "MOST_PIECES", 100)
    x = np.zeros(32, np.float32)
    bodies = {
        700: ADD_ONE.replace("[%rd10], %f2", "[%rd10+8], %f2"),
        716: ADD_ONE.replace("[%rd10], %f2", "[%rd10+2], %f2"),
        715: "trap;", 702: "AGAIN: bra.uni AGAIN;",
        719: "setp.eq.s32 %p1, %r0, 3;\n@%p1 bar.sync 0;",
    }  # fmt: skip
    for status, body in bodies.items():
        runner = LaunchRunner(Texts(), only(x))
        assert launch(runner, x, module(body, 1).encode() + b"\0") == status
        assert len(runner.faults) == 1


def test_two_arrays_with_a_hole_between_them():
    whole = np.zeros(96, np.float32)
    first, second = whole[:32], whole[64:]
    body = ADD_ONE.replace("mul.wide.u32 %rd9, %r0, 4;", """
    and.b32 %r1, %r0, 1;
    mad.lo.s32 %r2, %r1, 64, %r0;
    mul.wide.u32 %rd9, %r2, 4;""")  # fmt: skip
    runner = LaunchRunner(Texts(), only(first, second))
    assert launch(runner, first, module(body, 1).encode(), threads=32) == 0
    assert whole[32:64].sum() == 0
    assert whole.sum() == 32
    runner = LaunchRunner(Texts(), only(first))
    assert launch(runner, first, module(body, 1).encode(), threads=32) == 700
    assert isinstance(runner.faults[0], OutOfBounds)


TRAIN = """
import hashlib
import json
import numpy as np
from support.same_bits import in_core, out_of_core
import ooctrain as oc
from ooctrain import nn
from ooctrain.engine.incore import initial_values
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings
from ooctrain.layers.kernels.cuda.runtime import shim
from doubles.stub_driver import Stub
from doubles.ptx_machine import LaunchRunner, Texts

stub, texts = Stub(total_bytes=1 << 28, version=13050), Texts()
runner = LaunchRunner(texts, stub.hole)
stub.on_launch(runner)
compile_kernel = shim.compiled

def compiled(kernel):
    made = compile_kernel(kernel)
    texts.keep_compiled(made)
    return made

shim.compiled = compiled

def network():
    oc.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(4 * 16, 5))

shape, rng = (2, 3, 8, 8), np.random.default_rng(0)
batches = [(rng.standard_normal(shape, np.float32), rng.integers(0, 5, 2))]
gpu = oc.trace(network(), shape, device="cuda")
start, scalars = initial_values(gpu, network()), {"lr": 0.1, "seed": 5}
(want,) = in_core(oc.trace(network(), shape), start, batches, scalars)
how = Settings(14 << 20, "window", "va", "cuda")
(found,) = out_of_core(prepare(gpu, how), how, start, batches, scalars)
off = max(float(abs(found[name] - want[name]).max()) for name in want)
bits = hashlib.sha256(b"".join(np.asarray(found[name]).tobytes() for name in sorted(found)))
print(json.dumps([off, runner.launches, list(map(str, runner.faults)), bits.hexdigest()]))
"""
#: Launches of our own load what the store holds: here the text itself, for want of a linker.
OWN_LAUNCHES = """
from ooctrain.layers.kernels.cuda.runtime import cubins
cubins._link = lambda ptx, capability: b""
"""


def train(code: str, **variables: str) -> str:
    """Trains one step over the stub; a hash of all that it left."""
    build = pytest.importorskip("doubles.stub_driver")
    if build.why_no_stub():
        pytest.skip(build.why_no_stub())
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, text=True, capture_output=True,
        env=build.environment() | {"PYTHONPATH": paths} | variables, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    off, launches, faults, bits = json.loads(done.stdout.splitlines()[-1])
    assert not faults
    assert launches > 10
    assert off < 1e-5
    return bits


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
def test_a_step_over_the_stub_has_the_values_of_the_cpu_device_by_either_launcher(tmp_path):
    bits = train(TRAIN, OOCTRAIN_LAUNCHER="numba")
    pytest.importorskip("ooctrain.devices.cuda.launches")
    own = {"OOCTRAIN_LAUNCHER": "driver", "OOCTRAIN_CUBINS": str(tmp_path)}
    assert train(OWN_LAUNCHES + TRAIN, **own) == bits
