"""The laws of the allocators on the GPU's own memory, and every refusal that its driver can give.

What the strict fake has been shown to enforce is tried on the real driver: for each allocator, a
check of random lists of requests, and one that refuses each obtaining call of a run once. Without
Hypothesis the lists come from a seeded generator of requests, which finds less and shrinks nothing.
Source: docs/allocators.md, "The laws". Read next: `ooctrain/testing/check_allocator.py`.
"""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu.bench import Bench, NotRunError
from ooctrain.alloc.registry import choose_allocator
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.testing.allocator_laws import Ask, DrawnProgram
from ooctrain.testing.check_allocator import UNITS, check_allocator, run_requests, sweep_refusals
from ooctrain.units import Granule

NAMES = ("va", "va-paper", "passthrough")
EXAMPLES, WALKS, WALK_LENGTH = 8, 12, 40
#: Of the strict fake.
PAGE_BYTES = 4096
#: Free memory wanders a little by what CUDA itself keeps.
LEAK_BYTES = 64 << 20


def run(bench: Bench) -> None:
    """Laws, refusals, leaks."""
    before, page_bytes = _free_bytes(), cuda_open.look_at_gpu().granularity_bytes
    for name in NAMES[:1] if bench.small else NAMES:
        make = _allocator(f"{name}:chunk={page_bytes}", page_bytes)
        bench.check(f"{name}: laws, by Hypothesis", _laws, make, "cuda")
        bench.check(f"{name}: laws, a seeded walk", _walks, make, "cuda")
        bench.check(f"{name}: every refusal once", _refusals, make, "cuda")
    bench.check("all memory is given back", _given_back, before)


def _allocator(name: str, page_bytes: int) -> Any:
    budget = 2 * UNITS * page_bytes
    return choose_allocator(name, budget, binding=False, page_bytes=page_bytes).make


def _laws(make: Any, backend: str) -> dict[str, int]:
    if find_spec("hypothesis") is None:
        raise NotRunError("hypothesis is missing")
    return {"lists": check_allocator(make, examples=EXAMPLES, backends=[backend])}


def _walks(make: Any, backend: str) -> dict[str, int]:
    unit = PAGE_BYTES if backend == "strict" else cuda_open.look_at_gpu().granularity_bytes
    from ooctrain.alloc.dry_run import DryMemory

    granule = make(DryMemory(2 * UNITS * unit)).granule
    for seed in range(WALKS):
        run_requests(make, _walk(granule, unit, seed), backend)
    return {"lists": WALKS, "requests_each": WALK_LENGTH}


def _refusals(make: Any, backend: str) -> dict[str, int]:
    return {"refused": sweep_refusals(make, backend)}


def _given_back(before: int) -> dict[str, int]:
    kept = before - _free_bytes()
    assert kept < LEAK_BYTES, f"{kept} bytes of the GPU are not given back"
    return {"kept_bytes": kept}


def _walk(granule: Granule, unit: int, seed: int) -> DrawnProgram:
    """Random requests; those for parts of a block only where the allocator knows ranges."""
    draw = random.Random(seed)
    whole = ("allocate", "allocate", "allocate", "free", "free", "renew", "use", "write", "largest")
    parts = ("reserve", "claim", "claim", "release") if granule.ranges else ()
    requests = []
    for _ in range(WALK_LENGTH):
        op = draw.choice((*whole, *parts))
        sized = op in ("allocate", "reserve")
        value = draw.randint(1, UNITS // 2) * unit if sized else draw.randint(0, UNITS)
        place = draw.randint(0, 7), draw.randint(1, 3)
        requests.append(Ask(op, value, draw.randint(0, 2), *place))
    return DrawnProgram(tuple(requests), tuple(draw.randint(0, 2) for _ in range(8)))


def _free_bytes() -> int:
    driver = cuda_open.open_cuda_driver()
    try:
        return driver.memory_info()[0]
    finally:
        driver.close()
