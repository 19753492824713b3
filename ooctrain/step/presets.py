"""Machines by name, each with its source, and the saved calibration of this one.

Nothing is ever measured implicitly: a machine is a set of numbers that are written down, and is
given by name, as a `Machine`, or as None. Rates are in bytes and operations per microsecond, so 1e3
is 1 GB/s, and 1e6 is 1 TFLOP/s. Arithmetic and memory rates are what a training step reaches, about
0.53 of the peak on the V100 (8.4 of 15.7 TFLOP/s, 900 GB/s, 5 us per launch) and the same share of
the peak elsewhere. Device memory follows the makers, whose "16 GB" are 2**34 bytes; host memory and
links are as the papers print them. Papers: 000 NNL scheduling, 001 TFLMS hybrid, 002 optimal
re-materialization and offloading, 003 segmented fused tiling, 004 Split-CNN. Read next:
`machine.py`.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from platformdirs import user_cache_dir

from ooctrain.errors import ConfigError, unknown_name
from ooctrain.plugins import is_path
from ooctrain.step.allowance import usable_cores as usable_cores
from ooctrain.step.machine import Disk, Machine
from ooctrain.step.schema import FileKind
from ooctrain.units import GIB, rate_of

CALIBRATION_VERSION = 1
GB = 10**9
#: Copies take processor time on the cpu device: at full speed about this much on two cores.
CPU_INTERFERENCE = 1.8
CPU_GENERIC_CORES = 2
#: A disk that was not measured: 1 GB/s, reading and writing taking turns, as a laptop's NVMe.
TYPICAL_DISK = Disk(1e3, 1e3, latency_us=100.0)


def _gpu(name: str, flops_per_us: float, memory_bytes_per_us: float, **rest: Any) -> Machine:
    return Machine(name, flops_per_us, memory_bytes_per_us, call_overhead_us=5.0, **rest)


def _v100(name: str, **rest: Any) -> Machine:
    return _gpu(name, 8.4e6, 900e3, **rest)


def v100_16gb_nvlink() -> Machine:
    """Paper 000, section 5: POWER9, 594 GB host memory, V100 of 16 GB, NVLink taken as 50 GB/s each
    way."""
    return _v100(
        "v100-16gb-nvlink",
        link_bytes_per_us=50e3,
        link="duplex",
        device_bytes=16 * GIB,
        host_bytes=594 * GB,
    )


def v100_32gb_nvlink() -> Machine:
    """Paper 001, section 4.1: AC922, 512 GB host memory, V100 of 32 GB, NVLink 2.0 with 75 GB/s
    each way."""
    return _v100(
        "v100-32gb-nvlink",
        link_bytes_per_us=75e3,
        link="duplex",
        device_bytes=32 * GIB,
        host_bytes=512 * GB,
    )


def v100_pcie() -> Machine:
    """Paper 002, section 6.1: V100-PCIE, 15.75 GB, 12.2 GB/s measured, one transfer at a time."""
    return _v100(
        "v100-pcie", link_bytes_per_us=12.2e3, link="shared", device_bytes=int(15.75 * GIB)
    )


def p100_nvlink() -> Machine:
    """Paper 004, section 6.1: S822LC, P100 of 16 GB, NVLink 1.0 with 34.1 GB/s measured.

    Peak of the P100 (SXM2 data sheet): 10.6 TFLOP/s, 732 GB/s.
    """
    return _gpu(
        "p100-nvlink", 5.6e6, 732e3, link_bytes_per_us=34.1e3, link="duplex", device_bytes=16 * GIB
    )


def rtx2080ti() -> Machine:
    """Paper 003, section 6.1: 2080 Ti of 11 GiB, 128 GiB host memory.

    Peak of the card (data sheet): 13.4 TFLOP/s, 616 GB/s; PCIe 3.0 x16 as measured in paper 002.
    """
    return _gpu(
        "rtx2080ti",
        7.2e6,
        616e3,
        link_bytes_per_us=12.2e3,
        link="duplex",
        device_bytes=11 * GIB,
        host_bytes=128 * GIB,
    )


def a100_pcie() -> Machine:
    """Paper 003, section 6.1: A100 of 40 GiB, 384 GiB host memory.

    Peak of the card (data sheet): 19.5 TFLOP/s in float32, 1555 GB/s; PCIe 4.0 x16 taken as twice
    12.2 GB/s.
    """
    return _gpu(
        "a100-pcie",
        10.4e6,
        1555e3,
        link_bytes_per_us=24.4e3,
        link="duplex",
        device_bytes=40 * GIB,
        host_bytes=384 * GIB,
    )


def h200_pcie() -> Machine:
    """An H200 behind PCIe 5.0 x16, as measured (`benchmarks/results/gpu-2026-11-27.md`).

    Copies at 50 GB/s each way while both run, 4.1 TB/s of memory, 71 us to map and unmap a piece of
    2 MiB; the arithmetic is what steps of ResNet-50 reach of 67 TFLOP/s in float32.
    """
    return _gpu(
        "h200-pcie", 30e6, 4100e3, link_bytes_per_us=50e3, link="duplex", device_bytes=141 * GB,
        map_us_per_byte=71 / (2 << 20),
    )  # fmt: skip


def cpu_generic() -> Machine:
    """The cpu device on two ordinary cores: what the kernels of this library reach there.

    300 GFLOP/s (Winograd counted as the multiplications it saves), 25 GB/s, copies of 8 GB/s each
    way that cost the calls what they take: at 1, 2, 4 GB/s (`with_link`) 1.1, 1.2, 1.4 times.
    Rounded down from measurements on a server's cores; `ooctrain calibrate` measures yours.
    """
    return Machine(
        "cpu-generic",
        300e3,
        25e3,
        link_bytes_per_us=8e3,
        link="duplex",
        latency_us=100.0,
        device_bytes=8 * GIB,
        interference=CPU_INTERFERENCE,
        call_overhead_us=20.0,
    )


_GPUS = (
    v100_16gb_nvlink(),
    v100_32gb_nvlink(),
    v100_pcie(),
    p100_nvlink(),
    rtx2080ti(),
    a100_pcie(),
    h200_pcie(),
)
PRESETS: Mapping[str, Machine] = MappingProxyType({m.name: m for m in (*_GPUS, cpu_generic())})
ALIASES: Mapping[str, str] = MappingProxyType(
    {"v100-nvlink": "v100-32gb-nvlink", "h200": "h200-pcie"}
)
#: {device: the preset that stands for it until it is measured}
DEFAULTS: Mapping[str, str] = MappingProxyType({"cpu": "cpu-generic", "cuda": "h200-pcie"})
DEVICES = tuple(DEFAULTS)
HERE = "here"


def machine(which: str | Machine | None = None, device: str = "cpu") -> Machine:
    """The machine meant by a name, itself, or None.

    Args:
        which: a preset's name or alias, the path of a calibration file (ends in ".json"), a
            `Machine`, or "here" or None for the device's saved calibration, and where there is none
            for "cpu-generic" or "h200-pcie".
        device: "cpu" or "cuda".

    Raises:
        ConfigError: an unknown name, or a broken calibration file.
    """
    if isinstance(which, Machine):
        return which
    if which is None or which == HERE:
        if device not in DEFAULTS:
            raise unknown_name("no device is called", device, DEFAULTS, "cpu or cuda")
        path = calibration_path(device)
        return load_calibration(path) if path.is_file() else PRESETS[DEFAULTS[device]]
    if which.endswith(".json"):
        return load_calibration(Path(which))
    name = ALIASES.get(which, which)
    if name not in PRESETS:
        raise _unknown(which)
    return PRESETS[name]


def threads_for(which: str | None) -> int:
    """Threads of the cpu device for which a step is traced, since scratch grows with them.

    Args:
        which: a machine by its name. What is said of a preset must not depend on where it is asked:
            two threads for "cpu-generic", one for a GPU. None or a calibration file: the cores of
            the machine at hand.
    """
    if which is None or ALIASES.get(which, which) not in PRESETS:
        return usable_cores()
    return CPU_GENERIC_CORES if which == "cpu-generic" else 1


def cache_base() -> Path:
    """Where kernels, fetched data and the calibration are kept: `$OOCTRAIN_CACHE`, or the system's
    own place for that (`~/.cache/ooctrain` on Linux)."""
    return Path(os.environ.get("OOCTRAIN_CACHE") or user_cache_dir("ooctrain", appauthor=False))


def calibration_path(device: str = "cpu") -> Path:
    """`$OOCTRAIN_CALIBRATION`, or calibration.json in the cache folder; of a GPU another file."""
    name = "calibration.json" if device == "cpu" else f"calibration-{device}.json"
    return Path(os.environ.get("OOCTRAIN_CALIBRATION") or cache_base() / name)


def save_calibration(measured: Machine, path: Path) -> None:
    """Writes a machine as JSON, its folder included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {**asdict(measured), "profile": dict(measured.profile)}
    text = json.dumps({"version": CALIBRATION_VERSION, "machine": data}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


class _CalibrationFile(msgspec.Struct):
    """What stands in a calibration file."""

    version: Literal[1]
    machine: Machine


_CALIBRATION = FileKind(
    _CalibrationFile, "is not a calibration of this library", "OOC-105",
    "`ooctrain calibrate` writes one, `ooctrain docs howto/machine` shows its form; or a preset",
)  # fmt: skip


def load_calibration(path: Path) -> Machine:
    """A machine from a calibration file.

    Raises:
        ConfigError: the file is missing, broken, or of another version.
    """
    return _CALIBRATION.read(path).machine


def with_link(base: Machine, bandwidth_bytes_per_us: float) -> Machine:
    """The same machine with another link bandwidth in both directions, imposed on its own link.

    Each copy then pays `pacing_us`, what keeping to an imposed link costs, besides its latency.
    Where copies slow calls down it is the copied bytes that cost, not the time a copy lasts: a
    slower link spreads the same cost over longer copies.

    Raises:
        ConfigError: the bandwidth is not a rate.
    """
    rate = rate_of(bandwidth_bytes_per_us, "link bandwidth")
    fastest = max(base.out_bytes_per_us, base.in_bytes_per_us)
    share = min(1.0, rate / fastest)
    return replace(
        base,
        interference=1 + (base.interference - 1) * share,
        latency_us=base.latency_us + base.pacing_us,
        pacing_us=0.0,
        link_bytes_per_us=rate,
        link_out_bytes_per_us=None,
        link_in_bytes_per_us=None,
    )


def disk_source(disk: Disk | None, folder: str) -> str:
    """Where the rates of a disk that serves as the host are known from, in words.

    Args:
        disk: as measured; None: `TYPICAL_DISK` is taken.
        folder: folder on the disk.
    """
    if disk is None:
        return "assumed: this disk was not measured"
    same = os.path.realpath(disk.folder) == os.path.realpath(folder)
    return "measured by `ooctrain calibrate`" if same else f"measured in {disk.folder}"


def on_disk(base: Machine, limit_bytes_per_us: float | None = None) -> Machine:
    """The same machine with its disk, or a typical one, as the host: that is the link then, and
    host memory is not a limit.

    Args:
        limit_bytes_per_us: limit of each direction; None: as fast as the disk. Keeping to it costs
        each
            copy `pacing_us`, as with `with_link`.
    """
    disk = base.disk or TYPICAL_DISK
    limit = float("inf") if limit_bytes_per_us is None else limit_bytes_per_us
    out_rate, in_rate = min(disk.out_bytes_per_us, limit), min(disk.in_bytes_per_us, limit)
    share = min(1.0, max(out_rate, in_rate) / max(base.out_bytes_per_us, base.in_bytes_per_us))
    pacing_us = 0.0 if limit_bytes_per_us is None else base.pacing_us
    return replace(
        base,
        link=disk.link,
        link_bytes_per_us=min(out_rate, in_rate),
        link_out_bytes_per_us=out_rate,
        link_in_bytes_per_us=in_rate,
        latency_us=base.latency_us + disk.latency_us + pacing_us,
        pacing_us=0.0,
        interference=1 + (base.interference - 1) * share,
        host_bytes=None,
    )


def _unknown(name: str) -> ConfigError:
    names = sorted([*PRESETS, *ALIASES, HERE])
    near = [] if is_path(name) else difflib.get_close_matches(name, names, n=1)
    what = f"no machine is called {name!r}"
    if is_path(name):
        what = f"{name!r} is not a calibration file, whose name ends in .json"
        what = what if Path(name).exists() else f"there is no file {name!r}"
    return ConfigError(
        what,
        code="OOC-105",
        numbers=f"known: {', '.join(names)}",
        fix=f"did you mean {near[0]!r}?" if near else "give one of these, or a calibration file",
    )
