"""How a GPU is found, tried, opened; every possible fault is reported before training.

The faults that make a run fail are looked for in the order in which a user would fix them (driver,
device, compiler, virtual memory, kernels), by trying rather than by reading version numbers where
that is possible; each has one error with the command that fixes it. The result is a `Gpu`, which
planning needs, and later a `CudaDevice`. The driver is loaded on first use. Read next: `device.py`,
`devices/probe.py`, `machine/doctor.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import numpy as np

from ooctrain.devices.cuda.device import CudaDevice, Kernels
from ooctrain.devices.cuda.driver import open_cuda_driver
from ooctrain.devices.cuda.driver_abi import version_name
from ooctrain.devices.driver_calls import GpuDriver, give_back
from ooctrain.devices.host_file import HostFile
from ooctrain.devices.interface import Debug, Link
from ooctrain.devices.probe import probe
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import ConfigError, DeviceUnavailable, OoctrainError, VmmUnavailable
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.step.trace import Trace

CUDA_13 = 13000
LEAST_NUMBA_CUDA = "0.30.4"
#: Tensor cores for TF32, and asynchronous copies to shared memory, come with these.
TF32_CAPABILITY = (8, 0)
#: What GPUs map in; assumed where the device maps nothing.
USUAL_GRANULARITY_BYTES = 2 << 20
#: NVIDIA's compiler as wheels: {extra of numba-cuda: the distribution that has the version}.
TOOLKIT_WHEELS = {"cu13": "nvidia-cuda-nvrtc", "cu12": "nvidia-cuda-nvrtc-cu12"}

Installed = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Gpu:
    """What is known of a GPU before anything is claimed on it.

    Args:
        name: as its maker calls it.
        version: that the driver serves; 13020 is CUDA 13.2.
        capability: compute capability, (major, minor).
        granularity_bytes: what sizes and addresses of mappings are multiples of.
        free_bytes, total_bytes: its memory, when it was looked at.
        mapping_problem: why nothing can be mapped; empty where it can.
    """

    name: str
    version: int
    capability: tuple[int, int]
    granularity_bytes: int
    free_bytes: int
    total_bytes: int
    mapping_problem: str = ""


def look_at_gpu() -> Gpu:
    """Opens the GPU, tries what matters, and closes it.

    Raises:
        DeviceUnavailable: no driver, an old one, no device, one that is held by others, or this
            process is a fork of one that uses CUDA.
    """
    driver = open_cuda_driver()
    try:
        problem = mapping_problem(driver)
        granularity = USUAL_GRANULARITY_BYTES if problem else driver.granularity()
        free, total = driver.memory_info()
        return Gpu(
            driver.name, driver.version, driver.capability(), granularity, free, total, problem
        )
    finally:
        driver.close()


def mapping_problem(driver: GpuDriver) -> str:
    """Why virtual addressing does not work; empty text where it does."""
    try:
        probe(driver)
    except VmmUnavailable as error:
        return f"{error.where}: {error.numbers}"
    return ""


def require_compiler(gpu: Gpu, installed: Installed | None = None) -> None:
    """Makes sure that kernels can be compiled for the GPU, and that its driver runs them.

    Cost: a second, once in a process.

    Args:
        installed: {distribution: version or None}; default: what pip has installed.

    Raises:
        DeviceUnavailable: numba-cuda or NVIDIA's toolkit is missing, or newer than the driver, or
            a kernel of one line does not run.
    """
    found = installed or installed_version
    fitting = _extra(gpu.version)
    newer = [wheel for extra, wheel in TOOLKIT_WHEELS.items() if extra > fitting and found(wheel)]
    if newer and found(TOOLKIT_WHEELS[fitting]) is None:
        raise _no_compiler(
            f"the compiler makes code for CUDA 13, and the driver serves "
            f"{version_name(gpu.version)}", gpu.version, f"{newer[0]} {found(newer[0])}",
        )  # fmt: skip
    try:
        _try_compiler()
    except Exception as error:  # a library that is not found shows as any of a dozen errors
        raise _explained(error, gpu, found) from error


def require_kernels(trace: Trace, gpu: Gpu) -> None:
    """Makes sure that every operation of a step runs on the GPU.

    Raises:
        ConfigError: one has no kernel for GPUs, or wants what this GPU does not have.
    """
    missing = sorted({call.op.name for call in trace.calls if not CUDA.runs(call.op)})
    if missing:
        where = next(call.name for call in trace.calls if call.op.name == missing[0])
        raise ConfigError(
            f"{', '.join(missing)} has no kernel for the GPU", code="OOC-116", where=where,
            fix="--device cpu; or give the operation a method `cuda` (ooctrain/engine/own_op.py)",
        )  # fmt: skip
    wants_tf32 = any(getattr(call.op, "algorithm", "") == "tf32" for call in trace.calls)
    if wants_tf32 and gpu.capability < TF32_CAPABILITY:
        raise ConfigError(
            "this GPU has no tensor cores for TF32", code="OOC-116", where=gpu.name,
            numbers=f"compute capability {gpu.capability}, {TF32_CAPABILITY} is needed",
            fix="leave out --allow-tf32",
        )  # fmt: skip


def open_device(
    budget_bytes: int, host: int | HostFile, *, piece_bytes: int | None, link: Link, debug: Debug
) -> CudaDevice:
    """The GPU with an arena of the budget; see `CudaDevice` for what it takes and raises."""
    driver = open_cuda_driver()
    return CudaDevice(
        driver, make_kernels, budget_bytes, host, piece_bytes=piece_bytes, link=link,
        debug=debug,
    )  # fmt: skip


def make_kernels(driver: GpuDriver, stream: int) -> Kernels:
    """What runs operations on a stream, by the launcher that `$OOCTRAIN_LAUNCHER` names: "driver"
    (the default), launches of our own (`launches.py`); "graph", these, and steps recorded as a
    whole where they can be (`step_graph.py`); or "numba".

    Raises:
        ConfigError: there is no such launcher.
    """
    name = os.environ.get("OOCTRAIN_LAUNCHER") or "driver"
    if name in ("driver", "graph"):
        # Not at the top, since it loads Numba; planning for a GPU and looking at it do without.
        from ooctrain.devices.cuda.launches import DriverKernels

        return DriverKernels(cast("Any", driver), stream, graphs=name == "graph")
    if name != "numba":
        raise ConfigError(
            f"unknown launcher {name!r}", where="$OOCTRAIN_LAUNCHER",
            fix="OOCTRAIN_LAUNCHER=driver, OOCTRAIN_LAUNCHER=graph or OOCTRAIN_LAUNCHER=numba",
        )  # fmt: skip
    # As above.
    from ooctrain.layers.kernels.cuda.runtime.launcher import NumbaKernels

    return NumbaKernels(stream)


def pip_command(version: int) -> str:
    """What installs the compiler that fits a driver."""
    return f'pip install "numba-cuda[{_extra(version)}]>={LEAST_NUMBA_CUDA}"'


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None: it is not installed."""
    metadata = import_module("importlib.metadata")  # slow to load, and planning does without
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _try_compiler() -> None:
    try_kernel(open_cuda_driver(), make_kernels)


def _explained(error: Exception, gpu: Gpu, found: Installed) -> DeviceUnavailable:
    """What the trial's failure means, with its first line."""
    said = str(error).strip()
    if isinstance(error, OoctrainError):
        said = ": ".join(filter(None, (error.what, error.numbers)))
    line = said.splitlines()[0] if said else repr(error)
    what, fix = why_it_failed(said, gpu.version, gpu.capability)
    if not what and found("numba-cuda") is None:
        what = "numba-cuda is not installed, and Numba's own compiler does not serve"
    return _no_compiler(what or "kernels cannot be compiled and run", gpu.version, line, fix)


def _no_compiler(what: str, version: int, numbers: str = "", fix: str = "") -> DeviceUnavailable:
    first = f"{fix}; or {pip_command(version)}" if fix else pip_command(version)
    return DeviceUnavailable(
        what, code="OOC-153", call="compile", numbers=numbers,
        fix=f"{first}; --device cpu trains without a GPU",
    )  # fmt: skip


def _extra(version: int) -> str:
    """The extra of numba-cuda that fits a driver; a later one is larger as text."""
    return "cu13" if version >= CUDA_13 else "cu12"


# The trial: one kernel is compiled, linked, loaded, launched, and its result read back, since a
# compiler that makes code may not be one that this driver accepts. The usual causes of a failure
# (no NVVM, a toolkit newer than the driver) are looked for only after it, and `DeviceUnavailable`
# is raised with the first line of what went wrong.

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
