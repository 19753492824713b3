"""Numba's real compiler, linker and launches over the stub driver: the whole way of one kernel.

Each test is a process that finds the stub where it looks for CUDA's driver. Launches are run by
Python where a test gives a function for that (`Stub.on_launch`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doubles.stub_driver import environment, why_no_stub
from support.quick import quick

from ooctrain.layers.kernels.cuda.runtime import launcher as launchers
from ooctrain.layers.kernels.cuda.runtime.cubins import fill
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx

REASON = why_no_stub() or why_no_ptx()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
ROOT = Path(__file__).parents[3]

BEGIN = """
import ctypes, json, sys, warnings
import numpy as np
from ooctrain.machine import doctor
from doubles.stub_driver import Stub
stub, told = Stub(total_bytes=1 << 28, **OPTIONS), {}

def count(name, image, image_bytes, grid, block, shared_bytes, arguments):
    words = (ctypes.c_uint64 * 7).from_address(arguments)  # array: 0 0 count, item, data, n, step
    (ctypes.c_uint32 * 32).from_address(words[4])[:] = range(32)
    return 0

def tell(case):
    found = doctor.check_gpu_compiler()
    told[case] = [found.level, found.text, found.fix]
"""
END = "\nprint(json.dumps(told))\n"


def findings(code: str, **options: int) -> dict[str, list[str]]:
    """What a process over the stub tells of its compiler: {case: [level, text, fix]}."""
    given = environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    code = f"OPTIONS = {options}\n{BEGIN}{code}{END}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=given, text=True,
        capture_output=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=quick(["numba", "driver"], 1))
def launcher(request, monkeypatch, tmp_path):
    monkeypatch.setenv("OOCTRAIN_LAUNCHER", request.param)
    monkeypatch.setenv("OOCTRAIN_CUBINS", str(tmp_path))
    return request.param


@pytest.mark.slow
def test_the_compiler_is_tried_to_the_end(launcher):
    found = findings("""
tell("nobody runs it")
stub.on_launch(count)
tell("well")
told["launches"] = [stub.number("launches"), stub.number("contexts_made"), stub.number("modules")]
stub.fail(0, 716, "cuLaunchKernel cuLaunchKernelEx")
tell("launch")
tell("after that")
""")
    level, text, _ = found["nobody runs it"]
    assert level == "fail"
    assert "a kernel ran and left wrong values: " in text
    assert found["well"][0] == "ok"
    assert found["launches"] == [2, 1, 1]
    level, text, _ = found["launch"]
    assert level == "fail"
    assert "MISALIGNED_ADDRESS" in text
    # What the first failure has left is told of every later one.
    assert found["after that"][1].endswith("no GPU to use it")


@pytest.mark.slow
def test_what_is_usually_wrong_with_a_compiler_has_its_own_words(launcher):
    found = findings("""
loading = "cuLibraryLoadData cuModuleLoadDataEx cuModuleLoadData"
stub.fail(0, 209, loading)
tell("load")
stub.fail(0, 222, loading)
tell("PTX")
import os, shutil
shutil.rmtree(os.environ["OOCTRAIN_CUBINS"], ignore_errors=True)
from numba.cuda.cudadrv import nvvm
def missing(*arguments):
    raise nvvm.NvvmSupportError("libNVVM cannot be found\\nmore")
nvvm.NVVM.__new__ = missing
tell("NVVM")
""")
    assert {level for level, _, _ in found.values()} == {"fail"}
    assert "NO_BINARY_FOR_GPU" in found["load"][1]
    assert "CUDA_HOME" in found["NVVM"][2]
    assert "NVVM, is not found: " in found["NVVM"][1]
    if "and the driver serves" in found["PTX"][1]:  # NVVM here is newer than CUDA 13.0
        assert "the driver serves 13.0: " in found["PTX"][1]
        assert "toolkit of CUDA 13.0" in found["PTX"][2]


@pytest.mark.slow
def test_a_linker_that_refuses_is_told_with_its_first_line(monkeypatch, tmp_path):
    monkeypatch.setenv("OOCTRAIN_LAUNCHER", "driver")
    monkeypatch.setenv("OOCTRAIN_CUBINS", str(tmp_path))
    level, text, _ = findings("""
from ooctrain.layers.kernels.cuda.runtime import cubins
def refuse(ptx, target):
    raise RuntimeError("nvJitLink refuses it\\nand more")
cubins._link = refuse
tell("link")
""")["link"]
    assert level == "fail"
    assert "nvJitLink refuses it" in text
    assert "and more" not in text


def test_a_toolkit_of_a_newer_cuda_is_told_with_both_versions():
    level, text, fix = findings('tell("newer")', version=12080)["newer"]
    assert level == "fail"
    assert "code for CUDA 13, and the driver serves 12.8" in text
    assert "nvidia-cuda-nvrtc 13" in text
    assert "numba-cuda[cu12]" in fix


@pytest.mark.slow
def test_where_cubins_are_there_no_compiler_is_needed(monkeypatch, tmp_path):
    fill(tmp_path, [launchers.count_up], [(9, 0)])
    monkeypatch.setenv("OOCTRAIN_LAUNCHER", "driver")
    monkeypatch.setenv("OOCTRAIN_CUBINS", str(tmp_path))
    code = """
from numba.cuda.cudadrv import nvvm
nvvm.NVVM.__new__ = None
stub.on_launch(count)
tell("well")
"""
    assert findings(code)["well"][0] == "ok"
    monkeypatch.setenv("OOCTRAIN_CUBINS", str(tmp_path / "empty"))
    assert findings(code)["well"][0] == "fail"


TRAIN = """
from benchmarks.gpu.networks import PLAIN, SCALARS, _settings
from ooctrain.engine.incore import initial_values
from ooctrain.execution.fit import prepare
import ooctrain as oc
from support.same_bits import out_of_core
stub.on_launch(count)  # for the trial of the compiler
trace = oc.trace(PLAIN.build(), PLAIN.shape, device="cuda")
how = _settings("50%", "window", "va")
prepared = prepare(trace, how)
stub.on_launch(None)
start = initial_values(trace, PLAIN.build())
begun = stub.number("launches")
try:
    out_of_core(prepared, how, start, [PLAIN.batch(1), PLAIN.batch(2)], SCALARS)
except Exception as error:  # nobody runs the kernels, so that no value is right
    told["raised"] = repr(error)
told["launches"] = stub.number("launches") - begun
told["copies"] = [stub.calls("cuMemcpyHtoDAsync_v2") > 0, stub.calls("cuMemcpyDtoHAsync_v2") > 0]
told["maps"] = stub.calls("cuMemMap") > 4
names = "contexts_made hidden_waits pageable_copies used_bytes streams events host mappings sticky"
told["counts"] = {name: stub.number(name) for name in names.split()}
"""


@pytest.mark.slow
def test_a_network_trains_out_of_core_by_the_real_path(tmp_path, launcher):
    """No rule of the driver is broken, however late it works, and all is given back."""
    found = findings(TRAIN, fresh=0)
    assert "raised" not in found
    assert found["launches"] > 40
    assert found["copies"] == [True, True]
    assert found["maps"]
    assert found["counts"] == {
        "contexts_made": 1, "hidden_waits": 0, "pageable_copies": 0, "used_bytes": 0, "streams": 0,
        "events": 0, "host": 0, "mappings": 0, "sticky": 0,
    }  # fmt: skip
    assert bool(list(tmp_path.glob("*.cubin"))) == (launcher == "driver")
