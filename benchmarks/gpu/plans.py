"""`make gpu-plans OUT=folder`: the plans of `networks`, `steps` and `mapping`, made without a GPU.

The step is known before the GPU is, so its plan can be searched for as long as the planner likes,
and `make gpu PLANS=folder` spends none of the GPU's minutes on it. Only the memory that is free
there is unknown, so there are several budgets to choose from. The folder gets a plan for each
planner and budget, and an index of the batches that they are for. A plan that no longer fits the
code is made anew on the spot. Read next: `plan_file.py`, `steps.py`, `mapping.py`.

    python -m benchmarks.gpu.plans FOLDER [--budgets 6GiB,1GiB] [--limit SECONDS]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import ooctrain as oc
from benchmarks.gpu.bench import NotRunError
from benchmarks.gpu.networks import SWAPPED, Network, first_that_fits, pairs, plan_name
from benchmarks.gpu.workload import (
    ALLOCATORS,
    OVERSUBSCRIPTION,
    Sizes,
    Workload,
    largest_batch,
    settings,
    sizes_for,
)
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.execution.fit import prepare
from ooctrain.step.machine import Machine
from ooctrain.step.presets import machine as find_machine
from ooctrain.units import GIB, format_bytes, parse_bytes

INDEX = "plans.json"
#: What GPUs map in.
SUPPOSED = cuda_open.Gpu("supposed", 13000, (9, 0), 2 << 20, 141 << 30, 141 << 30)
PLANNERS = ("auto", "window")
#: For an H200 or H100; for GPUs of 24 and of 16 GB.
BUDGETS = "6GiB,2GiB,1GiB"
#: Up to this budget plans are for a small GPU.
SMALL_BUDGET_BYTES = 2 * GIB


def small_gpu() -> Machine:
    """A T4: half of 8.1 TFLOP/s, three quarters of 320 GB/s, PCIe 3.0 x16; NVIDIA's data sheet."""
    return replace(
        find_machine("h200-pcie"), name="t4", flops_per_us=4.3e6, memory_bytes_per_us=240e3,
        link_bytes_per_us=11e3, device_bytes=15 * GIB, host_bytes=11 * GIB,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planned:
    """What was planned for one budget.

    Args:
        sizes: budget and batches of `steps`.
        files: {planner: file of its plan}; a planner that found none is not in it.
        largest: {allocator: largest batch that it can be planned for}.
        largest_files: {allocator: file of that plan}.
    """

    sizes: Sizes
    files: Mapping[str, str] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    largest_files: Mapping[str, str] = field(default_factory=dict)


def planned_in(folder: str | Path, room_bytes: float) -> Planned | None:
    """The largest budget whose 7.5-fold fits the room, its files as paths; None: there is none."""
    index = Path(folder) / INDEX
    if not folder or not index.is_file():
        return None
    found = [
        _read(Path(folder), data)
        for data in json.loads(index.read_text(encoding="utf-8"))["planned"]
    ]
    fits = [p for p in found if OVERSUBSCRIPTION * p.sizes.budget_bytes <= room_bytes]
    return max(fits, key=lambda planned: planned.sizes.budget_bytes, default=None)


def _read(folder: Path, data: Mapping[str, Any]) -> Planned:
    sizes = {**data["sizes"], "workload": Workload(**data["sizes"]["workload"])}
    files, others = (
        {name: str(folder / file) for name, file in data[key].items()}
        for key in ("files", "largest_files")
    )
    return Planned(Sizes(**sizes), files, data["largest"], others)


def main(
    arguments: Sequence[str] | None = None, workload: Workload | None = None,
    network: Network = SWAPPED,
) -> int:  # fmt: skip
    """Fills the folder; each budget's line of the index is written when its plans are."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.plans", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budgets", default=BUDGETS, help=f"default: {BUDGETS}")
    parser.add_argument("--limit", type=float, help="seconds for a planner; default: none")
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    made: list[Planned] = []
    with supposed_gpu():
        for text in asked.budgets.split(","):
            sizes = sizes_for(workload or Workload(), parse_bytes(text))
            made.append(_plan(asked.folder, sizes, asked.limit))
            _write(asked.folder, made)
        plan_networks(asked.folder, network)
    return 0


def _write(folder: Path, made: Sequence[Planned]) -> None:
    data = {"version": 1, "planned": [asdict(planned) for planned in made]}
    (folder / INDEX).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


@contextmanager
def supposed_gpu() -> Iterator[None]:
    """Whoever plans for a GPU plans for one that is not here."""
    with mock.patch.multiple(
        cuda_open, look_at_gpu=lambda: SUPPOSED, require_compiler=lambda gpu: None
    ):
        yield


def _plan(folder: Path, sizes: Sizes, limit_s: float | None) -> Planned:
    """All plans for one budget."""
    where = small_gpu() if sizes.budget_bytes <= SMALL_BUDGET_BYTES else find_machine("h200-pcie")
    trace = sizes.workload.trace(sizes.large)[0]
    stem = f"{sizes.workload.name}-{sizes.budget_bytes >> 20}MiB"
    files = {}
    for planner in PLANNERS:
        how = replace(settings(sizes.budget_bytes, planner), machine=where, time_limit_s=limit_s)
        began = time.monotonic()
        made = prepare(trace, how)
        files[planner] = f"{stem}-{planner}.json"
        made.plan.save(str(folder / files[planner]))
        step_ms, seconds = made.predict().makespan_us / 1e3, time.monotonic() - began
        _tell(sizes, f"{planner} at batch {sizes.large}: {step_ms:.0f} ms a step", seconds)
    largest, largest_files = {}, {}
    for name in ALLOCATORS:
        how = replace(settings(sizes.budget_bytes, "window", name), machine=where)
        began = time.monotonic()
        largest[name], fitting = largest_batch(sizes, how)
        if fitting is not None:
            largest_files[name] = f"{stem}-largest-{name}.json"
            fitting.plan.save(str(folder / largest_files[name]))
        _tell(sizes, f"largest batch with {name}: {largest[name]}", time.monotonic() - began)
    return Planned(sizes, files, largest, largest_files)


def plan_networks(folder: Path, network: Network) -> None:
    """A plan by each planner and for each allocator, where there is one."""
    began, trace = time.monotonic(), oc.trace(network.build(), network.shape, device="cuda")
    for planner, allocator in pairs():
        with suppress(NotRunError):
            made = first_that_fits(trace, planner, allocator)
            made.plan.save(str(folder / plan_name(network, planner, allocator)))
    print(
        f"{network.name}: every planner and allocator, {time.monotonic() - began:.0f} s", flush=True
    )


def _tell(sizes: Sizes, what: str, seconds: float) -> None:
    print(f"{format_bytes(sizes.budget_bytes)}: {what}, planned in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
