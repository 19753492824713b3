"""Images larger than the device: VGG-16 with a quarter of the channels, from a memory-mapped file.

For each side of the image it reports the device's peak and the budget, host memory, and seconds and
nanoseconds per pixel of a step; the largest is 8,192 pixels, 768 MiB as float32, in 256 MiB. Every
time is processor time in a process of its own, after a small step that loads all kernels, so that
peaks of memory are the step's. Memory of the process is counted once for each page (Pss):
`ru_maxrss` counts a page of the device once for each address that the allocator `va` maps it at, up
to 16 (docs/allocators.md). Read next: `tests/properties/test_blocks.py`, which holds the gradients
to the untiled ones, and memory to what is promised.

    python -m benchmarks blocks [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import machine_facts, table, verdict

MIB = 1 << 20
#: side, bands, budget in MiB. Bands of equal height: budgets grow with the width of a row alone.
SIZES = ((1024, 16, 32), (2048, 32, 64), (4096, 64, 128), (8192, 128, 256))
QUICK_SIZES = SIZES[:1]
WARM_UP = (256, 4, 64)
#: Time per pixel of the largest image, relative to the smallest.
WANTED_RATIO = 1.2
#: Between two looks at the process.
WATCH_S = 0.2


class HeldMemory:
    """Watches how many MiB this process holds, each page counted once; 0 where no system says."""

    def __init__(self) -> None:
        self.before_mib = self.peak_mib = held_mib()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> HeldMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(WATCH_S):
            self.peak_mib = max(self.peak_mib, held_mib())


def held_mib() -> float:
    """Of this process, now."""
    pages = Path("/proc/self/smaps_rollup")
    text = pages.read_text() if pages.exists() else ""
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def step_of(side: int, bands: int, budget_mib: int) -> dict[str, Any]:
    """One step, in this process."""
    import ooctrain as oc
    from ooctrain import nn

    layers: list[nn.Module] = [nn.FromBytes(127.5, 127.5)]
    channels = 3
    for outputs, count in ((16, 2), (32, 2), (64, 3), (128, 3), (128, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image.npy"
        mapped = np.lib.format.open_memmap(path, "w+", np.uint8, (side, side, 3))
        rng = np.random.default_rng(0)
        for row in range(0, side, 256):
            mapped[row : row + 256] = rng.integers(0, 256, (256, side, 3), dtype=np.uint8)
        image = oc.data.RowImage(path)
        trace = oc.trace(model, image.shape, optimizer=None)
        rewrites = (f"bands_again:{bands}:0:31", "share_storage")
        started = time.process_time()
        plan = oc.plan(trace, budget_mib * MIB, planner="belady", rewrites=rewrites, allocator="va")
        planned = time.process_time()
        with HeldMemory() as held:
            done = oc.execute(plan, model, (image, np.array([3])))
    used_s = time.process_time() - planned
    return {
        "side": side, "bands": bands, "budget_mib": budget_mib, "calls": len(plan.trace.calls),
        "image_mib_as_float32": 4 * int(np.prod(image.shape)) / MIB,
        "peak_mib": done.timeline.peak_bytes / MIB,
        "host_peak_mib": done.timeline.host_peak_bytes / MIB,
        "before_mib": held.before_mib, "resident_mib": held.peak_mib,
        "every_address_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "plan_cpu_s": planned - started, "step_cpu_s": used_s,
        "step_cpu_ns_per_pixel": used_s * 1e9 / side**2,
    }  # fmt: skip


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_blocks", description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=3, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        step_of(*WARM_UP)
        print(json.dumps(step_of(*options.child)))
        return {}
    facts = machine_facts()
    found = []
    for size in QUICK_SIZES if quick else SIZES:
        child = [sys.executable, "-m", "benchmarks.bench_blocks", "--child", *map(str, size)]
        shown = subprocess.run(child, check=True, capture_output=True, text=True).stdout
        found.append(json.loads(shown))
    ratio = found[-1]["step_cpu_ns_per_pixel"] / found[0]["step_cpu_ns_per_pixel"]
    print(table(
        ["side", "as float32", "budget", "peak", "host", "process", "plan", "step", "a pixel"],
        [[str(r["side"]), *(f"{r[key]:.0f} MiB" for key in (
            "image_mib_as_float32", "budget_mib", "peak_mib", "host_peak_mib", "resident_mib")),
          f"{r['plan_cpu_s']:.1f} s", f"{r['step_cpu_s']:.1f} s",
          f"{r['step_cpu_ns_per_pixel']:.0f} ns"] for r in found],
    ))  # fmt: skip
    missed = [f"{r['side']} pixels: peak" for r in found if r["peak_mib"] > r["budget_mib"]]
    missed += ["time per pixel"] if ratio > WANTED_RATIO else []
    print(f"a pixel of the largest / of the smallest: {ratio:.2f}  {verdict(not missed)}")
    return {"machine": facts, "results": found, "ratio": ratio, "missed": missed}


if __name__ == "__main__":
    main(sys.argv[1:])
