"""Tiling: the time of a step in bands, as predicted for GPUs and as executed on the cpu device.

Both sides of a ratio come from one run. Predicted: the makespan over U, the time that the untiled
step computes, with the target, and its parts: calls that run once, calls that run again, waiting;
where a target is missed, two bounds (`tiling_bounds.py`) and the cause stand beside it. Executed:
VGG-16 in a quarter and in half of its in-core memory, in turn with the untiled step in-core; the
time of a pixel from 1,024 to 4,096 pixels at one budget; predicted over executed. Source:
docs/tiling.md. Read next: `bench_blocks.py`, for images larger than the device.

    python -m benchmarks tile [--quick] [--json FILE]
    python -m benchmarks.bench_tile --part predicted --cases unet
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ooctrain as oc
from benchmarks.bench_prediction import PROMISE
from benchmarks.common import machine_facts, table, threads_here, verdict
from benchmarks.tiling_bounds import any_tiling_us, lp_us
from ooctrain.machine.measured import profile_of_steps
from ooctrain.rewrite.tile import tile_by_name
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.instructions import Run
from ooctrain.sched.schedule import Plan
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace
from ooctrain.units import parse_bytes

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """A prediction.

    Args:
        network: as `oc.models.build` takes it; VGG-16 is the one of small images, whose classifier
            takes any size.
        share: of the in-core memory; or
        gib: of memory.
        wanted: the most that the makespan may be of U.
        rewrites: the tilings, by names; "": planner `banded` chooses.
        coarse: the tiling whose LP bound is shown, such as the same in fewer bands, or with
            calls that run once where the chosen ones run again; "": the one that is chosen.
        cause: why a target is missed.
    """

    network: str
    side: int
    machine: str
    wanted: float
    share: float = 0.0
    gib: float = 0.0
    planner: str = "banded"
    rewrites: str = ""
    host: str | None = None
    coarse: str = ""
    cause: str = ""

    @property
    def name(self) -> str:
        """For a table."""
        budget = f"{self.share:.4g}" if self.share else f"{self.gib:g} GiB"
        host = f", host {self.host}" if self.host else ""
        return f"{self.network} {self.side} px, {budget}{host}, {self.machine}"


VGG_BN = "bands:16:features.0:features.43"
VGG_BN_AGAIN = "bands_again:32:features.0:features.43"
#: Where layers compute for longer than their bytes travel, bands need not run again.
VGG_MIXED = "bands_again:40:features.0:features.16 bands:16:features.17:features.30"
UNET = "bands:16:inc:cross_entropy"
RESNET = "bands:16:conv1:layer4"
CASES = (
    Case("vgg16", 1024, "v100-pcie", 1.05, share=0.25),
    Case("vgg16", 1024, "v100-pcie", 1.12, share=0.25, host="64MiB",
         coarse="bands:8:features.0:features.16",
         cause="of both memories' 415 MiB parameters and momenta take 114; 1.12 came from a "
         "prototype that counted neither, in 431 MiB, and finds 1.183 in the 301 that are left"),
    Case("vgg16", 4096, "v100-pcie", 1.05, gib=1.3),
    Case("vgg16", 10240, "rtx2080ti", 1.30, gib=11),
    Case("vgg16", 20480, "rtx2080ti", 1.35, gib=11),
    Case("vgg16", 20480, "rtx2080ti", 1.35, gib=11, planner="belady", rewrites=VGG_MIXED),
    Case("vgg16_bn", 4096, "v100-pcie", 1.08, share=0.25, planner="prefix", rewrites=VGG_BN),
    Case("vgg16_bn", 4096, "v100-32gb-nvlink", 1.02, share=0.25, planner="prefix",
         rewrites=VGG_BN),
    Case("vgg16_bn", 4096, "v100-pcie", 2.0, share=0.0625, planner="prefix",
         rewrites=VGG_BN_AGAIN),
    Case("vgg16_bn", 4096, "v100-32gb-nvlink", 1.15, share=0.0625, planner="prefix",
         rewrites=VGG_BN),
    Case("unet", 4096, "v100-32gb-nvlink", 1.2, share=0.125, planner="belady", rewrites=UNET),
    Case("resnet50", 4096, "v100-32gb-nvlink", 1.2, share=0.125, planner="prefix",
         rewrites=RESNET),
)  # fmt: skip
QUICK_CASES = (
    Case("vgg16", 256, "v100-pcie", 1.5, gib=0.19),
    Case("unet", 128, "v100-32gb-nvlink", 1.5, gib=0.3, planner="belady",
         rewrites="bands:4:inc:cross_entropy"),
)  # fmt: skip
#: Least budget of VGG-16 at 20,480 pixels, in GiB.
WANTED_LEAST = 1.5


@dataclass(frozen=True, slots=True)
class Prediction:
    """A case planned.

    Args:
        ratio: makespan / U; of it
        once, again, waiting: calls that run for the first time, those that run again, the rest.
        least_gib: the planner's least budget, or that of the tiled step.
        lp_ratio: the LP bound / U of one tiling; None: not asked for, or too many calls.
        lp_of: that tiling.
        any_tiling_ratio: the bound of all tilings / U; None: not asked for, or no chain.
    """

    case: Case
    chosen: str
    calls: int
    untiled_s: float
    ratio: float
    once: float
    again: float
    waiting: float
    budget_gib: float
    least_gib: float
    plan_cpu_s: float
    lp_ratio: float | None = None
    lp_of: str = ""
    any_tiling_ratio: float | None = None

    @property
    def missed(self) -> str:
        """The target that it misses, beside the bounds of the case and the cause; "" if none."""
        if self.ratio <= self.case.wanted:
            return ""
        lp = "" if self.lp_ratio is None else f", LP bound of {self.lp_of} {self.lp_ratio:.3f}"
        least = self.any_tiling_ratio
        all_ = "" if least is None else f", bound of all tilings {least:.3f}"
        cause = f"; {self.case.cause}" if self.case.cause else ""
        return f"{self.case.name}: {self.ratio:.3f}, at most {self.case.wanted:g}{lp}{all_}{cause}"


@lru_cache(maxsize=1)
def untiled(network: str, side: int) -> Trace:
    """The step of one image, as it is traced."""
    small = network.startswith("vgg")
    model = oc.models.build(network, 2 if network == "unet" else 10, "cifar" if small else None)
    return oc.trace(model, (1, 3, side, side), "cross_entropy")


def predicted(case: Case) -> Prediction:
    """Plans a case, and says where the time goes."""
    trace, machine = untiled(case.network, case.side), oc.machine(case.machine)
    in_core, alone_us = trace_peak_bytes(trace), sum(call_durations_ns(trace, machine)) / 1e3
    budget = int(in_core * case.share if case.share else case.gib * GIB)
    started = time.process_time()
    plan = oc.plan(
        trace, budget, case.planner, machine, host_budget=case.host,
        rewrites=(*case.rewrites.split(), "share_storage"),
    )  # fmt: skip
    used_s = time.process_time() - started
    once, again = (us / alone_us for us in computing_us(plan, machine))
    ratio = plan.makespan_us / alone_us
    chosen = ", ".join(name for name in plan.rewrites if ":" in name) or "untiled"
    least = plan.notes.get("least_bytes") or trace_minimum_bytes(plan.trace)
    found = Prediction(
        case, chosen, len(plan.trace.calls), alone_us / 1e6, ratio, once, again,
        ratio - once - again, budget / GIB, int(least) / GIB, used_s,
    )  # fmt: skip
    if not found.missed:
        return found
    lp, lp_of, least_of_any = bounds(case, plan.trace, budget, machine, alone_us)
    return replace(found, lp_ratio=lp, lp_of=lp_of, any_tiling_ratio=least_of_any)


def computing_us(plan: Plan, machine: Machine) -> tuple[float, float]:
    """Time of calls that run for the first time, and of those that run again."""
    durations, found, seen = call_durations_ns(plan.trace, machine), [0.0, 0.0], set[int]()
    for instruction in plan.schedule.instructions:
        if isinstance(instruction, Run):
            call = instruction.call
            again = call in seen or ".again" in plan.trace.calls[call].name
            found[again] += durations[call] / 1e3
            seen.add(call)
    return found[0], found[1]


def bounds(
    case: Case, trace: Trace, budget: int, machine: Machine, alone_us: float
) -> tuple[float | None, str, float | None]:
    """LP bound / U, the tiling that it holds for, and the bound of all tilings of a chain / U."""
    host = parse_bytes(case.host) if case.host else None
    name = case.coarse
    if case.coarse:
        trace = tile_by_name(untiled(case.network, case.side), case.coarse)
    lp = lp_us(trace, budget, machine, host)
    both = budget + (host or machine.host_bytes or 0)
    whole = untiled(case.network, case.side)
    least = any_tiling_us(whole, both, machine) if case.network.startswith("vgg") else None
    return (
        None if lp is None else lp / alone_us,
        "" if lp is None else name or "the tiling chosen",
        None if least is None else least / alone_us,
    )


# Executed on the cpu device


@dataclass(frozen=True, slots=True)
class Size:
    """A step to be executed.

    Args:
        budget_mib: of the step in bands.
        bands: of the first layers.
        wanted: the most that it may take of the untiled step in-core; None: no such step beside it.
        through: the last layer in bands: the third pooling where memory is short, else the second.
    """

    side: int
    budget_mib: int
    bands: int
    wanted: float | None = None
    through: str = "features.16"


#: A quarter and a half of the in-core memory; then one budget for all sides.
SIZES = (
    Size(1024, 351, 8, 1.25, "features.9"), Size(1024, 701, 8, 1.1, "features.9"),
    Size(1024, 1400, 8), Size(2048, 1400, 16), Size(4096, 1400, 32),
)  # fmt: skip
QUICK_SIZES = (Size(64, 190, 4, 1.25), Size(64, 200, 2), Size(128, 200, 4))
ROUNDS, QUICK_ROUNDS = 5, 2
#: Time per pixel of the largest image, relative to the smallest.
WANTED_RATIO = 1.2


@dataclass(frozen=True, slots=True)
class Execution:
    """Steps that were executed, the untiled one in-core and one in bands in turn.

    Args:
        banded_s: median, wall clock.
        ratio: median over rounds of banded / untiled; None: no untiled step beside it.
        predicted_s: of the step in bands, by the times that its calls took in the first step.
        peak_mib: of the device.
    """

    size: Size
    banded_s: float
    ratio: float | None
    predicted_s: float
    peak_mib: float

    @property
    def ns_per_pixel(self) -> float:
        """Of the step in bands."""
        return self.banded_s * 1e9 / self.size.side**2

    @property
    def error(self) -> float:
        """Of the prediction."""
        return self.predicted_s / self.banded_s - 1


def trainer_of(size: Size | None, threads: int) -> oc.Trainer:
    """Of VGG-16 with weights that hardly move; None: untiled, in-core."""
    oc.manual_seed(0)
    model = oc.models.build("vgg16", 10, "cifar")
    optimizer = oc.optim.SGD(model.parameters(), lr=1e-6)
    if size is None:
        return oc.Trainer(model, optimizer=optimizer, threads=threads, machine="cpu-generic")
    rewrites = f"bands:{size.bands}::{size.through}", "share_storage"
    return oc.Trainer(
        model, optimizer=optimizer, threads=threads, machine="cpu-generic", planner="prefix",
        budget=f"{size.budget_mib}MiB", rewrites=rewrites,
    )  # fmt: skip


def executed(size: Size, rounds: int, threads: int) -> Execution:
    """Runs a step in bands a few times, where wanted the untiled one in turn with it."""
    image = np.random.default_rng(0).standard_normal((1, 3, size.side, size.side), np.float32)
    batch = image, np.array([3])
    with ExitStack() as open_ones:
        banded = open_ones.enter_context(trainer_of(size, threads))
        others = []
        if size.wanted is not None:
            others.append(open_ones.enter_context(trainer_of(None, threads)))
        for trainer in (*others, banded):
            trainer.step(*batch)
        calibration = [_line(banded, batch)]
        times = [
            [_line(one, batch).makespan_us / 1e6 for one in (banded, *others)]
            for _ in range(rounds)
        ]
        prepared, peak = banded.prepare(image.shape), banded.timeline
        profile = profile_of_steps(calibration, banded.plan.trace)
        machine = replace(oc.machine("cpu-generic"), profile=profile)
        predicted_s = prepared.predict(machine).makespan_us / 1e6
    assert peak is not None, "steps were made"
    ratio = median(row[0] / row[1] for row in times) if others else None
    return Execution(
        size, median(row[0] for row in times), ratio, predicted_s, peak.peak_bytes / (1 << 20)
    )


def _line(trainer: oc.Trainer, batch: tuple[np.ndarray, np.ndarray]) -> oc.Timeline:
    trainer.step(*batch)
    assert trainer.timeline is not None, "a step was made"
    return trainer.timeline


# Tables


def show_predicted(cases: Sequence[Case]) -> tuple[list[dict[str, Any]], list[str]]:
    """Prints a table line by line; what goes into the JSON file, and what is missed."""
    found, missed = [], []
    for case in cases:
        one = predicted(case)
        print(
            f"{case.name}: {one.chosen} ({one.calls} calls): {one.ratio:.3f} U, at most "
            f"{case.wanted:g}: once {one.once:.3f}, again {one.again:.3f}, waiting "
            f"{one.waiting:.3f}; least budget {one.least_gib:.2f} of {one.budget_gib:.2f} GiB; "
            f"U = {one.untiled_s:.2f} s; planned in {one.plan_cpu_s:.0f} s  "
            f"{verdict(not one.missed)}", flush=True,
        )  # fmt: skip
        found.append(asdict(one))
        if one.missed:
            print(f"  missed: {one.missed}", flush=True)
            missed.append(one.missed)
    return found, missed


def show_executed(
    sizes: Sequence[Size], rounds: int, threads: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """As `show_predicted`, of what is executed."""
    found = [executed(size, rounds, threads) for size in sizes]
    print(table(
        ["side", "budget", "peak", "step", "of in-core", "a pixel", "predicted", "error"],
        [[str(one.size.side), f"{one.size.budget_mib} MiB", f"{one.peak_mib:.0f} MiB",
          f"{one.banded_s:.2f} s", "" if one.ratio is None else f"{one.ratio:.2f}",
          f"{one.ns_per_pixel:.0f} ns", f"{one.predicted_s:.2f} s", f"{100 * one.error:+.0f} %"]
         for one in found],
    ))  # fmt: skip
    missed = [f"{one.size.side} pixels in {one.size.budget_mib} MiB: {one.ratio:.2f} of in-core"
              for one in found if one.ratio and one.ratio > (one.size.wanted or 0)]  # fmt: skip
    missed += [f"{one.size.side} pixels in {one.size.budget_mib} MiB: predicted"
               for one in found if abs(one.error) > PROMISE]  # fmt: skip
    alone = [one for one in found if one.ratio is None]
    if len(alone) > 1:
        growth = alone[-1].ns_per_pixel / alone[0].ns_per_pixel
        kept = growth <= WANTED_RATIO
        print(f"a pixel of the largest / of the smallest: {growth:.2f}  {verdict(kept)}")
        missed += [] if kept else ["time per pixel"]
    results = [asdict(one) | {"error": one.error, "ns_per_pixel": one.ns_per_pixel}
               for one in found]  # fmt: skip
    return results, missed


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_tile", description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("predicted", "executed"))
    parser.add_argument("--cases", default="", help="only what has this in its name, such as 1024")
    parser.add_argument("--threads", type=int, default=threads_here())
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    quick, result = quick or options.quick, {"machine": machine_facts(), "missed": []}
    if options.part in (None, "predicted"):
        cases = [one for one in (QUICK_CASES if quick else CASES) if options.cases in one.name]
        result["predicted"], missed = show_predicted(cases)
        result["missed"] += missed
    if options.part in (None, "executed"):
        sizes, rounds = (QUICK_SIZES, QUICK_ROUNDS) if quick else (SIZES, ROUNDS)
        sizes = [size for size in sizes if options.cases in f"{size.side} px"]
        result["executed"], missed = show_executed(sizes, rounds, options.threads)
        result["missed"] += missed
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
