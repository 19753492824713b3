"""ResNet-50 in-core and in a seventh of the memory it needs: what of the throughput is kept.

In: a budget that stands for a small GPU. Out: images per second of the best in-core batch within
it, of 7.5 times as large a step within it by `auto` and by `window`, and of the same large step
in-core where this GPU has room. The one idea: the budget is taken from free memory, of the GPU and
of the host, so that the large step also fits in-core here and both can be compared. Times are from
the first instruction's begin to the last one's end, by the GPU's clock. Source: paper 000, figure 7
and section 5 (55 % at 7.5 times). Read next: `networks.py`, `mapping.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ooctrain as oc
from benchmarks.gpu.bench import Bench, NotRunError
from benchmarks.gpu.rehearsal import Kernels
from ooctrain.devices.cpu.host_vm import available_memory_bytes
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.engine.incore import initial_values
from ooctrain.execution.prepare import PreparedStep, Settings, prepare
from ooctrain.execution.sessions import input_values, open_session
from ooctrain.models import stem_for
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.timeline import Event, Timeline
from ooctrain.step.trace import Trace

REHEARSED_BY: Kernels = "cpu kernels"
OVERSUBSCRIPTION = 7.5
#: Most of the budget, and the shares of free memory that the large step may take.
MOST_BUDGET_BYTES, GPU_SHARE, HOST_SHARE = 6 << 30, 0.7, 0.4
VALUES_SHARE = 0.92
SCALARS = {"lr": 0.01, "seed": 0}
#: The first step compiles and maps.
STEPS = 3
STEP_LIMIT_S = 120.0
#: Within 20 s `auto` finds a plan that keeps four fifths by the model, within 2 s two thirds.
PLANNING_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A network whose batch is to be found.

    Args:
        name: in the zoo.
        side: of its images, in pixels.
        classes: of its labels.
    """

    name: str = "resnet50"
    side: int = 224
    classes: int = 1000

    def trace(self, batch: int) -> tuple[Trace, Any]:
        """One training step with SGD, and the model."""
        oc.manual_seed(0)
        model = oc.models.build(self.name, self.classes, stem_for(self.side, self.side))
        return oc.trace(model, (batch, 3, self.side, self.side), device="cuda"), model

    def batch_for(self, peak_bytes: float) -> int:
        """The largest batch whose step needs at most so much in-core; memory grows evenly."""
        small, large = (trace_peak_bytes(self.trace(batch)[0]) for batch in (8, 16))
        return int(8 + (peak_bytes - small) * 8 / (large - small))


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is compared.

    Args:
        workload: the network.
        budget_bytes: of the small GPU that is stood for.
        small, large: batches: the largest that fits in-core, and the one that is 7.5 times too big.
    """

    workload: Workload
    budget_bytes: int
    small: int
    large: int


def run(bench: Bench) -> None:
    """In-core first, since the others are judged by it."""
    best: dict[str, float] = {}
    sizes = _rehearsed() if bench.small else find_sizes()
    for batch in sorted({sizes.small, sizes.small * 7 // 8}):
        bench.check(f"in-core, batch {batch}", _in_core, sizes, batch, best, limit_s=STEP_LIMIT_S)
    for planner in ("auto", "window"):
        name = f"{planner} within the budget, batch {sizes.large}"
        bench.check(name, _within, sizes, planner, best, limit_s=STEP_LIMIT_S)
    bench.check(f"in-core, batch {sizes.large}", _same_batch, sizes, best, limit_s=STEP_LIMIT_S)


def find_sizes() -> Sizes:
    """A budget whose 7.5-fold fits this GPU and what is free of the host's memory."""
    workload, host = Workload(), available_memory_bytes() or 0
    room = min(cuda_open.look_at_gpu().free_bytes * GPU_SHARE, host * HOST_SHARE or 1e18)
    budget = min(MOST_BUDGET_BYTES, int(room / OVERSUBSCRIPTION))
    # Rounding to whole pieces of 2 MiB comes on top of the values.
    small = workload.batch_for(VALUES_SHARE * budget)
    return Sizes(workload, budget, small, workload.batch_for(OVERSUBSCRIPTION * budget))


def _rehearsed() -> Sizes:
    return Sizes(Workload("lenet", 32, 10), 2 << 20, 4, 24)


def _settings(budget: int | None, planner: str, allocator: str = "va") -> Settings:
    return Settings(budget, planner, allocator, "cuda", time_limit_s=PLANNING_LIMIT_S)


def _in_core(sizes: Sizes, batch: int, best: dict[str, float]) -> dict[str, float]:
    numbers = measure(sizes.workload, batch, _settings(None, "keep-all"))
    if numbers["budget_mb"] > sizes.budget_bytes / 1e6:
        raise NotRunError(f"needs {numbers['budget_mb']:.0f} MB, more than the budget")
    best["in-core"] = max(numbers["images_per_s"], best.get("in-core", 0.0))
    return numbers


def _within(sizes: Sizes, planner: str, best: dict[str, float]) -> dict[str, float]:
    how = _settings(sizes.budget_bytes, planner)
    numbers = measure(sizes.workload, sizes.large, how)
    best[planner] = numbers["images_per_s"]
    if "in-core" in best:
        kept = "kept_of_best" if planner == "auto" else "kept_of_best_by_window"
        numbers[kept] = numbers["images_per_s"] / best["in-core"]
    return numbers


def _same_batch(sizes: Sizes, best: dict[str, float]) -> dict[str, float]:
    numbers = measure(sizes.workload, sizes.large, _settings(None, "keep-all"))
    if "auto" in best:
        numbers["auto_keeps"] = best["auto"] / numbers["images_per_s"]
    return numbers


def measure(workload: Workload, batch: int, how: Settings) -> dict[str, float]:
    """Some steps on random images; the numbers of the fastest but the first.

    Raises:
        Infeasible, DoesNotFit: the planner finds nothing within the budget.
    """
    trace, model = workload.trace(batch)
    prepared = prepare(trace, how)
    timelines = _run_steps(prepared, how, trace, model, batch, workload)
    best = min(timelines[1:], key=lambda timeline: timeline.makespan_us)
    return {
        "images_per_s": batch / best.makespan_us * 1e6, "step_ms": best.makespan_us / 1e3,
        "predicted_ms": prepared.predict().makespan_us / 1e3,
        "budget_mb": prepared.budget_bytes / 1e6,
        "oversubscription": prepared.in_core_peak_bytes / prepared.budget_bytes,
        "copied_mb": (best.bytes_in + best.bytes_out) / 1e6,
        "recomputed_ms": best.recompute_us / 1e3, "stalled_ms": best.stall_us / 1e3,
        "copies_hidden": hidden_share(best),
    }  # fmt: skip


def hidden_share(timeline: Timeline) -> float:
    """Share of the copies' time during which a call ran too; 1 where nothing is copied."""
    calls = _merged([e for e in timeline.events if e.stream == "C"])
    copies = [e for e in timeline.events if e.stream != "C"]
    copied_us = sum(e.end_us - e.start_us for e in copies)
    hidden_us = sum(
        max(0.0, min(end, e.end_us) - max(start, e.start_us))
        for e in copies for start, end in calls
        if start < e.end_us and e.start_us < end
    )  # fmt: skip
    return hidden_us / copied_us if copied_us else 1.0


def _merged(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Times in which something runs, as intervals that do not touch."""
    found: list[tuple[float, float]] = []
    for event in sorted(events, key=lambda event: event.start_us):
        if found and event.start_us <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], event.end_us))
        else:
            found.append((event.start_us, event.end_us))
    return found


def _run_steps(
    prepared: PreparedStep, how: Settings, trace: Trace, model: Any, batch: int, workload: Workload
) -> list[Timeline]:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, 3, workload.side, workload.side), np.float32)
    labels = rng.integers(0, workload.classes, batch)
    planned, by_name = prepared.plan.trace, initial_values(trace, model)
    values = {v: by_name[planned.variables[v].name] for v in planned.end_variables}
    loss = planned.outputs["loss"]
    device, session = open_session(prepared, how, values, (loss,))
    try:
        timelines = []
        for step in range(STEPS):
            result = session.run_step(
                input_values(planned, images, labels), {**SCALARS, "step": step}
            )
            assert np.isfinite(result.outputs[loss]), f"the loss of step {step} is not finite"
            timelines.append(result.timeline)
        return timelines
    finally:
        session.close()
        device.close()
