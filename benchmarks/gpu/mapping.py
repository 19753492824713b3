"""Virtual addressing against best-fit: what a mapping costs, and which batch fits a fixed budget.

In: a budget. Out: microseconds for each piece mapped and unmapped; the largest batch of ResNet-50
that each allocator can be planned for, and the step at the larger one. The one idea: fragmentation
is memory that is free and of no use, so that its price is images in the batch. Source: paper 000,
sections 3.3 and 5. Read next: `steps.py`, `ooctrain/devices/cuda/driver_memory.py`.
"""

from __future__ import annotations

import time

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rehearsal import Kernels
from benchmarks.gpu.steps import STEP_LIMIT_S, Sizes, Workload, find_sizes, measure
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.driver_memory import DriverMemory
from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.execution.prepare import Settings, prepare

REHEARSED_BY: Kernels = "cpu kernels"
PIECES, REHEARSED_PIECES = 512, 8
ALLOCATORS = ("va", "best-fit")
#: The search ends when it knows the batch to within this share.
CLOSE = 0.06


def run(bench: Bench) -> None:
    """Mapping first; then the batches, and a step at the largest."""
    bench.check("mapping", _map, REHEARSED_PIECES if bench.small else PIECES)
    sizes = Sizes(Workload("lenet", 32, 10), 4 << 20, 4, 8) if bench.small else find_sizes()
    found: dict[str, int] = {}
    for name in ALLOCATORS:
        bench.check(f"{name}: largest batch", _largest, sizes, name, found, limit_s=STEP_LIMIT_S)
    if found:
        name = max(found, key=lambda name: found[name])
        how = _settings(sizes, name)
        bench.check(
            f"{name}: a step at batch {found[name]}", measure, sizes.workload, found[name], how,
            limit_s=STEP_LIMIT_S,
        )  # fmt: skip


def _map(pieces: int) -> dict[str, float]:
    """Microseconds for each piece of the driver's granularity, all of them in one call of ours."""
    driver = cuda_open.open_cuda_driver()
    try:
        piece = driver.granularity()
        memory = DriverMemory(driver, pieces * piece)
        address = memory.reserve(pieces * piece)
        numbers: dict[str, float] = {"piece_bytes": piece}
        for kind in ("first", "again"):
            began = time.perf_counter()
            memory.map(address, 0, pieces * piece)
            mapped = time.perf_counter()
            memory.unmap(address, pieces * piece)
            numbers[f"map_us_{kind}"] = (mapped - began) * 1e6 / pieces
            numbers[f"unmap_us_{kind}"] = (time.perf_counter() - mapped) * 1e6 / pieces
        memory.close()
        return numbers
    finally:
        driver.close()


def _largest(sizes: Sizes, allocator: str, found: dict[str, int]) -> dict[str, float]:
    """Halves the gap between a batch that fits and one that does not."""
    how = _settings(sizes, allocator)
    fits, too_large = 0, sizes.large
    while _fits(sizes.workload, too_large, how):
        fits, too_large = too_large, 2 * too_large
    while too_large - fits > max(1, int(CLOSE * too_large)):
        middle = (fits + too_large) // 2
        if _fits(sizes.workload, middle, how):
            fits = middle
        else:
            too_large = middle
    found[allocator] = fits
    return {"batch": fits, "budget_mb": sizes.budget_bytes / 1e6}


def _fits(workload: Workload, batch: int, how: Settings) -> bool:
    try:
        prepare(workload.trace(batch)[0], how)
    except (Infeasible, DoesNotFit):
        return False
    return True


def _settings(sizes: Sizes, allocator: str) -> Settings:
    return Settings(sizes.budget_bytes, "window", allocator, "cuda")
