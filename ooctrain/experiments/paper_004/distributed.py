"""Paper 004, figure 11: what larger batches gain because they send gradients less often.

The input is the times of a step forwards and backwards, at two batch sizes; the result is the time
of an epoch on machines that exchange gradients over a network. A step sends each gradient once,
however large its batch, so six times the batch sends a sixth:

    T_epoch = D / N (T_forward + max(T_backward, 2 G / (alpha B)))

with D samples, batch N, G bytes of gradients, bandwidth B of which alpha is used. On a slow network
the gain is the ratio of the batches; on a fast one nothing remains but the time that the larger
batch costs. Between the two, the gain depends on the time that a step of the *small* batch
computes. The paper does not print it, so the gain is given for several such times.

Source: paper 004, section 6.4; Patarasuk and Yuan 2009 for 2 G / B. Departures: docs/papers.md.
Read next: `hmms.py`, whose machine and lists these are; `distributed_shown.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ooctrain.api import step_trace
from ooctrain.experiments.paper_004.hmms import IMAGE_SIZE, machines
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planners.bn_recompute import offloadable_share
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.hmms import Hmms
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planning.planner import Planner, turning_point
from ooctrain.sched.schedule import Plan, Run
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace

MODEL = "vgg19"
#: The batch of section 6.2, and how many times that Split-CNN trains (section 6.3).
BATCH, TIMES = 64, 6
#: The share of the bandwidth that is used: the paper's, which it calls optimistic.
ALPHA = 0.8
#: Gbit/s, from where the figure begins to where it ends.
BANDWIDTHS = (32.0, 16.0, 10.0, 8.0, 4.0, 2.0, 1.0, 0.5)
#: {Gbit/s: speed-up}; the figure's other points have no numbers in print.
PRINTED = MappingProxyType({10.0: 2.1})
#: Of the larger batch's throughput (section 6.3).
PRINTED_LOSS = 0.015
#: Small batches for which the gain is asked, and the bandwidth at which.
BATCHES, AT_GBIT_S = (16, 32, 64, 96, 128, 192), 10.0
BYTES_PER_US_OF_A_GBIT = 1e9 / 8 / 1e6
BASELINE, COMPUTING, PAPERS_LOSS = "baseline", "computing alone", "computing, 1.5 % lost"
HMMS, OURS = "HMMS", "combined"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step on one machine.

    Args:
        machine: by name.
        way: how it is trained.
        batch: images.
        forward_us: until the first call of the backward pass begins; backward_us: the rest.
        peak_bytes: that the step takes; None: no list stands behind it.
    """

    machine: str
    way: str
    batch: int
    forward_us: float
    backward_us: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Speedup:
    """How much faster an epoch is than the baseline's, at one bandwidth.

    Args:
        machine, way, batch: of the faster step.
        small_batch: of the baseline.
        gbit_s: bandwidth of the network.
        network_us: to exchange the gradients once.
        speedup: the baseline's time of an epoch over this one's.
        printed: the paper's.
    """

    machine: str
    way: str
    batch: int
    small_batch: int
    gbit_s: float
    network_us: float
    speedup: float
    printed: float | None


def exchange_us(gradient_bytes: int, gbit_s: float, alpha: float = ALPHA) -> float:
    """2 G / (alpha B): the least time of an allreduce."""
    return 2 * gradient_bytes / (alpha * gbit_s * BYTES_PER_US_OF_A_GBIT)


def epoch_us(times: StepTimes, network_us: float, samples: int) -> float:
    """T_epoch; the exchange goes on beside the backward pass."""
    return samples / times.batch * (times.forward_us + max(times.backward_us, network_us))


def speedups(
    baseline: StepTimes, other: StepTimes, gradient_bytes: int,
    bandwidths: Sequence[float] = BANDWIDTHS,
) -> list[Speedup]:  # fmt: skip
    """Figure 11: a curve."""
    rows = []
    for gbit_s in bandwidths:
        network_us = exchange_us(gradient_bytes, gbit_s)
        # The number of samples is the same above and below.
        ratio = epoch_us(baseline, network_us, 1) / epoch_us(other, network_us, 1)
        printed = PRINTED.get(gbit_s) if baseline.batch == BATCH else None
        rows.append(
            Speedup(
                other.machine, other.way, other.batch, baseline.batch, gbit_s, network_us, ratio,
                printed,
            )
        )  # fmt: skip
    return rows


def gradient_bytes(step: Trace) -> int:
    """G: a gradient for each parameter."""
    initial = [step.variables[number] for number in step.initial]
    return sum(variable.value_bytes for variable in initial if variable.kind == "param")


def step_times(batch: int, where: Machine, way: str = BASELINE) -> StepTimes:
    """Of a list by simulation, or of the calls alone (`COMPUTING`), or of these with the printed
    loss (`PAPERS_LOSS`)."""
    step = step_trace(MODEL, batch, IMAGE_SIZE)
    if way in (COMPUTING, PAPERS_LOSS):
        kept = 1 - PRINTED_LOSS if way == PAPERS_LOSS else 1.0
        durations, turn = call_durations_ns(step, where), turning_point(step)
        forward_us, backward_us = sum(durations[:turn]) / 1000, sum(durations[turn:]) / 1000
        return StepTimes(where.name, way, batch, forward_us / kept, backward_us / kept, None)
    plan = _plan(step, where, way)
    timeline = simulate(plan.schedule, plan.trace, where)
    listed, calls = plan.schedule.instructions, plan.trace.calls
    forward_us = next(
        event.start_us
        for event in timeline.events
        if isinstance(run := listed[event.index], Run) and calls[run.call].phase != "forward"
    )
    backward_us = timeline.makespan_us - forward_us
    return StepTimes(where.name, way, batch, forward_us, backward_us, plan.peak_bytes)


def gains(where: Machine, batches: Sequence[int] = BATCHES) -> list[Speedup]:
    """Of `TIMES` each of some batches that costs no time, at one bandwidth."""
    rows = []
    for batch in batches:
        small, large = (step_times(size, where, COMPUTING) for size in (batch, TIMES * batch))
        size_bytes = gradient_bytes(step_trace(MODEL, batch, IMAGE_SIZE))
        rows += speedups(small, large, size_bytes, (AT_GBIT_S,))
    return rows


def largest_in_core(where: Machine) -> int:
    """The largest batch whose step fits into the device's memory as it is."""
    low, high = 1, 2
    while _fits(high, where):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(middle, where) else (low, middle)
    return low


def both_machines() -> tuple[Machine, Machine]:
    """The P100 of `hmms.py`, and the same with its arithmetic fitted to figure 1."""
    return machines(BATCH)


def _fits(batch: int, where: Machine) -> bool:
    return trace_peak_bytes(step_trace(MODEL, batch, IMAGE_SIZE)) <= where.device_bytes


def _plan(step: Trace, where: Machine, way: str) -> Plan:
    """A list that is verified. HMMS may take what it needs: splitting, which makes it fit, is not
    one of its parts."""
    planner: Planner
    if way == HMMS:
        planner, budget = Hmms(min(1.0, offloadable_share(step, where))), trace_peak_bytes(step)
    elif way == OURS:
        planner, budget = Combined(), where.device_bytes
    else:
        planner, budget = KeepAll(), where.device_bytes
    plan = planner.plan(step, budget, where)
    verify(plan, step, budget, where)
    return plan
