"""Runs a contestant in a process of its own and counts, from outside, what the process holds.

Counted is what the operating system counts (`ooctrain/devices/cpu/process_memory.py`): the
proportional set size, and pages of the arena that are mapped nowhere. Page cache is no part of it.
Growth is the most that was counted while the contestant trained, less what was held when imports
and one tiny step were done; the total is the most that the process held, libraries whole though
others may share them now. Where the host is a disk, the file that the process has open says whether
it passes the page cache by, and the system says what was written. Read next: `memory_sides.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.memory_cases import Case, Side, as_words, mib
from ooctrain.devices.cpu.process_memory import MemoryWatch, held

#: For a contestant that compiles, in place of the limit for the others.
COMPILING_S = 1200.0
SHOWN_LETTERS = 240


def run_side(case: Case, side: Side, steps: int, threads: int, limit_s: float) -> dict[str, Any]:
    """A contestant in its process, measured; with `error` where it did not finish."""
    command = [
        sys.executable, "-m", "benchmarks.memory_sides", as_words(case, side, steps, threads),
    ]  # fmt: skip
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(child.stderr), daemon=True)
    reader.start()
    ending = threading.Timer(COMPILING_S if side.compiles else limit_s, child.kill)
    ending.start()
    try:
        found = _watched(child, side)
    finally:
        ending.cancel()
        child.kill()
        child.wait()
        reader.join(1)
    if found is None:
        lines = [line.strip() for line in said if line.strip()]
        found = {"error": (lines or ["ended by its time limit"])[-1]}
    if "error" in found:
        found["error"] = " ".join(str(found["error"]).split())[:SHOWN_LETTERS]
    return {"name": side.name, "exact": side.exact, **found}


def _watched(child: subprocess.Popen, side: Side) -> dict[str, Any] | None:
    """What is measured of a child from "ready" to its last line; None: it ended before."""
    assert child.stdout is not None
    line = child.stdout.readline()
    before = held(child.pid)
    if line.strip() != "ready" or before is None:
        return None
    with suppress(OSError):
        Path(f"/proc/{child.pid}/clear_refs").write_text("5")
    resident, written = _kib(child.pid, "status", "VmRSS"), _written(child.pid)
    if side.compiles:
        _go_on(child)
        if child.stdout.readline().strip() != "warm":
            return None
    with MemoryWatch(child.pid) as watch:
        _go_on(child)
        line = child.stdout.readline()
    if not line.startswith("{"):
        return None
    found = json.loads(line)
    if "error" in found:
        return found
    growth = watch.most_bytes - before.counted_bytes
    found |= {
        "growth_mib": mib(growth), "total_mib": mib(growth + before.most_bytes),
        "vmhwm_growth_mib": mib(_kib(child.pid, "status", "VmHWM") - resident),
    }  # fmt: skip
    if found["wall_s"]:
        found["step_s"] = min(found["wall_s"][1:] or found["wall_s"])
        found["step_cpu_s"] = min(found["cpu_s"][1:] or found["cpu_s"])
    if side.folder and found["wall_s"]:
        found |= _slab_file(child.pid, side.folder)
        found["disk_written_mib"] = mib(_written(child.pid) - written) / len(found["wall_s"])
    return found


def _go_on(child: subprocess.Popen) -> None:
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, and its last words say why
        child.stdin.write("go\n")
        child.stdin.flush()


def _slab_file(process: int, folder: str) -> dict[str, Any]:
    """Of the file without a name in a folder that a process has open: its size, and whether it was
    opened to pass the page cache by."""
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            name = os.readlink(entry)
            if name.startswith(os.path.realpath(folder)) and name.endswith(" (deleted)"):
                text = Path(f"/proc/{process}/fdinfo/{entry.name}").read_text()
                flags = re.search(r"^flags:\s+(\d+)", text, re.MULTILINE)
                direct = bool(flags and int(flags[1], 8) & os.O_DIRECT)
                return {"o_direct": direct, "slab_file_mib": mib(os.stat(entry).st_size)}
    return {"o_direct": False, "slab_file_mib": 0.0}


def _written(process: int) -> int:
    """Bytes that a process has caused to be written to disks; 0: nobody says."""
    with suppress(OSError):
        text = Path(f"/proc/{process}/io").read_text()
        return int(re.search(r"^write_bytes: (\d+)", text, re.MULTILINE)[1])  # type: ignore[index]
    return 0


def _kib(process: int, file: str, key: str) -> int:
    """A line in kB of a process's file, in bytes."""
    text = Path(f"/proc/{process}/{file}").read_text()
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
