"""What a chunk size costs: small chunks are many mappings, large ones are rounded-up memory.

For each chunk size a replay gives the memory that rounding wastes, and the mapping changes of the
first and of a later step; the cpu device gives the time of real steps. Paper 000 bounds the waste
by N_max chunks (equation 2) and found 40 MB by experiment; this is that experiment, once with one
list for all chunks, and once with a list for each, planned in its chunks (`chunk_trades`): what
rounding takes, prefetches cannot have. Source: paper 000, section 4, last paragraph. Read next:
`fragmentation.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ooctrain.alloc import Request
from ooctrain.alloc.replay import replay
from ooctrain.api import step_trace
from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.execution.placement import allocation_log
from ooctrain.experiments.paper_000.fragmentation import PAPER_VA, PHYSICAL_BYTES, Bench
from ooctrain.models import build
from ooctrain.optim import SGD
from ooctrain.train import Trainer
from ooctrain.units import GIB, KIB, MIB

CHUNKS = tuple(64 * KIB << n for n in range(11))  # 64 KiB to 64 MiB
QUICK_CHUNKS = (64 * KIB, MIB, 16 * MIB)
MODEL, BATCH, BUDGET_BYTES = "resnet50", 928, 12 * GIB
#: A quarter of the way from the least to the most; in bytes, since a percentage grows with chunks.
DEVICE_MODEL, DEVICE_BATCH, DEVICE_BUDGET = "resnet18", 64, "200MiB"
WARM_UP_STEPS, TIMED_STEPS, QUICK_STEPS = 1, 4, 2
#: The paper's trade-off: the least that its GPU maps, the paper's choice, and one in between.
TRADED_CHUNKS, QUICK_TRADED = (2 * MIB, 10 * MIB, 40 * MIB), (2 * MIB, 40 * MIB)
TRADED_BATCHES, QUICK_TRADED_BATCHES = (190, 512, 928, 1440), (928,)


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """What one chunk size costs.

    Args:
        allocator: by name, with the chunk.
        chunk_bytes: its size.
        requested_bytes, reserved_bytes: at the peaks, replayed.
        live_blocks: the most at one time: N_max of equation 2.
        first_maps, later_maps: mapping changes of the first step and of the last one logged.
        step_us: of a real step on the cpu device; None: not measured, or it does not fit there.
    """

    allocator: str
    chunk_bytes: int
    requested_bytes: int
    reserved_bytes: int
    live_blocks: int
    first_maps: int
    later_maps: int
    step_us: float | None = None

    @property
    def wasted_bytes(self) -> int:
        """What rounding costs at the peak."""
        return self.reserved_bytes - self.requested_bytes


@dataclass(frozen=True, slots=True)
class ChunkTrade:
    """What a chunk size costs a step that was planned in it.

    Args:
        batch, chunk_bytes: which.
        live_blocks: N_max of equation 2, the most variables at one time.
        wasted_bytes: what rounding costs at the peak.
        images_per_s: simulated, without what mapping costs.
        maps: mapping changes of a later step as printed: each request is mapped anew.
    """

    batch: int
    chunk_bytes: int
    live_blocks: int
    wasted_bytes: int
    images_per_s: float
    maps: int


def chunk_trades(
    batches: Sequence[int] = TRADED_BATCHES, chunks: Sequence[int] = TRADED_CHUNKS,
    model: str = MODEL, physical_bytes: int = PHYSICAL_BYTES,
) -> list[ChunkTrade]:  # fmt: skip
    """Plans each batch in each chunk size, and asks for it as paper 000 prints it."""
    trades = []
    for batch in batches:
        bench = Bench(step_trace(model, batch))
        for chunk in chunks:
            plan = bench.plan(physical_bytes, chunk)
            log = allocation_log(plan.trace, plan.schedule, physical_bytes)
            found = replay(log, f"{PAPER_VA}:chunk={chunk}")
            stats = found.stats
            trades.append(
                ChunkTrade(
                    batch, chunk, most_live(log.requests),
                    stats.peak_reserved_bytes - stats.peak_requested_bytes,
                    batch / plan.makespan_us * 1e6, found.maps_by_step[-1],
                )
            )  # fmt: skip
    return trades


def replay_chunks(
    chunks: Sequence[int] = CHUNKS, allocator: str = "va", model: str = MODEL, batch: int = BATCH,
    budget_bytes: int = BUDGET_BYTES,
) -> list[ChunkCost]:  # fmt: skip
    """Replays one schedule with each chunk size."""
    plan = Bench(step_trace(model, batch)).plan(budget_bytes)
    log = allocation_log(plan.trace, plan.schedule, budget_bytes)
    costs = []
    for chunk in chunks:
        name = f"{allocator}:chunk={chunk}"
        found = replay(log, name)
        stats, maps = found.stats, found.maps_by_step
        costs.append(
            ChunkCost(
                name, chunk, stats.peak_requested_bytes, stats.peak_reserved_bytes,
                most_live(log.requests), maps[0], maps[-1],
            )
        )  # fmt: skip
    return costs


def most_live(requests: Iterable[Request]) -> int:
    """The most blocks at one time."""
    live = most = 0
    for request in requests:
        live += (request.op in ("allocate", "reserve")) - (request.op == "free")
        most = max(most, live)
    return most


def time_chunks(
    chunks: Sequence[int] = CHUNKS, steps: int = TIMED_STEPS, threads: int | None = None
) -> dict[int, float]:
    """Median time of real steps on the cpu device, in us, for each chunk size that fits.

    Two rounds through all sizes: the speed of a machine that others use too wanders.
    """
    times: dict[int, list[float]] = {}
    for chunk in [*chunks, *reversed(chunks)]:
        try:
            found = _step_times(f"va:chunk={chunk}", steps, threads)
        except (Infeasible, DoesNotFit):
            continue
        times.setdefault(chunk, []).extend(found)
    return {chunk: median(found) for chunk, found in times.items()}


def _step_times(allocator: str, steps: int, threads: int | None) -> list[float]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((DEVICE_BATCH, 3, 32, 32), np.float32)
    y = np.arange(DEVICE_BATCH) % 10
    times = []
    with _make_trainer(allocator, threads) as trainer:
        for number in range(WARM_UP_STEPS + steps):
            started = time.perf_counter()
            trainer.step(x, y)
            if number >= WARM_UP_STEPS:
                times.append((time.perf_counter() - started) * 1e6)
    return times


def _make_trainer(allocator: str, threads: int | None) -> Trainer:
    model = build(DEVICE_MODEL, 10, "cifar")
    return Trainer(
        model, optimizer=SGD(model.parameters(), lr=1e-3, momentum=0.9), budget=DEVICE_BUDGET,
        planner="window", allocator=allocator, threads=threads, machine="cpu-generic",
    )  # fmt: skip
