"""ResNet-50 in-core and in a seventh of the memory it needs: how much of the throughput remains.

Within a budget that stands for a small GPU it measures images per second of the best in-core batch,
and of 7.5 times as large a step by `auto` and by `window`; and of the same large step in-core where
this GPU has room. The budget is taken from free memory, of the GPU and of the host, so that the
large step also fits in-core here and both can be compared. Steps launched as a whole (CUDA graphs)
are measured too, and what each costs the host. Times are from the first instruction's begin to the
last one's end, by the GPU's clock. Source: paper 000, figure 7 and section 5 (55 % at 7.5 times).
Read next: `plans.py`, `mapping.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu.bench import Bench, NotRunError
from benchmarks.gpu.plan_file import by_file
from benchmarks.gpu.plans import PLANNERS, Planned, planned_in
from benchmarks.gpu.workload import OVERSUBSCRIPTION, Sizes, Workload, settings, sizes_for
from ooctrain.devices.cpu.host_vm import available_memory_bytes
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.engine.incore import initial_values
from ooctrain.execution.ahead import lay_out
from ooctrain.execution.captured_steps import MOST_TRIES
from ooctrain.execution.fit import prepare
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.result import StepResult
from ooctrain.execution.sessions import input_values, open_session
from ooctrain.execution.settings import Settings
from ooctrain.sched.timeline import Timeline, TimelineEvent
from ooctrain.step.trace import Trace

#: Most of the budget, and the shares of free memory that the large step may take.
MOST_BUDGET_BYTES, GPU_SHARE, HOST_SHARE = 6 << 30, 0.7, 0.4
SCALARS = {"lr": 0.01, "seed": 0}
#: The first step compiles and maps.
STEPS = 3
#: As many may be walked until one is recorded (`replay.MOST_TRIES`), and two more.
GRAPH_STEPS = MOST_TRIES + 2
IN_CORE = settings(None, "keep-all")
STEP_LIMIT_S = 120.0
REHEARSED = Planned(Sizes(Workload("plain", 8, 10), 800 << 10, 4, 48))


@dataclass(frozen=True)
class Case:
    """A step to be run.

    Args:
        workload, batch, how: of the step.
        file: of a plan made beforehand; "", or one that does not fit this code: plans here.
    """

    workload: Workload
    batch: int
    how: Settings
    file: str = ""

    def prepared(self) -> tuple[Trace, Any, PreparedStep]:
        """The traced step, its model and plan, once in a process."""
        return _prepared_once(self)


@cache
def _prepared_once(case: Case) -> tuple[Trace, Any, PreparedStep]:
    trace, model = case.workload.trace(case.batch)
    return trace, model, _prepared(trace, case.how, case.file)


def _prepared(trace: Trace, how: Settings, plan_file: str) -> PreparedStep:
    """By the plan of a file, else planned here."""
    return by_file(trace, how, plan_file) or prepare(trace, how)


def run(bench: Bench) -> None:
    """In-core first, since the others are judged by it; then the target, then the rest."""
    best: dict[str, float] = {}
    planned = find_planned(bench)
    sizes, large = planned.sizes, planned.sizes.large
    for batch in sorted({sizes.small, sizes.small * 7 // 8}):
        bench.check(f"in-core, batch {batch}", _in_core, sizes, batch, best, limit_s=STEP_LIMIT_S)
    for planner in PLANNERS:
        name = f"{planner} within the budget, batch {large}"
        bench.check(name, _within, planned, planner, best, limit_s=STEP_LIMIT_S)
    for name, case in _graph_cases(planned, bench.small):
        bench.check(f"by graphs: {name}", by_graphs, case, limit_s=STEP_LIMIT_S)
    bench.check(f"in-core, batch {large}", _same_batch, sizes, best, limit_s=STEP_LIMIT_S)


def _graph_cases(planned: Planned, small: bool) -> Iterator[tuple[str, Case]]:
    """In-core, and within the budget; where the PTX interpreter runs them, the first alone."""
    sizes, large = planned.sizes, planned.sizes.large
    yield f"in-core, batch {sizes.small}", Case(sizes.workload, sizes.small, IN_CORE)
    for planner in () if small else PLANNERS:
        how, file = settings(sizes.budget_bytes, planner), planned.files.get(planner, "")
        yield f"{planner}, batch {large}", Case(sizes.workload, large, how, file)


def find_planned(bench: Bench) -> Planned:
    """A budget whose 7.5-fold fits this GPU and the host's memory, with its plans if they were made
    beforehand."""
    if bench.small:
        return REHEARSED
    host = bench.asked.host_bytes or (available_memory_bytes() or 0) * HOST_SHARE or 1e18
    room = min(cuda_open.look_at_gpu().free_bytes * GPU_SHARE, host)
    made = planned_in(bench.asked.plans, room)
    budget = min(MOST_BUDGET_BYTES, int(room / OVERSUBSCRIPTION))
    return made or Planned(sizes_for(Workload(), budget))


def _in_core(sizes: Sizes, batch: int, best: dict[str, float]) -> dict[str, float]:
    numbers = measure(Case(sizes.workload, batch, IN_CORE))
    if numbers["budget_mb"] > sizes.budget_bytes / 1e6:
        raise NotRunError(f"needs {numbers['budget_mb']:.0f} MB, more than the budget")
    best["in-core"] = max(numbers["images_per_s"], best.get("in-core", 0.0))
    return numbers


def _within(planned: Planned, planner: str, best: dict[str, float]) -> dict[str, float]:
    sizes, how = planned.sizes, settings(planned.sizes.budget_bytes, planner)
    numbers = measure(Case(sizes.workload, sizes.large, how, planned.files.get(planner, "")))
    best[planner] = numbers["images_per_s"]
    if "in-core" in best:
        kept = "kept_of_best" if planner == "auto" else "kept_of_best_by_window"
        numbers[kept] = numbers["images_per_s"] / best["in-core"]
    return numbers


def _same_batch(sizes: Sizes, best: dict[str, float]) -> dict[str, float]:
    numbers = measure(Case(sizes.workload, sizes.large, IN_CORE))
    if "auto" in best:
        numbers["auto_keeps"] = best["auto"] / numbers["images_per_s"]
    return numbers


def measure(case: Case) -> dict[str, float]:
    """Some steps on random images; the numbers of the fastest but the first.

    Raises:
        Infeasible, DoesNotFit: the planner finds nothing within the budget.
    """
    began = time.perf_counter()
    prepared = case.prepared()[2]
    prepared_s = time.perf_counter() - began
    found, _ = _run_steps(case, STEPS)
    host_ms = min(ms for _, ms in found[1:])
    best = min((result.timeline for result, _ in found[1:]), key=lambda line: line.makespan_us)
    return {
        "images_per_s": case.batch / best.makespan_us * 1e6, "step_ms": best.makespan_us / 1e3,
        "host_ms": host_ms, "prepared_s": prepared_s,
        "predicted_ms": prepared.predict().makespan_us / 1e3,
        "budget_mb": prepared.budget_bytes / 1e6,
        "oversubscription": prepared.in_core_peak_bytes / prepared.budget_bytes,
        "copied_mb": (best.bytes_in + best.bytes_out) / 1e6,
        "recomputed_ms": best.recompute_us / 1e3, "stalled_ms": best.stall_us / 1e3,
        "copies_hidden": hidden_share(best),
    }  # fmt: skip


def by_graphs(case: Case) -> dict[str, Any]:
    """The same steps, each launched as a whole, with the losses of walked ones to the bit;
    `refused` says why they are walked instead."""
    losses = {}
    for launcher in ("driver", "graph"):
        with mock.patch.dict(os.environ, OOCTRAIN_LAUNCHER=launcher):
            found, refusal = _run_steps(case, GRAPH_STEPS)
        losses[launcher] = [[v.tobytes() for v in result.outputs.values()] for result, _ in found]
    assert losses["graph"] == losses["driver"], "steps by graphs have other losses than walked ones"
    whole = [(result.captured_us, ms) for result, ms in found if result.captured_us is not None]
    if not whole:
        walked = min(result.timeline.makespan_us for result, _ in found[1:])
        return {"refused": refusal, "step_ms": walked / 1e3, "host_ms": found[-1][1]}
    step_us = min(us for us, _ in whole)
    numbers = {"step_ms": step_us / 1e3, "host_ms": min(ms for _, ms in whole)}
    return {"images_per_s": case.batch / max(step_us, 1e-3) * 1e6, **numbers}


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


def _merged(events: Sequence[TimelineEvent]) -> list[tuple[float, float]]:
    """Times in which something runs, as intervals that do not touch."""
    found: list[tuple[float, float]] = []
    for event in sorted(events, key=lambda event: event.start_us):
        if found and event.start_us <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], event.end_us))
        else:
            found.append((event.start_us, event.end_us))
    return found


def _run_steps(case: Case, steps: int) -> tuple[list[tuple[StepResult, float]], str]:
    """(each step's result, with milliseconds that the host was at work; why none was recorded).

    The batch is laid out beforehand: what that takes hangs on its size, not on the step.
    """
    trace, model, prepared = case.prepared()
    rng, side = np.random.default_rng(0), case.workload.side
    images = rng.standard_normal((case.batch, 3, side, side), np.float32)
    labels = rng.integers(0, case.workload.classes, case.batch)
    planned, by_name = prepared.plan.trace, initial_values(trace, model)
    values = {v: by_name[planned.variables[v].name] for v in planned.end_variables}
    loss = planned.outputs["loss"]
    device, session = open_session(prepared, case.how, values, (loss,))
    try:
        inputs = lay_out(device, planned, input_values(planned, images, labels))
        assert inputs is not None, "images are arrays"
        found = []
        for step in range(steps):
            began = time.perf_counter()
            with _waiting(device) as waited:
                result = session.run_step(inputs, {**SCALARS, "step": step})
            found.append((result, (time.perf_counter() - began - sum(waited)) * 1e3))
            assert np.isfinite(result.outputs[loss]), f"the loss of step {step} is not finite"
        refusal = session.captured.refusal
        return found, str(refusal) if refusal else ""
    finally:
        session.close()
        device.close()


@contextmanager
def _waiting(device: Any) -> Iterator[list[float]]:
    """The seconds of each wait of the host for the GPU."""
    found: list[float] = []

    def timed(wait: Callable[..., object]) -> Callable[..., None]:
        def run(handle: int) -> None:
            began = time.perf_counter()
            wait(handle)
            found.append(time.perf_counter() - began)

        return run

    driver = device._driver
    names = ("synchronize_event", "synchronize_stream")
    with mock.patch.multiple(driver, **{name: timed(getattr(driver, name)) for name in names}):
        yield found
