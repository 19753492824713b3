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
Read next: `hmms_speeds.py`, whose machine and lists these are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.api import step_trace
from ooctrain.distributed.mpi import find_mpiexec
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.experiments.bisected import largest
from ooctrain.experiments.paper_004.hmms_speeds import IMAGE_SIZE, machines
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.text import or_dash, plain_table
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planners.bn_recompute import offloadable_share
from ooctrain.sched.planners.combined import Combined
from ooctrain.sched.planners.hmms import Hmms
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planning.planner import Planner, turning_point
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan, Run
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes, format_us, per_second

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
#: Small batches for which the gain is computed, and the bandwidth at which.
MOST_BATCH = 1 << 14
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
        machine, way, batch: machine, way and batch of the faster step.
        small_batch: batch of the baseline.
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


def exchange_us(gradient_bytes: int, gbit_s: float) -> float:
    """2 G / (alpha B): the least time of an allreduce."""
    return 2 * gradient_bytes / (ALPHA * gbit_s * BYTES_PER_US_OF_A_GBIT)


def epoch_us(times: StepTimes, network_us: float, samples: int) -> float:
    """T_epoch; the exchange goes on during the backward pass."""
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


def gains(where: Machine) -> list[Speedup]:
    """Of `TIMES` each of the batches that costs no time, at one bandwidth."""
    rows = []
    for batch in BATCHES:
        small, large = (step_times(size, where, COMPUTING) for size in (batch, TIMES * batch))
        size_bytes = gradient_bytes(step_trace(MODEL, batch, IMAGE_SIZE))
        rows += speedups(small, large, size_bytes, (AT_GBIT_S,))
    return rows


def largest_in_core(where: Machine) -> int:
    """The largest batch whose step fits into the device's memory as it is."""
    return largest(lambda batch: _fits(batch, where), MOST_BATCH)


def both_machines() -> tuple[Machine, Machine]:
    """The P100 of `hmms_speeds.py`, and the same with its arithmetic fitted to figure 1."""
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
    plan = planner.plan(Question(step, budget, where))
    verify(plan, step, budget, where)
    return plan


# Steps on ranks of this machine, over networks of imposed bandwidths, compared with the formula. A
# rank that holds each message back until a network of some bandwidth would have delivered it
# behaves as if it had that network. One step is measured without such a delay, forwards and
# backwards; from it T = T_forward + max(T_backward, 2 (k - 1) / k G / B) predicts all others, which
# are measured too. The paper's 2 G is the ring's 2 (k - 1) / k G for many ranks k; alpha is 1.

PROGRAM = "ooctrain.experiments.paper_004.ranks_program"
RANKS = (1, 2, 4)
#: Parameters enough that they take long to send, few enough operations: 37 MB, 32 x 32 pixels.
RANKS_MODEL = "vgg11"
#: Images of a rank.
RANKS_BATCHES = (2, 2 * TIMES)
GBIT_S = (8.0, 2.0, 0.5)
ROUNDS = 5
LIMIT_S = 600


@dataclass(frozen=True, slots=True)
class RankStep:
    """A step on some ranks.

    Args:
        ranks: how many.
        batch: images of each.
        gbit_s: bandwidth of the network; None: as fast as the machine itself.
        forward_us: measured over the fastest network.
        step_us: measured.
        predicted_us: by the formula; None for the one that it begins from.
    """

    ranks: int
    batch: int
    gbit_s: float | None
    forward_us: float
    step_us: float
    predicted_us: float | None


def why_not() -> str:
    """Why no ranks can be started here; "" where they can."""
    try:
        find_mpiexec()
    except ConfigError as error:
        return f"not run here: {error.fix}"
    return ""


def rank_steps(counts: Sequence[int] = RANKS) -> Iterator[RankStep]:
    """All batches and bandwidths, on each number of ranks.

    Raises:
        OoctrainError: the ranks ended with an error.
    """
    for count in counts:
        rows = _measured(count)
        free = {row["batch"]: row for row in rows if row["bytes_per_us"] is None}
        for row in rows:
            rate, start = row["bytes_per_us"], free[row["batch"]]
            yield RankStep(
                count, row["batch"], rate and rate / BYTES_PER_US_OF_A_GBIT, start["forward_us"],
                row["step_us"], rate and _predicted_us(start, count, rate),
            )  # fmt: skip


def _predicted_us(start: dict[str, Any], count: int, bytes_per_us: float) -> float:
    """T_forward + max(T_backward, 2 (k - 1) / k G / B)."""
    backward_us = start["step_us"] - start["forward_us"]
    network_us = 2 * (count - 1) / count * start["gradient_bytes"] / bytes_per_us
    return start["forward_us"] + max(backward_us, network_us)


def _measured(count: int) -> list[dict[str, Any]]:
    asked = {
        "model": RANKS_MODEL, "batches": RANKS_BATCHES, "rounds": ROUNDS,
        "bytes_per_us": [gbit_s * BYTES_PER_US_OF_A_GBIT for gbit_s in GBIT_S],
    }  # fmt: skip
    command = [find_mpiexec(), "-n", str(count), sys.executable, "-m", "mpi4py", "-m", PROGRAM]
    ended = subprocess.run(
        [*command, json.dumps(asked)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if ended.returncode:
        raise OoctrainError(
            "the ranks of the experiment ended with an error", where=" ".join(command),
            numbers=f"status {ended.returncode}; {ended.stderr.strip()[-200:]}",
            fix="the command by hand shows the whole error",
        )  # fmt: skip
    return json.loads(ended.stdout)


# `ooctrain reproduce distributed`: the speed-up of an epoch over the bandwidth, on two machines;
# the same at one bandwidth over the batch that it starts from, because the paper prints one number,
# 2.1 at 10 Gbit/s, but not the time of the small batch that decides it. All this is a formula, so
# measured steps of ranks, over such networks, are shown too, with a figure and numbers.


def distributed(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 004, figure 11."""
    small, large = BATCH, BATCH * TIMES
    # Its search takes seconds.
    ways = (PAPERS_LOSS, HMMS) if wanted.quick else (PAPERS_LOSS, HMMS, OURS)
    machines = both_machines()
    size_bytes = gradient_bytes(step_trace(MODEL, small, IMAGE_SIZE))
    times: list[StepTimes] = []
    curves: list[Speedup] = []
    for where in machines:
        baseline = step_times(small, where, BASELINE)
        others = [step_times(large, where, way) for way in ways]
        times += [baseline, *others]
        curves += [r for other in others for r in speedups(baseline, other, size_bytes)]
    about = f" ({format_bytes(size_bytes)} of gradients)"
    print_title(console, f"A step of {MODEL}, simulated", about)
    console.print(times_table(times))
    print_title(console, f"\nHow much faster an epoch is with batch {large} than with {small}")
    console.print(speedup_table(curves))
    gain_rows = [row for where in machines for row in gains(where)]
    in_core = largest_in_core(machines[0])
    about = f" (without any method {in_core} fits)"
    title = f"\nThe same at {AT_GBIT_S:g} Gbit/s from other batches, computing alone"
    print_title(console, title, about)
    console.print(gain_table(gain_rows))
    lacking = "not run here: --quick" if wanted.quick else why_not()
    title = f"\nSteps of {RANKS_MODEL} on ranks of this machine, over an imposed bandwidth"
    print_title(console, title, f" ({lacking})" if lacking else "")
    runs = [] if lacking else list(rank_steps())
    if runs:
        console.print(runs_table(runs))
    write_figure(wanted, console, distributed_figure(curves, gain_rows))
    return {
        "model": MODEL,
        "gradient_bytes": size_bytes,
        "alpha": ALPHA,
        "largest_in_core": in_core,
        "steps": [asdict(row) for row in times],
        "speedups": [asdict(row) for row in curves],
        "gains": [asdict(row) for row in gain_rows],
        "runs": [asdict(row) for row in runs],
        "not_run": lacking or None,
    }


def times_table(rows: Sequence[StepTimes]) -> Table:
    """Forwards, backwards, and the memory of the list."""
    table = plain_table(
        "machine", "step", "batch", "forwards", "backwards", "images/s", "memory",
        left=("machine", "step"),
    )  # fmt: skip
    for row in rows:
        speed = per_second(row.batch, row.forward_us + row.backward_us)
        memory = "" if row.peak_bytes is None else format_bytes(row.peak_bytes)
        table.add_row(
            row.machine, row.way, str(row.batch), format_us(row.forward_us),
            format_us(row.backward_us), f"{speed:.0f}", memory,
        )  # fmt: skip
    return table


def speedup_table(rows: Sequence[Speedup]) -> Table:
    """A line for each machine and bandwidth, a column for each way to train the large batch."""
    ways = list(dict.fromkeys(row.way for row in rows))
    table = plain_table("machine", "Gbit/s", "exchange", *ways, "paper 004", left=("machine",))
    for where, gbit_s in dict.fromkeys((row.machine, row.gbit_s) for row in rows):
        here = [row for row in rows if (row.machine, row.gbit_s) == (where, gbit_s)]
        table.add_row(
            where, f"{gbit_s:g}", format_us(here[0].network_us),
            *(f"{row.speedup:.2f}" for row in here), or_dash(here[0].printed),
        )  # fmt: skip
    return table


def gain_table(rows: Sequence[Speedup]) -> Table:
    """A line for each machine, a column for each batch that it starts from."""
    batches = list(dict.fromkeys(row.small_batch for row in rows))
    table = plain_table("machine", *(f"from {batch}" for batch in batches), left=("machine",))
    for where in dict.fromkeys(row.machine for row in rows):
        here = {row.small_batch: row for row in rows if row.machine == where}
        table.add_row(where, *(f"{here[batch].speedup:.2f}" for batch in batches))
    return table


def runs_table(rows: Sequence[RankStep]) -> Table:
    """Measured and predicted, and how many times as fast six times the batch is."""
    table = plain_table(
        "ranks", "Gbit/s", "images of a rank", "measured", "predicted", "error", "six times",
        "predicted",
    )  # fmt: skip
    small = {(row.ranks, row.gbit_s): row for row in rows if row.batch == min(RANKS_BATCHES)}
    for row in rows:
        start = small[row.ranks, row.gbit_s]
        table.add_row(
            str(row.ranks), "as fast as it goes" if row.gbit_s is None else f"{row.gbit_s:g}",
            str(row.batch), format_us(row.step_us),
            "" if row.predicted_us is None else format_us(row.predicted_us),
            "" if row.predicted_us is None else f"{row.predicted_us / row.step_us - 1:+.0%}",
            *_times_as_fast(start, row),
        )  # fmt: skip
    return table


def _times_as_fast(small: RankStep, large: RankStep) -> tuple[str, str]:
    """Measured and predicted speed of the larger batch over that of the smaller one."""
    if small.batch == large.batch:
        return "", ""
    factor = large.batch / small.batch
    found = f"{factor * small.step_us / large.step_us:.2f}"
    if small.predicted_us is None or large.predicted_us is None:
        return found, ""
    return found, f"{factor * small.predicted_us / large.predicted_us:.2f}"


def distributed_figure(curves: Sequence[Speedup], gain_rows: Sequence[Speedup]) -> str:
    """SVG: figure 11, and the gain over the batch that it starts from. The ways to train the large
    batch would hide each other, so one is drawn."""
    names = list(dict.fromkeys(row.machine for row in curves))
    eleven = [Curve(where, _points(curves, where)) for where in names]
    printed = sorted({(row.gbit_s, row.printed) for row in curves if row.printed is not None})
    machines = [
        Curve(where, [(row.small_batch, row.speedup) for row in gain_rows if row.machine == where])
        for where in names
    ]
    return stacked_svg(
        [
            curves_svg(
                f"Figure 11: an epoch with six times the batch ({HMMS}), how many times as fast",
                [*eleven, Curve("paper 004", printed)], axes=("Gbit/s", "times as fast"),
                doubling=True,
            ),
            curves_svg(
                f"At {AT_GBIT_S:g} Gbit/s, from other batches", machines,
                axes=("batch of the baseline", "times as fast"), doubling=True,
            ),
        ]
    )  # fmt: skip


def _points(rows: Sequence[Speedup], where: str) -> list[tuple[float, float]]:
    """From slow networks to fast ones."""
    return sorted((r.gbit_s, r.speedup) for r in rows if (r.machine, r.way) == (where, HMMS))
