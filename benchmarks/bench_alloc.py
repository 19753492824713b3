"""Allocators: pairs per second on recorded logs, their share of real steps, the cost of a mapping.

An allocator is called some thousand times a step, so what counts is its share of the step, not its
time. Measured are (1) pairs of allocate and free per second, on the log of a large training step
and on 100,000 random requests, over memory without bytes; (2) the share of a real out-of-core step
on the cpu device that is spent inside the allocator, system calls included; (3) the cost per MiB of
mapping fresh memory. Read next: `bench_blocks.py`.

    python -m benchmarks alloc [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

import ooctrain as oc
from benchmarks.common import machine_facts, table, threads_here, verdict
from ooctrain.alloc import AllocationLog, Request
from ooctrain.alloc.base import innermost
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.log import foresee, hold_whole
from ooctrain.alloc.registry import choose_dry
from ooctrain.alloc.replay import peak_bytes, serve
from ooctrain.alloc.static import Plannable
from ooctrain.alloc.va_paper import PaperVirtualAddressing
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.alloc.wrappers import Counted
from ooctrain.api import step_trace
from ooctrain.devices.cpu.host_vm import VirtualArena, why_no_virtual_memory
from ooctrain.devices.interface import Memory
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import OutOfDeviceMemory
from ooctrain.execution.placement import allocation_log
from ooctrain.experiments.paper_000.fragmentation import Bench
from ooctrain.units import GIB, KIB, MIB, format_bytes

MODEL, BATCH, BUDGET_BYTES = "resnet50", 928, 12 * GIB
RANDOM_REQUESTS = 100_000
#: Of the random log; the static ones must know the future, and plan for it in quadratic time.
MUST_BE_QUICK, MOST_SECONDS = ("best-fit", "va"), 1.0
#: Of a step in steady state, in va.
MOST_SHARE = 0.02
PAPER_COST = {64: 0.05, 190: 0.22, 256: 0.24, 928: -0.02}
ROUNDS, QUICK_ROUNDS = 9, 2
WARM_UP_STEPS = 3
STEP_BATCH, STEP_BUDGET = 64, "256MiB"
MAPPED_BYTES = 64 * MIB


def counted_va(memory: Memory) -> Counted:
    """For `--allocator FILE:counted_va`: va, with the time spent in it."""
    return Counted(VirtualAddressing(memory, **VirtualAddressing.defaults(memory.size_bytes)))


def counted_va_paper(memory: Memory) -> Counted:
    """va-paper with chunks as large as so small a network bears, with the time spent in it."""
    return Counted(PaperVirtualAddressing(memory, chunk=MIB))


def counted_va_paper_small(memory: Memory) -> Counted:
    """va-paper with va's chunks."""
    return Counted(PaperVirtualAddressing(memory, chunk=64 * KIB))


def counted_best_fit(memory: Memory) -> Counted:
    """best-fit, with the time spent in it."""
    return Counted(BestFit(memory))


COUNTED = {
    "va": counted_va,
    "va-paper:chunk=1MiB": counted_va_paper,
    "va-paper:chunk=64KiB": counted_va_paper_small,
    "best-fit": counted_best_fit,
}


def recorded_log() -> AllocationLog:
    """Three steps of ResNet-50 at batch 928 within 12 GiB."""
    plan = Bench(step_trace(MODEL, BATCH)).plan(BUDGET_BYTES)
    return allocation_log(plan.trace, plan.schedule, BUDGET_BYTES)


def random_log(count: int = RANDOM_REQUESTS, live: int = 300) -> AllocationLog:
    """Requests of 1 KiB to 64 MiB, about `live` of them at a time."""
    rng, requests, kept, made = random.Random(0), [], [], 0
    while len(requests) < count:
        if rng.random() * 2 * live < len(kept):
            requests.append(Request("free", kept.pop(rng.randrange(len(kept)))))
        else:
            requests.append(Request("allocate", made, int(2 ** rng.uniform(10, 26)), tag="x"))
            kept.append(made)
            made += 1
    return AllocationLog(requests, "", oc.Granule(), peak_bytes(requests))


def replay_rates(log: AllocationLog, names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Pairs a second of each allocator, planning included where it plans."""
    requests = hold_whole(log.requests)
    pairs = sum(request.op == "allocate" for request in requests)

    def contestant(name: str):
        arena = 4 * max(log.budget_bytes, peak_bytes(requests))
        choice = choose_dry(name, arena)

        def run() -> None:
            allocator = choice.make(DryMemory(arena))
            planned = innermost(allocator)
            if isinstance(planned, Plannable):
                planned.load_plan(foresee(requests, log.parameters))
            serve(requests, allocator)

        return run

    contestants = {name: contestant(name) for name in names}
    able = {name: run for name, run in contestants.items() if _serves(run)}
    # Processor time: replay is one thread of pure Python, and others use this machine too.
    times: dict[str, list[float]] = {name: [] for name in able}
    for _ in range(rounds):
        for name, run in able.items():
            started = time.process_time()
            run()
            times[name].append((time.process_time() - started) * 1e3)
    return [
        {"allocator": name, "requests": len(requests), "ms": median(times[name]),
         "pairs_per_s": pairs / median(times[name]) * 1e3}
        for name in able
    ]  # fmt: skip


def _serves(run: Callable[[], None]) -> bool:
    """Whether an allocator can serve a log at all; `bump`, for teaching, seldom can."""
    try:
        run()
    except OutOfDeviceMemory:
        return False
    return True


def step_shares(rounds: int, threads: int) -> list[dict[str, Any]]:
    """Share of real steps that is spent in each allocator, one after the other."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((STEP_BATCH, 3, 32, 32), np.float32), np.arange(STEP_BATCH) % 10
    return [_share(name, make, x, y, rounds, threads) for name, make in COUNTED.items()]


def _share(
    name: str, make: Callable[[Memory], Counted], x: np.ndarray, y: np.ndarray, rounds: int,
    threads: int,
) -> dict[str, Any]:  # fmt: skip
    rows: list[tuple[int, int, int, int]] = []
    with _trainer(f"{__file__}:{make.__name__}", threads) as trainer:
        for _ in range(WARM_UP_STEPS):
            trainer.step(x, y)
        counted = _counted(trainer)
        for _ in range(rounds):
            spent_ns, before = sum(counted.spent_ns.values()), counted.stats()
            started_ns = time.perf_counter_ns()
            trainer.step(x, y)
            step_ns = time.perf_counter_ns() - started_ns
            spent_ns, now = sum(counted.spent_ns.values()) - spent_ns, counted.stats()
            waited_ns = now.waited_ns - before.waited_ns
            rows.append((step_ns, spent_ns - waited_ns, waited_ns, now.maps - before.maps))
    return {
        "allocator": name, "step_ms": median(row[0] for row in rows) / 1e6,
        "spent_ms": median(row[1] for row in rows) / 1e6,
        "waited_ms": median(row[2] for row in rows) / 1e6,
        "share": median(row[1] / row[0] for row in rows),
        "maps_per_step": median(row[3] for row in rows),
    }  # fmt: skip


def _trainer(allocator: str, threads: int) -> oc.Trainer:
    model = oc.models.build("resnet18", stem="cifar")
    optimizer = oc.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return oc.Trainer(
        model, optimizer=optimizer, budget=STEP_BUDGET, planner="window", allocator=allocator,
        threads=threads, machine="cpu-generic",
    )  # fmt: skip


def _counted(trainer: oc.Trainer) -> Counted:
    prepared = trainer.prepared
    session = trainer._residence.session(  # the executor's own door is not meant for users
        prepared, trainer.settings, (prepared.plan.trace.outputs["loss"],)
    )
    allocator: Any = session.allocator
    while not isinstance(allocator, Counted):
        allocator = allocator.inner
    return allocator


def mapping_costs(rounds: int) -> list[dict[str, Any]]:
    """Microseconds a MiB to map fresh memory, to write it first and again, and to unmap it."""
    results = []
    for chunk in (64 * KIB, 2 * MIB, 16 * MIB):
        samples: dict[str, list[float]] = {"map": [], "first write": [], "write": [], "unmap": []}
        for _ in range(rounds):
            for what, us in _map_once(chunk).items():
                samples[what].append(us / (MAPPED_BYTES / MIB))
        results.append({"chunk_bytes": chunk, **{k: median(v) for k, v in samples.items()}})
    return results


def _map_once(chunk: int) -> dict[str, float]:
    arena = VirtualArena(MAPPED_BYTES)
    address = arena.reserve(MAPPED_BYTES)
    offsets = range(0, MAPPED_BYTES, chunk)
    view = bytes_at(address, MAPPED_BYTES)

    def map_all() -> None:
        # In reverse, so that the system cannot join neighbours into one mapping.
        for at in offsets:
            arena.map(address + at, MAPPED_BYTES - chunk - at, chunk)

    times = {}
    for what, work in {
        "map": map_all,
        "first write": lambda: view.fill(1),
        "write": lambda: view.fill(2),
        "unmap": lambda: arena.unmap(address, MAPPED_BYTES),
    }.items():  # fmt: skip
        started = time.perf_counter()
        work()
        times[what] = (time.perf_counter() - started) * 1e6
    arena.release(address)
    arena.close()
    return times


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_alloc", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=QUICK_ROUNDS if quick else ROUNDS)
    parser.add_argument("--threads", type=int, default=threads_here())
    options = parser.parse_args(arguments)
    facts, missed = machine_facts(), []
    names = oc.allocators()
    online = [name for name in names if not name.startswith("first-fit")]
    rates = {
        "recorded": replay_rates(recorded_log(), names, options.rounds),
        "random": replay_rates(random_log(), online, max(2, options.rounds // 3)),
    }
    rows = []
    for log, found in rates.items():
        for rate in found:
            wanted = log == "random" and rate["allocator"] in MUST_BE_QUICK
            ok = not wanted or rate["ms"] < MOST_SECONDS * 1e3
            missed += [] if ok else [f"{rate['allocator']}, random log"]
            rows.append([f"{log}, {rate['requests']:,} requests", rate["allocator"],
                         f"{rate['ms']:.0f}", f"{rate['pairs_per_s']:,.0f}",
                         verdict(ok) if wanted else ""])  # fmt: skip
    print(table(["log", "allocator", "CPU ms", "pairs/s", f"< {MOST_SECONDS:.0f} s"], rows))
    results: dict[str, Any] = {"machine": facts, "rates": rates, "paper_cost": PAPER_COST}
    if not why_no_virtual_memory():
        results |= _on_this_machine(options, missed)
    return {**results, "missed": missed}


def _on_this_machine(options: argparse.Namespace, missed: list[str]) -> dict[str, Any]:
    shares = step_shares(options.rounds, options.threads)
    rows = []
    for found in shares:
        wanted = found["allocator"] == "va"
        ok = not wanted or found["share"] <= MOST_SHARE
        missed += [] if ok else ["share of va in a step"]
        rows.append([found["allocator"], f"{found['step_ms']:.1f}", f"{found['spent_ms']:.2f}",
                     f"{100 * found['share']:.2f} %", f"{found['waited_ms']:.1f}",
                     f"{found['maps_per_step']:.0f}",
                     verdict(ok) if wanted else ""])  # fmt: skip
    paper = ", ".join(f"{cost:.0%} at batch {batch}" for batch, cost in PAPER_COST.items())
    print(f"\nReal steps, ResNet-18, batch {STEP_BATCH}, {STEP_BUDGET} (paper 000's va: {paper})")
    header = ["allocator", "step ms", "in it ms", "share", "waits ms", "maps a step",
              f"<= {MOST_SHARE:.0%}"]  # fmt: skip
    print(table(header, rows))
    costs = mapping_costs(options.rounds)
    print("\nFresh mappings, us a MiB")
    shown = [[format_bytes(c["chunk_bytes"]), *(f"{c[k]:.0f}" for k in list(c)[1:])] for c in costs]
    print(table(["chunk", "map", "first write", "write", "unmap"], shown))
    return {"shares": shares, "mapping": costs}


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
