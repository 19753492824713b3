"""The contestants of `bench_memory.py`: one process each, which trains when it is told.

A side is our trainer in-core, within a memory, or within a share of the device's with the disk as
host; or one of torch's ways (`memory_torch.py`). All start from the same weights and get the same
batch. A side runs one tiny step first, which loads kernels and libraries; then it says "ready",
waits for a line, and runs. One that compiles says "warm" after its first step and waits again. What
it grows by is measured by the parent, from outside. Without steps it only plans. Read next:
`memory_process.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ooctrain as oc
from benchmarks.memory_cases import (
    LR,
    MICRO_BATCHES,
    TINY,
    Case,
    Side,
    from_words,
    make_batch,
    make_model,
    mib,
)
from ooctrain.devices.cpu.process_memory import give_back_unused, held
from ooctrain.devices.spill import Spill
from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.machine.calibrate import calibrate
from ooctrain.machine.measured import profile_of_steps
from ooctrain.step.machine import Disk, Machine
from ooctrain.step.presets import TYPICAL_DISK, on_disk, save_calibration
from ooctrain.step.presets import machine as find_machine
from ooctrain.units import MIB

#: Bytes per microsecond.
ONE_GB_A_SECOND = 1e3
#: Of a process beside what it held, its batch in another layout and its arena: objects of the list,
#: threads, buffers of the disk.
BESIDES_BYTES = 96 * MIB
#: Of a calibration: what its steps are planned for, how many, and their learning rate.
CPU_PRESET, CALIBRATED_STEPS, STEADY_LR = "cpu-generic", 3, 1e-6


@dataclass(frozen=True, slots=True)
class OurStep:
    """Our trainer with its batch."""

    trainer: oc.Trainer
    x: Any
    y: Any
    machine: Machine

    def __call__(self) -> float:
        return self.trainer.step(self.x, self.y)

    def plan(self) -> dict[str, Any]:
        """What is planned, before any step."""
        self.trainer.prepare(self.x.shape, self.y.shape)
        return self.facts()

    def facts(self) -> dict[str, Any]:
        """The plan; and where the host is a disk, what a step would take on one of 1 GB/s."""
        prepared, timeline = self.trainer.prepared, self.trainer.timeline
        assert prepared is not None
        found = {
            "planner": str(prepared.plan.notes.get("planner", "")),
            "rewrites": list(prepared.plan.rewrites),
            "arena_mib": mib(prepared.budget_bytes),
            "in_core_arena_mib": mib(prepared.in_core_peak_bytes),
            "predicted_s": prepared.predict().makespan_us / 1e6,
        }  # fmt: skip
        if self.trainer.settings.spill is not None:
            found["planned_written_mib"] = mib(prepared.host_written_bytes)
        if self.trainer.settings.spill is not None and timeline is not None:
            profile = profile_of_steps([timeline], prepared.plan.trace)
            for name, disk in (
                ("here", self.trainer.settings.machine.disk),
                ("1gbs", TYPICAL_DISK),
            ):
                there = on_disk(replace(self.machine, profile=profile, disk=disk))
                found[f"predicted_{name}_s"] = prepared.predict(there).makespan_us / 1e6
        return found


def our_step(case: Case, side: Side, threads: int) -> OurStep:
    """Our trainer within what the side asks for."""
    model, (x, y) = make_model(case), make_batch(case)
    optimizer = oc.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    machine = find_machine(side.machine or None, "cpu")
    settings: dict[str, Any] = {
        "planner": side.planner, "threads": threads, "machine": machine,
    }  # fmt: skip
    if side.folder:
        disk = Disk(*side.rates, side.link, side.latency_us, side.folder)
        limit = ONE_GB_A_SECOND if min(side.rates) > ONE_GB_A_SECOND else None
        settings["spill"] = Spill(side.folder, limit)
        settings["machine"] = replace(machine, disk=disk)
    now = held()
    assert now is not None
    if side.how == "total":
        settings["memory"] = side.value
    elif side.how == "memory":
        settings["memory"] = now.most_bytes + side.value
    elif side.how == "arena":
        settings["budget"] = max(side.value - now.most_bytes - x.nbytes - BESIDES_BYTES, 1)
    elif side.how == "device":
        with oc.Trainer(model, optimizer=optimizer, threads=threads) as in_core:
            peak = in_core.prepare(x.shape, y.shape).in_core_peak_bytes
        settings["budget"] = peak * side.value // 100
    return OurStep(oc.Trainer(model, optimizer=optimizer, **settings), x, y, machine)


def calibrated(case: Case, threads: int, file: Path) -> str:
    """Measures this machine with steps of a case, as `ooctrain calibrate` does; returns the file.

    Raises:
        OoctrainError: the steps do not run here.
    """
    model, (x, y) = make_model(case), make_batch(case)
    # The loss stays finite, as with `ooctrain calibrate`.
    steady = oc.optim.SGD(model.parameters(), lr=STEADY_LR, momentum=0.9)
    with oc.Trainer(model, optimizer=steady, threads=threads, machine=CPU_PRESET) as trainer:
        save_calibration(calibrate(trainer, x, y, f"{case.name} here", CALIBRATED_STEPS), file)
    return str(file)


def made(case: Case, side: Side, threads: int) -> Callable[[], float]:
    """The step of a side."""
    if side.library == "ours":
        return our_step(case, side, threads)
    from benchmarks.memory_torch import torch_step  # only where torch is installed

    return torch_step(case, side, threads)


def load_everything(case: Case, side: Side, threads: int) -> None:
    """A tiny step, with memory enough."""
    tiny = replace(side, how=side.how if side.how == "micro" else "in-core", folder="")
    made(case.of(MICRO_BATCHES if side.how == "micro" else TINY), tiny, threads)()
    if side.compiles:
        from benchmarks.memory_torch import load_compiler  # only where torch is installed

        load_compiler()
    give_back_unused()


def told(word: str) -> None:
    """Says where this process is, and waits for a line."""
    print(word, flush=True)
    sys.stdin.readline()


def main(words: str) -> None:
    """What the process of a side does."""
    case, side, steps, threads = from_words(words)
    load_everything(case, side, threads)
    told("ready")
    losses, wall, cpu = [], [], []
    step = made(case, side, threads)
    found: dict[str, Any] = {}
    try:
        if isinstance(step, OurStep):
            found = step.plan()
        for number in range(steps):
            began, used = time.perf_counter(), time.process_time()
            losses.append(step())
            wall.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
            if side.compiles and not number:
                told("warm")
        if steps and isinstance(step, OurStep):
            found = step.facts()
    except (Infeasible, DoesNotFit) as refusal:
        least = getattr(refusal, "minimum_bytes", 0)
        told(json.dumps({"error": f"refused: {refusal}", "least_bytes": least}))
        os._exit(0)
    told(json.dumps({"losses": losses, "wall_s": wall, "cpu_s": cpu, **found}))
    os._exit(0)  # nothing is to be freed in order


if __name__ == "__main__":
    main(sys.argv[1])
