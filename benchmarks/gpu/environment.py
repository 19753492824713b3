"""The conditions of a run's numbers: the machine, the driver, versions, health.

They stand as facts in the head of the report; `doctor`'s findings on the GPU are checks. Read next:
`ooctrain/machine/doctor.py`.
"""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import processor_name, threads_here
from benchmarks.gpu.bench import Bench
from ooctrain.devices.cpu.host_vm import available_memory_bytes
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.machine import doctor
from ooctrain.units import format_bytes

DISTRIBUTIONS = (
    "numpy", "numba", "llvmlite", "numba-cuda", *cuda_open.TOOLKIT_WHEELS.values(), "torch",
    "hypothesis",
)  # fmt: skip
#: First what everything needs, since the part's time is short.
FINDINGS = ("CUDA driver", "CUDA compiler", "CUDA mapping", "compiler", "kernel cache")


def run(bench: Bench) -> None:
    """The GPU's data sheet, and whether everything that training needs works."""
    bench.check("GPU", _describe)
    for name in FINDINGS:
        bench.check(name, _examine, name)


def facts(commit: str = "") -> dict[str, Any]:
    """For the head of the report; needs no GPU.

    Args:
        commit: where there is no git to ask.
    """
    available = available_memory_bytes()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit or _said_by("git", "rev-parse", "HEAD") or "unknown",
        "uncommitted files": len(_said_by("git", "status", "--short").splitlines()),
        "GPU": _said_by("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm",
                        "--format=csv,noheader"),
        "processor": f"{processor_name()}, {threads_here()} cores",
        "free memory": format_bytes(available) if available else "unknown",
        "Python": f"{platform.python_version()} on {platform.system()} {platform.release()}",
        "packages": ", ".join(
            f"{name} {cuda_open.installed_version(name) or 'missing'}" for name in DISTRIBUTIONS
        ),
    }  # fmt: skip


def _describe() -> dict[str, Any]:
    gpu = cuda_open.look_at_gpu()
    return {
        "name": gpu.name, "driver_serves_cuda": gpu.version,
        "capability": ".".join(map(str, gpu.capability)), "free_bytes": gpu.free_bytes,
        "total_bytes": gpu.total_bytes, "granularity_bytes": gpu.granularity_bytes,
    }  # fmt: skip


def _examine(name: str) -> dict[str, str]:
    finding = doctor.CHECKS[name]()
    if finding.level != "ok":
        raise RuntimeError(f"{finding.text}; {finding.fix}")
    return {"says": finding.text}


def _said_by(*command: str) -> str:
    """The output of a command; empty where it is not there or fails."""
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=20,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
