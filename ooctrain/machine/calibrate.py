"""Measures this machine as the cpu device: calls, memory, copies, and how copies slow calls down.

An in-core trainer and a batch become a `Machine` with a measured duration for each kind of call.
The numbers come from real training steps, so a prediction rests on the same kind of run that it
predicts. Four kinds of steps are run:

- in-core: durations of the calls, and the cost of issuing an instruction;
- planner `naive`, which copies while no call runs: bandwidth and latency of the copies alone;
- planner `window`, which copies while calls run: by how much the calls become slower, and which
  part of a copy's latency the calls wait for;
- both planners on an imposed, slower link: the cost of keeping to such a link.

Only the mapping of memory is timed by itself (`memory_speed.py`): no step maps enough memory for
the time to stand out from the noise. Nothing is ever measured implicitly: `ooctrain calibrate` is
the only caller. Read next: `measured.py`, which computes the numbers from the steps;
`step/machine.py`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from ooctrain.devices.cuda import open as cuda_open
from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.machine.measured import (
    Copies,
    MeasuredRun,
    balance_bytes_per_us,
    copies_of,
    issue_us_of,
    pacing_us_of,
    profile_of_steps,
    rates_of,
    with_disturbance,
)
from ooctrain.machine.memory_speed import gpu_map_us_per_byte, map_us_per_byte
from ooctrain.sched.schedule import Plan
from ooctrain.sched.timeline import Timeline
from ooctrain.step.machine import Machine
from ooctrain.train import Trainer

STEPS = 7
#: Seconds for each trainer at least: short steps vary most, so more of them are measured.
LEAST_S = 0.5
#: Steps that count in a turn of one trainer.
TURN = 3
#: Of the steps that swap: little memory, so that much is copied; more where that does not fit.
BUDGETS = ("25%", "50%", "75%")
#: The link imposed on `naive` steps, as a share of the machine's. The one imposed on `window` steps
#: (`balance_bytes_per_us`) may be slower still; `naive` waits for every copy, and would take long.
SLOWER = 0.25


def calibrate(
    trainer: Trainer, images: np.ndarray, labels: np.ndarray, name: str, steps: int = STEPS
) -> Machine:
    """Measures with the steps of an in-core trainer and of four others with its model.

    Args:
        trainer: without a budget; it can be used again afterwards.
        images, labels: a batch.
        name: name of the machine that comes out.
        steps: measured at least; medians count.

    Returns:
        A machine whose link is as fast as the cores copy.

    Cost: about 10 times as many steps as requested; those of `naive` last several times as long.
        Up to three arenas at a time: the in-core one and smaller ones.
    """
    in_core = trainer.prepare(images.shape).plan
    # Taking turns, since the machine's speed wanders.
    with _swapping(trainer, "naive", images.shape) as other:
        first, synchronous = measure_steps([trainer, other], images, labels, steps)
        copies = copies_of(_plan_of(other), synchronous, first, issue_us_of(first, in_core))
    with _swapping(trainer, "window", images.shape) as other:
        second, beside = measure_steps([trainer, other], images, labels, steps)
        swapped = MeasuredRun(_plan_of(other), beside)
    # How much the calls slowed down is judged by the in-core steps that took turns with these.
    disturbed = with_disturbance(_with_calls(_copying(name, copies), second, in_core), swapped)
    found = _with_calls(disturbed, [*first, *second], in_core)
    if trainer.settings.device != "cpu":  # a GPU's link is as it is
        total_bytes = cuda_open.look_at_gpu().total_bytes
        return replace(found, map_us_per_byte=gpu_map_us_per_byte(), device_bytes=total_bytes)
    found = replace(found, map_us_per_byte=map_us_per_byte())
    slower, balance = found.link_bytes_per_us * SLOWER, balance_bytes_per_us(beside, second)
    with (
        _swapping(trainer, "naive", images.shape, slower) as alone,
        _swapping(trainer, "window", images.shape, balance) as other,
    ):
        third, *paced = measure_steps([trainer, alone, other], images, labels, steps)
        runs = [
            MeasuredRun(_plan_of(alone), paced[0], slower),
            MeasuredRun(_plan_of(other), paced[1], balance),
        ]
        return replace(found, pacing_us=pacing_us_of(runs, _with_calls(disturbed, third, in_core)))


def _copying(name: str, copies: Copies) -> Machine:
    """A machine with measured copies; its calls are not known yet (`_with_calls`)."""
    return Machine(
        name,
        1.0,
        1.0,
        link_bytes_per_us=min(copies.out_bytes_per_us, copies.in_bytes_per_us),
        link="duplex",
        latency_us=copies.latency_us,
        link_out_bytes_per_us=copies.out_bytes_per_us,
        link_in_bytes_per_us=copies.in_bytes_per_us,
    )


def _with_calls(machine: Machine, in_core: Collection[Timeline], plan: Plan) -> Machine:
    """The machine with durations of calls and of issuing instructions from in-core steps."""
    profile = profile_of_steps(in_core, plan.trace)
    rates = rates_of(profile, plan.trace)
    return replace(
        machine,
        flops_per_us=rates.flops_per_us,
        memory_bytes_per_us=rates.memory_bytes_per_us,
        call_overhead_us=min(profile.values()),
        issue_us=issue_us_of(in_core, plan),
        profile=profile,
    )


def _plan_of(trainer: Trainer) -> Plan:
    assert trainer.prepared is not None, "`_swapping` has prepared its step"
    return trainer.prepared.plan


def _swapping(
    in_core: Trainer, planner: str, input_shape: tuple[int, ...], link: float | None = None
) -> Trainer:
    """A trainer of the same model in little memory, its step planned.

    Args:
        in_core: whose model, loss, optimizer and settings it shares.
        link: imposed, bytes per microsecond; None: none.
    """
    settings = in_core.settings

    def within(budget: int | str) -> Trainer:
        trainer = Trainer(
            in_core.model, in_core.loss, in_core.optimizer, budget, planner, settings.allocator,
            settings.device, in_core.accumulate, threads=settings.threads,
            machine=settings.machine, link_bandwidth=link, conv_algorithm=in_core.conv_algorithm,
            seed=settings.seed, clip=in_core.clip, allow_tf32=in_core.allow_tf32,
        )  # fmt: skip
        trainer.prepare(input_shape)
        return trainer

    for budget in BUDGETS[:-1]:
        try:
            return within(budget)
        except Infeasible as refusal:
            return within(refusal.minimum_bytes or BUDGETS[-1])
        except DoesNotFit:  # an allocator that fragments
            continue
    return within(BUDGETS[-1])


def measure_steps(
    trainers: Sequence[Trainer], images: np.ndarray, labels: np.ndarray, steps: int
) -> list[list[Timeline]]:
    """Measured time lines of each trainer, which take turns.

    A turn is `TURN` steps on end, as training does them, after one that does not count: it finds
    the caches full of another trainer's data. There are turns until each trainer has `steps` time
    lines at least, and `LEAST_S` seconds for each trainer have passed.
    """
    timelines: list[list[Timeline]] = [[] for _ in trainers]
    began = time.perf_counter()
    while len(timelines[0]) < steps or time.perf_counter() - began < LEAST_S * len(trainers):
        for trainer, kept in zip(trainers, timelines, strict=True):
            trainer.step(images, labels)
            for _ in range(TURN):
                trainer.step(images, labels)
                assert trainer.timeline is not None, "a step was made"
                kept.append(trainer.timeline)
    return timelines
