"""Paper 004, figures 1, 8 and 9: what the link can carry, what two ways of using it cost.

For networks at one batch size this computes the bytes that each forward call leaves for the
backward pass and those that the link carries meanwhile, the step of three memory plans, and their
timelines. The share that can be offloaded without loss is what the link carries over what is
generated, so it depends on how fast the calls are. On the paper's P100, convolutions were faster
than a roofline allows. A second machine is therefore fitted to one printed figure, the 55 % of
ResNet-18; all other printed values are then predictions.

Source: paper 004, sections 1, 6.2 and 6.3. Departures: docs/papers.md. Read next:
`sched/planners/hmms.py`, `sched/planners/vdnn.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.api import step_trace
from ooctrain.experiments.bisected import bisected
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.report.charts import Curve, Piece, curves_svg, stacked_svg, strips_svg
from ooctrain.report.svg import timelines_svg
from ooctrain.report.text import plain_table
from ooctrain.sched.planners.bn_recompute import (
    generated_bytes,
    offloadable_share,
    outputs_of_norms,
)
from ooctrain.sched.planners.hmms import Hmms
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.vdnn import VdnnAll
from ooctrain.sched.planning.planner import turning_point
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.presets import p100_nvlink
from ooctrain.step.trace import Trace
from ooctrain.units import format_bytes, per_second

BATCH, QUICK_BATCH = 64, 16
IMAGE_SIZE = 224
#: The networks of the figures.
FIGURE_1, FIGURE_8, FIGURE_9 = ("vgg19", "resnet18"), ("vgg19", "resnet50"), "vgg19"
#: The network whose printed share the machine is fitted to, and the one whose share is printed with
#: batch norm recomputed too.
FITTED_TO, RECOMPUTED = "resnet18", "resnet18"
BASELINE, LAYER_WISE, HMMS = "baseline", "layer-wise", "HMMS"
METHODS = (BASELINE, LAYER_WISE, HMMS)
#: {network: what can be offloaded without loss}: figure 1, section 6.2.
PRINTED_SHARE = MappingProxyType({"vgg19": 1.0, "resnet18": 0.55, "resnet50": 0.40})
#: With batch norm recomputed, section 6.3.
PRINTED_SHARE_RECOMPUTED = 0.70
#: {(network, method): share of the baseline's throughput that is lost}: section 6.2.
PRINTED_LOSS: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        ("vgg19", LAYER_WISE): 0.130, ("vgg19", HMMS): 0.013,
        ("resnet50", LAYER_WISE): 0.129, ("resnet50", HMMS): 0.051,
    }
)  # fmt: skip
#: The fit: the factor on the arithmetic rate is between 1 and this.
LARGEST_FACTOR = 16.0


@dataclass(frozen=True, slots=True)
class CallBytes:
    """What a forward call leaves for the backward pass, and what the link carries meanwhile."""

    name: str
    generated_bytes: int
    offloadable_bytes: float


@dataclass(frozen=True, slots=True)
class Share:
    """What can be offloaded for nothing.

    Args:
        machine, model: by name.
        recomputed: whether outputs of batch norms are computed again.
        share: bytes the link carries in the forward pass over bytes generated; may exceed 1.
        printed: the paper's.
    """

    machine: str
    model: str
    recomputed: bool
    share: float
    printed: float


@dataclass(frozen=True, slots=True)
class Speed:
    """A memory plan of a step.

    Args:
        machine, model, method: which.
        ratio: the share of the bytes that was offered to the plan.
        peak_bytes: peak of the plan; bytes_out: what left.
        images_per_s: simulated.
        loss: share of the baseline's speed that is lost; printed: the paper's.
    """

    machine: str
    model: str
    method: str
    ratio: float
    peak_bytes: int
    bytes_out: int
    images_per_s: float
    loss: float
    printed: float | None


def machines(batch: int) -> tuple[Machine, Machine]:
    """The preset, and the same with its arithmetic fitted to the share of ResNet-18."""
    preset = p100_nvlink()
    step = step_trace(FITTED_TO, batch, IMAGE_SIZE)
    return preset, fitted(step, preset, PRINTED_SHARE[FITTED_TO])


def fitted(step: Trace, base: Machine, share: float) -> Machine:
    """The machine on which a step's offloadable share is the given one.

    Arithmetic alone is made faster; what memory bounds stays. The nearer end where no rate fits.
    """

    def too_slow(factor: float) -> bool:
        return offloadable_share(step, _faster(base, factor)) > share

    factor = bisected(1.0, LARGEST_FACTOR, too_slow)
    return replace(_faster(base, factor), name=f"{base.name}-fitted")


def call_bytes(step: Trace, where: Machine) -> list[CallBytes]:
    """Figure 1's bars, call by call."""
    durations = call_durations_ns(step, where)
    generated = generated_bytes(step)
    return [
        CallBytes(
            call.name,
            sum(generated.get(out, 0) for out in call.outs),
            durations[call.id] / 1000 * where.out_bytes_per_us,
        )
        for call in step.calls[: turning_point(step)]
    ]


def shares(batch: int, where: Machine) -> list[Share]:
    """What can be offloaded for nothing, next to the paper's figures."""
    rows = []
    for model in dict.fromkeys((*FIGURE_1, *FIGURE_8)):
        step = step_trace(model, batch, IMAGE_SIZE)
        share = offloadable_share(step, where)
        rows.append(Share(where.name, model, False, share, PRINTED_SHARE[model]))
        if model == RECOMPUTED:
            share = offloadable_share(step, where, outputs_of_norms(step))
            rows.append(Share(where.name, model, True, share, PRINTED_SHARE_RECOMPUTED))
    return rows


def plans(model: str, batch: int, where: Machine) -> dict[str, tuple[float, Plan]]:
    """{method: (ratio, verified plan)}; as in the paper no plan is offered more than the share."""
    step = step_trace(model, batch, IMAGE_SIZE)
    ratio = min(1.0, offloadable_share(step, where))
    found = {}
    for method, planner in (
        (BASELINE, KeepAll()), (LAYER_WISE, VdnnAll(ratio)), (HMMS, Hmms(ratio)),
    ):  # fmt: skip
        plan = planner.plan(Question(step, where.device_bytes, where))
        verify(plan, step, where.device_bytes, where)
        found[method] = (0.0 if method == BASELINE else ratio, plan)
    return found


def speeds(
    model: str, batch: int, where: Machine, found: Mapping[str, tuple[float, Plan]]
) -> list[Speed]:
    """Figure 8's bars of a network."""
    rows = []
    whole_us = found[BASELINE][1].makespan_us
    for method, (ratio, plan) in found.items():
        timeline = simulate(plan.schedule, plan.trace, where)
        rows.append(
            Speed(
                where.name, model, method, ratio, plan.peak_bytes, timeline.bytes_out,
                per_second(batch, timeline.makespan_us), 1 - whole_us / timeline.makespan_us,
                PRINTED_LOSS.get((model, method)),
            )
        )  # fmt: skip
    return rows


def timelines(found: Mapping[str, tuple[float, Plan]], where: Machine) -> dict[str, Timeline]:
    """Figure 9: the three plans' timelines, by method."""
    return {
        method: simulate(plan.schedule, plan.trace, where) for method, (_, plan) in found.items()
    }


def _faster(base: Machine, factor: float) -> Machine:
    return replace(base, flops_per_us=base.flops_per_us * factor)


# `ooctrain reproduce hmms`: two tables, on the preset machine and on the one that is fitted to a
# printed figure; a picture of the second; numbers. Figure 1 explains the two others: a call waits
# where the curve of what the link carries stays below the curve of what is generated, and the
# timelines show which call.

HERE, PAPER = 0, 1


def hmms(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 004, figures 1, 8 and 9."""
    batch = QUICK_BATCH if wanted.quick else BATCH
    preset, fitted = machines(batch)
    share_rows = [row for where in (preset, fitted) for row in shares(batch, where)]
    print_title(console, "What can be offloaded without loss")
    console.print(share_table(share_rows))
    made = {
        (where.name, model): plans(model, batch, where)
        for where in (preset, fitted)
        for model in FIGURE_8
    }
    speed_rows = [
        row
        for where in (preset, fitted)
        for model in FIGURE_8
        for row in speeds(model, batch, where, made[where.name, model])
    ]
    print_title(console, f"\nThree memory plans at batch {batch}, simulated (paper 004)")
    console.print(speed_table(speed_rows))
    calls = {model: call_bytes(step_trace(model, batch, IMAGE_SIZE), fitted) for model in FIGURE_1}
    profiled = FIGURE_9
    step = step_trace(profiled, batch, IMAGE_SIZE)
    figure = hmms_figure(
        calls, [row for row in speed_rows if row.machine == fitted.name],
        timelines(made[fitted.name, profiled], fitted),
        {call.name: call.phase for call in step.calls}, profiled,
    )  # fmt: skip
    write_figure(wanted, console, figure)
    return {
        "batch": batch,
        "machines": [asdict(where) | {"profile": {}} for where in (preset, fitted)],
        "shares": [asdict(row) for row in share_rows],
        "speeds": [asdict(row) for row in speed_rows],
        "calls": {model: [asdict(row) for row in rows] for model, rows in calls.items()},
    }


def share_table(rows: Sequence[Share]) -> Table:
    """What can be offloaded for nothing; what exceeds the whole is the whole."""
    table = plain_table(
        "machine", "network", "batch norm", "offloadable", "paper 004",
        left=("machine", "network", "batch norm"),
    )  # fmt: skip
    for row in rows:
        again = "recomputed" if row.recomputed else "kept"
        shown = f"{row.share:.0%}" if row.share <= 1 else f"all ({row.share:.2f} times)"
        paper = f"{row.printed:.0%}" if row.printed < 1 else "all"
        table.add_row(row.machine, row.model, again, shown, paper)
    return table


def speed_table(rows: Sequence[Speed]) -> Table:
    """The loss of each memory plan; the paper's in brackets."""
    table = plain_table(
        "machine", "network", "plan", "offloaded", "out", "peak", "images/s", "loss",
        left=("machine", "network", "plan"),
    )  # fmt: skip
    for row in rows:
        paper = "" if row.printed is None else f" ({row.printed:.1%})"
        table.add_row(
            row.machine, row.model, row.method, f"{row.ratio:.0%}", format_bytes(row.bytes_out),
            format_bytes(row.peak_bytes), f"{row.images_per_s:.0f}", f"{row.loss:.1%}{paper}",
        )  # fmt: skip
    return table


def hmms_figure(
    calls: Mapping[str, Sequence[CallBytes]], speed_rows: Sequence[Speed],
    profiles: Mapping[str, Timeline], phases: Mapping[str, str], profiled: str,
) -> str:  # fmt: skip
    """SVG: figure 1 for each network, figure 8, figure 9.

    Args:
        calls: {network: its forward calls}.
        speeds: speeds of one machine.
        profiles: {method: timeline}; phases: {call: phase}.
        profiled: the network of the timelines.
    """
    ones = [_one(model, rows) for model, rows in calls.items()]
    titled = {f"Figure 9, {profiled}, {method}": timeline for method, timeline in profiles.items()}
    return stacked_svg([*ones, _eight(speed_rows), timelines_svg(titled, phases=phases)])


def _one(model: str, rows: Sequence[CallBytes]) -> str:
    generated = accumulate(row.generated_bytes / 1e9 for row in rows)
    offloadable = accumulate(row.offloadable_bytes / 1e9 for row in rows)
    curves = [
        Curve(name, list(enumerate(values, 1)))
        for name, values in (("generated", generated), ("the link carries", offloadable))
    ]
    return curves_svg(
        f"Figure 1, {model}: what forward calls leave for backward ones, and what the link carries",
        curves, axes=("forward call", "GB, cumulated"),
    )  # fmt: skip


def _eight(rows: Sequence[Speed]) -> str:
    strips = []
    for row in rows:
        kept = 100 * (1 - row.loss)
        strips.append((f"{row.model}, {row.method}", [Piece(0, kept, f"here {kept:.1f} %", HERE)]))
        if row.printed is not None:
            kept = 100 * (1 - row.printed)
            strips.append(("", [Piece(0, kept, f"paper {kept:.1f} %", PAPER)]))
    return strips_svg(
        "Figure 8: throughput of three memory plans", strips, extent=100.0,
        axis="% of the baseline's", legend=("simulated", "paper 004, measured"),
    )  # fmt: skip
