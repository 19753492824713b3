"""Checks an installation: one check after another, each of which may fail without the next.

Each `Finding` says what is well, what will be slow or missing, or what is broken, and gives the
command that mends it. A doctor must survive a broken patient, so every check imports what it needs
by itself, and any error that it raises becomes its finding. Read next: `devices/cpu/host_vm.py` for
what the cpu device requires of a system.
"""

from __future__ import annotations

import importlib
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Literal

from ooctrain.devices.cuda.driver_abi import version_name
from ooctrain.errors import ConfigError, DeviceUnavailable
from ooctrain.step.allowance import cpu_quotas, usable_cores
from ooctrain.step.presets import (
    TYPICAL_DISK,
    cache_base,
    calibration_path,
    disk_source,
    load_calibration,
)
from ooctrain.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from ooctrain.devices.cuda.open import Gpu

Level = Literal["ok", "warn", "fail"]
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
SMALL_MEMORY_BYTES = 4 * GIB
#: Address space that a training process takes on top of this one: stacks and a small arena.
TRAINING_BYTES = 200 * MIB


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Args:
        name: name of the check.
        level: "ok", "warn" (works, but slower or without something), "fail".
        text: what there is.
        fix: the command or step that mends it.
    """

    name: str
    level: Level
    text: str
    fix: str = ""


def examine() -> list[Finding]:
    """Runs every check. Cost: under a second, unless Numba is slow to load."""
    return [_survive(name, check) for name, check in CHECKS.items()]


def _survive(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # any failure at all is what this check has found
        return Finding(name, "fail", f"{type(error).__name__}: {error}", "reinstall: pip install .")


def check_python() -> Finding:
    """Python's own version."""
    have = sys.version_info[:2]
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if OLDEST_PYTHON <= have <= NEWEST_PYTHON:
        return Finding("Python", "ok", text)
    return Finding("Python", "fail", text, "install Python 3.11 to 3.14")


def check_package(name: str) -> Finding:
    """Whether a package that is always needed can be imported."""
    importlib.import_module(name)
    return Finding(name, "ok", metadata.version(name))


def check_kernels() -> Finding:
    """Whether Numba compiles a function on this machine and gets the right answer."""
    numba = importlib.import_module("numba")
    if numba.config.DISABLE_JIT:
        text = "NUMBA_DISABLE_JIT is set: plans are made as Python, slowly; nothing can be trained"
        return Finding("compiler", "fail", text, "unset NUMBA_DISABLE_JIT")
    limited = _limited_compiler()
    if limited is not None:
        return Finding("compiler", "warn", f"{limited.what}: {limited.numbers}", limited.fix)
    add = numba.njit("f4(f4, f4)")(_add)
    if add(1.0, 2.0) != 3.0:
        return Finding("compiler", "fail", "1 + 2 is not 3", "reinstall numba and llvmlite")
    name = importlib.import_module("llvmlite.binding").get_host_cpu_name()
    return Finding("compiler", "ok", f"compiles for {name}")


def _limited_compiler() -> ConfigError | None:
    """Why kernels that are not in the cache cannot be compiled, where `ulimit` is the reason."""
    kept_code = importlib.import_module("ooctrain.layers.kernels.cpu.runtime.kernel_jit")
    try:
        kept_code.require_compiler_memory(kept_code.COMPILER_BYTES + TRAINING_BYTES)
    except ConfigError as error:
        return error
    return None


def check_virtual_memory() -> Finding:
    """Whether memory can be mapped as the allocator `va` does it."""
    host_vm = importlib.import_module("ooctrain.devices.cpu.host_vm")
    reason = host_vm.why_no_virtual_memory()
    if reason:
        return Finding("virtual memory", "warn", reason, "use --allocator best-fit")
    chunks = host_vm.max_mapped_chunks()
    most = format_bytes(chunks * (64 << 10))
    text = (
        f"memfd and mmap; {chunks} chunks, {most} of budget in chunks of 64 KiB (VmRSS and VmHWM "
        "count a page once for each address, Pss once)"
    )
    return Finding("virtual memory", "ok", text)


def check_cache() -> Finding:
    """Whether compiled kernels can be kept, and how much is there."""
    folder = cache_base()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fix = "export OOCTRAIN_CACHE=/a/folder/that/you/may/write"
        return Finding(
            "kernel cache", "warn", f"{folder}: {error.strerror}; every start compiles", fix
        )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Finding("kernel cache", "ok", f"{folder}, {format_bytes(size)}")


def check_cores() -> Finding:
    """Processor cores that this process may use."""
    cores = usable_cores()
    quota = min(cpu_quotas(), default=None)
    why = "" if quota is None else f", a control group has time for {quota:.3g}"
    if cores == 1:
        text = f"1{why}: copies and calls take turns"
        return Finding("cores", "warn", text, "give it two or more cores")
    return Finding("cores", "ok", f"{cores}{why}")


def check_memory() -> Finding:
    """Memory that is free for the arena and the host slab, with the limits of this process."""
    host_vm = importlib.import_module("ooctrain.devices.cpu.host_vm")
    room = host_vm.tightest_limit()
    if room is None:
        return Finding("memory", "warn", "this system does not say how much is free")
    text = f"{format_bytes(room.free_bytes)} free"
    if room.source != host_vm.MACHINE:
        text += f" of {format_bytes(room.limit_bytes)} by {room.source}"
    if room.free_bytes < SMALL_MEMORY_BYTES:
        return Finding("memory", "warn", text, "use small budgets")
    return Finding("memory", "ok", text)


def check_spill() -> Finding:
    """What the folder for temporary files can do as the host of `--spill`."""
    spill, folder = importlib.import_module("ooctrain.devices.spill"), tempfile.gettempdir()
    try:
        place = spill.look_at(folder)
    except ConfigError as error:
        return Finding("spilling", "warn", error.what, f"--spill {error.fix}")
    if not place.direct:
        return Finding("spilling", "warn", place.text, "a folder on ext4 or xfs is faster")
    path = calibration_path()
    disk = load_calibration(path).disk if path.is_file() else None
    taken = disk or TYPICAL_DISK
    rates = f"{taken.out_bytes_per_us / 1e3:.2f} GB/s out, {taken.in_bytes_per_us / 1e3:.2f} in"
    return Finding("spilling", "ok", f"{place.text}; {rates}, {disk_source(disk, folder)}")


def check_calibration() -> Finding:
    """Whether this machine has been measured."""
    path = calibration_path()
    if not path.is_file():
        text = "none: predictions on the cpu device use the preset cpu-generic"
        return Finding("calibration", "warn", text, "ooctrain calibrate")
    return Finding("calibration", "ok", f"{load_calibration(path).name}, {path}")


def check_gpu() -> Finding:
    """The CUDA driver and its first device, asked directly, so that no NVIDIA package is needed."""
    try:
        gpu = _cuda_open().look_at_gpu()
    except DeviceUnavailable as error:
        if error.call == "dlopen":
            return Finding("CUDA driver", "ok", "none: the cpu device is what there is")
        return Finding("CUDA driver", "warn", f"{error.what}: {error.numbers}", error.fix)
    text = (
        f"for CUDA {version_name(gpu.version)}; {gpu.name}, compute capability "
        f"{gpu.capability[0]}.{gpu.capability[1]}, {format_bytes(gpu.free_bytes)} of "
        f"{format_bytes(gpu.total_bytes)} free"
    )
    return Finding("CUDA driver", "ok", text)


def check_gpu_compiler() -> Finding:
    """numba-cuda with numba, and the toolkit that both need: a kernel of one line is compiled,
    linked, loaded, launched, and what it wrote is read back."""
    cuda_open = _cuda_open()
    names = ("numba", "numba-cuda", *cuda_open.TOOLKIT_WHEELS.values())
    found = [f"{name} {v}" for name in names if (v := cuda_open.installed_version(name))]
    gpu = _gpu()
    if gpu is None:
        missing = "" if cuda_open.installed_version("numba-cuda") else ", no numba-cuda"
        return Finding("CUDA compiler", "ok", f"{', '.join(found)}{missing}; no GPU to use it")
    try:
        cuda_open.require_compiler(gpu)
    except DeviceUnavailable as error:
        reason = f": {error.numbers}" if error.numbers else ""
        text = f"{error.what}{reason} ({', '.join(found)})"
        return Finding("CUDA compiler", "fail", text, error.fix)
    return Finding("CUDA compiler", "ok", ", ".join(found))


def check_gpu_mapping() -> Finding:
    """Whether the GPU's memory can be mapped as the allocator `va` does it."""
    gpu = _gpu()
    if gpu is None:
        return Finding("CUDA mapping", "ok", "no GPU")
    if gpu.mapping_problem:
        return Finding("CUDA mapping", "warn", gpu.mapping_problem, "use --allocator best-fit")
    return Finding("CUDA mapping", "ok", f"in pieces of {format_bytes(gpu.granularity_bytes)}")


def check_gpu_link() -> Finding:
    """How fast pinned memory is copied, both ways, measured. Cost: tens of milliseconds."""
    if _gpu() is None:
        return Finding("CUDA copies", "ok", "no GPU")
    driver = _cuda_open().open_cuda_driver()
    try:
        rates = importlib.import_module("ooctrain.devices.cuda.link").measure_link(driver)
    finally:
        driver.close()
    text = (
        f"out {rates.out / 1e3:.1f}, in {rates.into / 1e3:.1f} GB/s; at the same time "
        f"{rates.out_beside / 1e3:.1f} and {rates.into_beside / 1e3:.1f} GB/s"
    )
    return Finding("CUDA copies", "ok", text)


def _gpu() -> Gpu | None:
    """The GPU, if one can be used at all; `check_gpu` says why not."""
    try:
        return _cuda_open().look_at_gpu()
    except DeviceUnavailable:
        return None


def _cuda_open() -> ModuleType:
    """How a GPU is opened; imported as late as all that may be broken."""
    return importlib.import_module("ooctrain.devices.cuda.open")


def _add(a, b):
    return a + b


PACKAGES = ("numpy", "numba", "llvmlite", "click", "rich", "msgspec", "safetensors", "highspy")
CHECKS: Mapping[str, Callable[[], Finding]] = MappingProxyType(
    {
        "Python": check_python,
        **{name: partial(check_package, name) for name in PACKAGES},
        "compiler": check_kernels,
        "kernel cache": check_cache,
        "virtual memory": check_virtual_memory,
        "cores": check_cores,
        "memory": check_memory,
        "spilling": check_spill,
        "calibration": check_calibration,
        "CUDA driver": check_gpu,
        "CUDA compiler": check_gpu_compiler,
        "CUDA mapping": check_gpu_mapping,
        "CUDA copies": check_gpu_link,
    }
)
