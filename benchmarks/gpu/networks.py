"""Whole networks on the GPU: close to float64, and out-of-core equal to in-core, to the bit.

Networks of the zoo run on random batches: a check of accuracy for each, a check of bits for each
planner and each allocator. The error of all gradients together against the NumPy definitions in
float64, computed beforehand (`float64.py`), may be at most twice the cpu device's own. A step that
swaps or recomputes may not differ in a single bit from one that stays in memory. Source:
docs/architecture.md, "Laws that hold everywhere". Read next: `tests/support/same_bits.py`,
`memory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
from support.same_bits import Values, check_same_bits, out_of_core

import ooctrain as oc
from benchmarks.common import threads_here
from benchmarks.gpu.bench import Bench, NotRunError
from benchmarks.gpu.float64 import hash_of, read_answers
from benchmarks.gpu.plan_file import by_file
from ooctrain import nn
from ooctrain.alloc.registry import allocators
from ooctrain.devices.spill import Spill
from ooctrain.engine.incore import Mode, initial_values, run_trace
from ooctrain.errors import ConfigError, DoesNotFit, Infeasible, ShapeError
from ooctrain.execution.fit import prepare
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.settings import Settings
from ooctrain.sched.planners.registry import planners
from ooctrain.step.trace import Trace

SCALARS = {"lr": 0.05, "seed": 3, "step": 0}
#: Tried one after the other, until one is feasible.
BUDGETS = ("30%", "50%", "75%")
CLASSES = 10
#: The accuracy wanted, against the cpu device's.
MOST_TIMES_CPU = 2.0
#: Errors below this are rounding of the result itself.
LEAST_ERROR = 1e-7


@dataclass(frozen=True, slots=True)
class Network:
    """A network of the zoo and its images.

    Args:
        name: in the zoo, or "plain": two convolutions, for rehearsals.
        shape: of a batch.
    """

    name: str
    shape: tuple[int, int, int, int]

    def build(self) -> nn.Module:
        """With the same first weights each time."""
        oc.manual_seed(0)
        if self.name == "plain":
            return nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
                nn.Linear(8 * self.shape[2] * self.shape[3] // 4, CLASSES),
            )  # fmt: skip
        return oc.models.build(self.name, CLASSES, "cifar")

    def batch(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Random images and labels."""
        rng = np.random.default_rng(seed)
        images = rng.standard_normal(self.shape, np.float32)
        return images, rng.integers(0, CLASSES, self.shape[0])


PLAIN = Network("plain", (4, 3, 8, 8))
TRUE_TO_FLOAT64 = (PLAIN, Network("lenet", (16, 3, 32, 32)), Network("resnet18", (4, 3, 32, 32)))
SWAPPED = Network("resnet18", (64, 3, 32, 32))


def run(bench: Bench) -> None:
    """Accuracy first; then every planner, every allocator, a disk."""
    small = bench.small
    for network in TRUE_TO_FLOAT64[:1] if small else TRUE_TO_FLOAT64:
        bench.check(f"{network.name}: error against float64", _accuracy, network)
    swapped = PLAIN if small else SWAPPED
    found: dict[str, Any] = {}
    bench.check(f"{swapped.name} in-core", in_core, swapped, found)
    plans = "" if small else bench.asked.plans
    for planner in planners():
        bench.check(f"planner {planner}", same_bits, swapped, planner, "va", found, plans)
    for allocator in allocators():
        bench.check(f"allocator {allocator}", same_bits, swapped, "window", allocator, found, plans)
    bench.check("swapped to a disk", spilled, swapped, found)


def _settings(
    budget: str | None, planner: str, allocator: str, spill: Spill | None = None
) -> Settings:
    return Settings(
        budget, planner, allocator, "cuda", time_limit_s=1.0, machine="h200-pcie", spill=spill
    )


def _accuracy(network: Network) -> dict[str, float]:
    """Error of the gradients of one step, beside the cpu device's, relative to their size."""
    gpu = oc.trace(network.build(), network.shape, device="cuda", optimizer=None)
    start, batch = initial_values(gpu, network.build()), network.batch(1)
    answer = read_answers()[network.name]
    if answer.inputs != hash_of(_begin(start, batch)):
        raise NotRunError(
            "weights or images are others here than those of the answers in float64: "
            "python -m benchmarks.gpu.float64 makes these anew"
        )
    how = _settings(None, "keep-all", "best-fit")
    (found,) = out_of_core(prepare(gpu, how), how, start, [batch], SCALARS)
    numbers = {
        "gpu_error": answer.error(found), "cpu_error": answer.cpu_error,
        "gpu_loss": float(found["loss"]), "float64_loss": answer.loss,
    }  # fmt: skip
    limit = MOST_TIMES_CPU * max(answer.cpu_error, LEAST_ERROR)
    assert numbers["gpu_error"] <= limit, f"more than twice the cpu device's error: {numbers}"
    return numbers


def on_cpu(network: Network, device: Mode) -> tuple[Values, Values]:
    """(what a step begins with, what it gives), by the cpu device or in float64: "reference"."""
    threads = threads_here()
    cpu = oc.trace(network.build(), network.shape, device="cpu", threads=threads, optimizer=None)
    begin = _begin(initial_values(cpu, network.build()), network.batch(1))
    return begin, run_trace(cpu, begin, SCALARS, device, threads=threads)


def error_of(found: Values, exact: Values) -> float:
    """|all gradients - exact ones| / |exact ones|."""
    names = [name for name in exact if name.startswith("grad:")]
    wrong = sum(float(((found[n] - exact[n]) ** 2).sum()) for n in names)
    size = sum(float((exact[n] ** 2).sum()) for n in names)
    return (wrong / size) ** 0.5


def _begin(start: Values, batch: tuple[np.ndarray, np.ndarray]) -> Values:
    return {**start, "input": batch[0], "target": batch[1]}


def in_core(network: Network, found: dict[str, Any]) -> dict[str, float]:
    """Two steps with everything in memory; kept in `found` for the others."""
    how = _settings(None, "keep-all", "best-fit")
    found["trace"] = oc.trace(network.build(), network.shape, device="cuda")
    found["start"] = initial_values(found["trace"], network.build())
    found["batches"] = [network.batch(seed) for seed in range(2)]
    prepared = prepare(found["trace"], how)
    found["steps"] = _train(prepared, how, found)
    assert np.isfinite(found["steps"][-1]["loss"]), "the loss is not finite"
    return {"peak_mb": prepared.in_core_peak_bytes / 1e6, "loss": found["steps"][-1]["loss"]}


def same_bits(
    network: Network, planner: str, allocator: str, found: dict[str, Any], plans: str = ""
) -> dict[str, Any]:
    """The same two steps within the first budget that the planner can do with.

    Args:
        found: what `in_core` has left; filled if it is empty.
        plans: folder of plans made beforehand; "": none.
    """
    if "steps" not in found:
        in_core(network, found)
    how = _settings(None, planner, allocator)
    file = Path(plans) / plan_name(network, planner, allocator) if plans else ""
    prepared = by_file(found["trace"], how, file)
    prepared = prepared or first_that_fits(found["trace"], planner, allocator)
    check_same_bits(_train(prepared, how, found), found["steps"])
    return {"share_of_in_core_peak": prepared.plan.peak_bytes / prepared.in_core_peak_bytes}


def spilled(network: Network, found: dict[str, Any]) -> dict[str, Any]:
    """The same two steps with the folder for temporary files in place of host memory."""
    if "steps" not in found:
        in_core(network, found)
    spill = Spill(gettempdir())
    try:
        prepared = first_that_fits(found["trace"], "window", "va", spill)
    except ConfigError as refusal:  # memory, or a file system that takes no such files
        raise NotRunError(refusal.what) from None
    how = _settings(None, "window", "va", spill)
    check_same_bits(_train(prepared, how, found), found["steps"])
    return {"written_mb": prepared.host_written_bytes / 1e6}


def plan_name(network: Network, planner: str, allocator: str) -> str:
    """Of the file with a plan."""
    return f"{network.name}-{planner}-{allocator}.json"


def first_that_fits(
    trace: Trace, planner: str, allocator: str, spill: Spill | None = None
) -> PreparedStep:
    """Planned within the first budget that will do. Raises NotRunError: none will."""
    reasons = []
    for budget in BUDGETS:
        try:
            return prepare(trace, _settings(budget, planner, allocator, spill))
        except (Infeasible, DoesNotFit, ShapeError) as error:
            reasons.append(f"{budget}: {error.what}")
    raise NotRunError("; ".join(reasons))


def pairs() -> list[tuple[str, str]]:
    """(planner, allocator): each planner, each allocator."""
    return [*((name, "va") for name in planners()), *(("window", name) for name in allocators())]


def _train(prepared: Any, how: Settings, found: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
    return out_of_core(prepared, how, found["start"], found["batches"], SCALARS)
