"""A process opens its GPU once, however many things ask for it: counted by the stub driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from doubles.stub_driver import environment, read_report, why_no_stub

pytestmark = pytest.mark.skipif(bool(why_no_stub()), reason=why_no_stub())
ROOT = Path(__file__).parents[2]

#: What a command does from its first look to its end, with a thread of its own in the midst.
ASK_OFTEN = """
import threading
from ooctrain.devices.interface import Debug
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.device import CudaDevice
from ooctrain.machine import doctor
for _ in range(2):
    gpu = cuda_open.look_at_gpu()
    for check in (doctor.check_gpu, doctor.check_gpu_mapping, doctor.check_gpu_link):
        found = check()
        assert found.level == "ok", found
drivers = []
for _ in range(2):
    device = CudaDevice(cuda_open.open_cuda_driver(), lambda driver, stream: None, 4 << 20, 4096)
    device.close()
    elsewhere = threading.Thread(target=lambda: drivers.append(cuda_open.look_at_gpu()))
    elsewhere.start()
    elsewhere.join()
assert drivers[0].name == gpu.name
"""


def counts_of(code: str, folder: Path, **options: int) -> dict[str, int]:
    """What the stub driver has counted in a process of its own."""
    report = folder / "report"
    given = environment(**options) | {
        "OOCTRAIN_STUB_REPORT": str(report), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(read_report(report))


def test_the_context_is_made_once_and_everything_else_is_given_back(tmp_path):
    found = counts_of(ASK_OFTEN, tmp_path, total_bytes=1 << 28, fresh=0)
    assert found["contexts_made"] == found["cuDevicePrimaryCtxRetain"] == 1
    assert "cuDevicePrimaryCtxRelease_v2" not in found
    kept = {"used_bytes", "references", "reservations", "mappings", "streams", "events", "host"}
    assert {name: found[name] for name in kept} == dict.fromkeys(kept, 0)


def test_a_fork_asks_anew_and_is_told_what_to_do(tmp_path):
    found = counts_of(
        "import os\n"
        "from ooctrain.devices.cuda import open as cuda_open\n"
        "from ooctrain.errors import DeviceUnavailable\n"
        "cuda_open.look_at_gpu()\n"
        "if not (child := os.fork()):\n"
        "    try: cuda_open.look_at_gpu()\n"
        "    except DeviceUnavailable as error: os._exit(0 if 'spawn' in error.fix else 2)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "cuda_open.look_at_gpu()\n", tmp_path, fresh=0,
    )  # fmt: skip
    assert found["contexts_made"] == 1
