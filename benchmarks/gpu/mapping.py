"""Virtual addressing against best-fit: the cost of a mapping, and the batch that fits a budget.

Fragmentation is free memory that cannot be used, so its price is images in the batch. Measured are
microseconds for each piece mapped and unmapped, the largest batch of ResNet-50 that each allocator
can be planned for, and the step at the larger one. Source: paper 000, sections 3.3 and 5.
Read next: `steps.py`, `ooctrain/machine/memory_speed.py`.
"""

from __future__ import annotations

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.plans import Planned
from benchmarks.gpu.steps import STEP_LIMIT_S, Case, find_planned, measure
from benchmarks.gpu.workload import ALLOCATORS, Sizes, Workload, largest_batch, settings
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.execution.settings import Settings
from ooctrain.machine.memory_speed import measure_mapping

PIECES, REHEARSED_PIECES = 512, 8
REHEARSED = Planned(Sizes(Workload("plain", 8, 10), 800 << 10, 4, 8))


def run(bench: Bench) -> None:
    """Mapping first; then the batches, and a step at the largest."""
    bench.check("mapping", _map, REHEARSED_PIECES if bench.small else PIECES)
    planned = REHEARSED if bench.small else find_planned(bench)
    found = dict(planned.largest)
    for name in ALLOCATORS:
        what = f"{name}: largest batch"
        bench.check(what, _largest, planned, name, found, limit_s=STEP_LIMIT_S)
    if found:
        name, sizes = max(found, key=lambda name: found[name]), planned.sizes
        how, file = _settings(sizes, name), planned.largest_files.get(name, "")
        case = Case(sizes.workload, found[name], how, file)
        bench.check(f"{name}: a step at batch {found[name]}", measure, case, limit_s=STEP_LIMIT_S)


def _map(pieces: int) -> dict[str, float]:
    """Microseconds for each piece of the driver's granularity, all of them in one call of ours."""
    driver = cuda_open.open_cuda_driver()
    try:
        found = measure_mapping(driver, pieces)
    finally:
        driver.close()
    return {
        "piece_bytes": found.piece_bytes,
        "map_us_first": found.map_us[0], "unmap_us_first": found.unmap_us[0],
        "map_us_again": found.map_us[-1], "unmap_us_again": found.unmap_us[-1],
    }  # fmt: skip


def _largest(planned: Planned, allocator: str, found: dict[str, int]) -> dict[str, float]:
    """As it was found beforehand, else found here."""
    sizes = planned.sizes
    if allocator not in found:
        found[allocator] = largest_batch(sizes, _settings(sizes, allocator))[0]
    return {"batch": found[allocator], "budget_mb": sizes.budget_bytes / 1e6}


def _settings(sizes: Sizes, allocator: str) -> Settings:
    return settings(sizes.budget_bytes, "window", allocator)
