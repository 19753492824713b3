"""Steps whose answers are known (`known.py`): small ones that have of everything something.

Each is traced once for threads=2, whatever machine runs the tests. Read next: `known.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random

from support import known
from support.random_nets import STEPS as KINDS
from support.random_nets import RandomNet
from support.worked_example import worked_trace

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.step.machine import Machine, specs_of
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import random_trace
from ooctrain.tracing import trace


class Block(nn.Module):
    """A residual block with batch norm, a dropout, and a branch that is concatenated."""

    def __init__(self, planes: int):
        super().__init__()
        self.first, self.norm = nn.Conv2d(planes, planes, 3, padding=1), nn.BatchNorm2d(planes)
        self.second, self.drop = nn.Conv2d(2 * planes, planes, 1), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        return F.relu(x + self.drop(self.second(F.concat([x, y], dim=1))))


def _blocks() -> Trace:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Block(8), nn.MaxPool2d(2),
        Block(8), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip
    return trace(net, (4, 3, 32, 32), threads=2)


def _plain() -> Trace:
    """Convolutions and pools in a row: a chain, as many papers plan it."""
    widths = (3, 8, 8, 16, 16, 16, 4)
    parts = [
        layer for i, (a, b) in enumerate(pairwise(widths))
        for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), *[nn.MaxPool2d(2)] * (i % 3 == 2))
    ]  # fmt: skip
    net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(4 * 8 * 8, 5))
    return trace(net, (4, 3, 32, 32), optimizer="adam", threads=2)


def _everything() -> Trace:
    plan = [(kind, 3 * number) for number, kind in enumerate(dict.fromkeys(KINDS))]
    return trace(RandomNet(plan), (3, 2, 17, 19), threads=2, clip=1.0, accumulate=2)


def _random() -> Trace:
    return random_trace(Random(5), calls=24, max_bytes=4000)


MAKERS: Mapping[str, Callable[[], Trace]] = {
    "blocks": _blocks, "plain": _plain, "everything": _everything, "random": _random,
    "worked": worked_trace,
}  # fmt: skip
#: The link is slow, so that moving and computing are worth about as much; no two rates are equal.
MACHINE = Machine(
    "known", 6000.0, 9000.0, 3000.0, latency_us=1.5, link_out_bytes_per_us=2700.0,
    link_in_bytes_per_us=3400.0, host_bytes=1 << 30, call_overhead_us=0.75,
)  # fmt: skip
DUPLEX = replace(
    MACHINE, name="duplex", link="duplex", interference=1.25, issue_us=0.5, copy_issue_us=0.25
)


@cache
def step(name: str) -> Trace:
    return MAKERS[name]()


def budget(name: str, share: float) -> int:
    """A share of what the step takes in core."""
    return int(trace_peak_bytes(step(name)) * share)


def row_of(step: Trace) -> known.Row:
    """A step in numbers: calls, variables, work, bytes moved, scratch, peak, and all of it."""
    work = moved = 0
    text = [repr((v.name, v.shape, v.dtype, v.nbytes, v.kind, v.pinned)) for v in step.variables]
    for call in step.calls:
        ins, outs = specs_of(step, call.ins), specs_of(step, call.outs)
        own = call.op.flops(ins, outs), call.op.bytes_moved(ins, outs)
        work, moved = work + own[0], moved + own[1]
        text.append(repr((call.name, call.op, call.ins, call.outs, own, call.workspace_bytes,
                          dict(call.reuse), call.pure, call.phase, call.forward_of)))  # fmt: skip
    text.append(repr((sorted(step.carries.items()), sorted(step.outputs.items()))))
    scratch = sum(call.workspace_bytes for call in step.calls)
    whole = known.digest("\n".join(text))
    return (len(step.calls), len(step.variables), work, moved, scratch, trace_peak_bytes(step),
            whole)  # fmt: skip
