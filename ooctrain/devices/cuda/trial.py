"""One kernel goes the whole way: compiled, linked, loaded, launched, and its result read back.

A compiler that makes code may not be one that this driver accepts. So everything that a first
training step would need is done once before, in a second. The usual causes (no NVVM, a toolkit
newer than the driver) are told apart only after a failure, which raises `DeviceUnavailable` with
the first line of what went wrong. Read next: `open.py`; `layers/kernels/cuda/runtime/launcher.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from ooctrain.devices.cuda.driver_abi import version_name
from ooctrain.devices.driver_calls import GpuDriver, give_back
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import DeviceUnavailable

COUNT = 32
_CUDA_HOME = "export CUDA_HOME=the toolkit's folder (`which nvcc` is its bin/nvcc)"


def try_kernel(driver: GpuDriver, make_kernels: Callable[[GpuDriver, int], Any]) -> None:
    """Runs a kernel of one line. Raises whatever is missing for that.

    Args:
        driver: opened, and current in this thread.
        make_kernels: as `open.make_kernels`.

    Raises:
        DeviceUnavailable: it ran, and left other values.
    """
    with ExitStack() as held:
        stream = driver.create_stream()
        held.callback(give_back, driver.destroy_stream, stream)
        host = driver.host_alloc(4 * COUNT)
        held.callback(give_back, driver.host_free, host)
        address = driver.allocate(4 * COUNT)
        held.callback(give_back, driver.free, address)
        kernels = make_kernels(driver, stream)
        kernels.count(kernels.array(address, (COUNT,), "uint32"))
        driver.copy_out(host, address, 4 * COUNT, stream)
        driver.synchronize_stream(stream)
        found = bytes_at(host, 4 * COUNT).view(np.uint32).tolist()
    if found != list(range(COUNT)):
        raise DeviceUnavailable(
            "a kernel ran and left wrong values", code="OOC-153", call="launch",
            numbers=f"{found[:4]}... in place of 0, 1, 2, 3",
            fix="`ooctrain doctor` names driver and compiler; another driver, or --device cpu",
        )  # fmt: skip


def why_it_failed(said: str, driver_version: int, capability: tuple[int, int]) -> tuple[str, str]:
    """(what is wrong, what mends it), after `try_kernel` has failed; empty: nothing usual.

    Args:
        said: the failure's own words; a driver or linker that refuses PTX says so.
    """
    try:
        # Loads Numba, and that it cannot be loaded may be what is wrong.
        from ooctrain.layers.kernels.cuda.runtime import launcher, shim

        if shim.why_no_ptx():
            return "NVIDIA's compiler library, NVVM, is not found", _CUDA_HOME
        made = made_for(launcher.compiled_text(capability))
    except Exception:  # the failure itself is told already
        return "", ""
    if made > driver_version and "PTX" in said.upper():
        served = version_name(driver_version)
        return (
            f"the compiler makes code for CUDA {version_name(made)}, and the driver serves "
            f"{served}", f"a newer driver, or a toolkit of CUDA {served}",
        )  # fmt: skip
    return "", ""


def made_for(ptx: str) -> int:
    """The version of CUDA that brought the PTX that a text is written in: 9.1 came with 13.1."""
    found = re.search(r"^\.version (\d+)\.(\d+)", ptx, re.MULTILINE)
    major, minor = (int(found.group(1)), int(found.group(2))) if found else (0, 0)
    return (major + 4) * 1000 + minor * 10
