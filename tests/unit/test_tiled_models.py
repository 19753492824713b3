"""A model that is tiled by one changed line: what its steps ask an allocator for."""

from __future__ import annotations

import re

import pytest

import ooctrain as oc
from ooctrain import nn
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.execution.placement import allocation_log
from ooctrain.sched.schedule import Plan


def plan_of(how: int | tuple[int, int] | None) -> Plan:
    oc.manual_seed(0)
    features = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.MaxPool2d(2)
    )
    if how is not None:
        features = features.tiled(how)  # the one changed line
    model = nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    trace = oc.trace(model, (1, 3, 64, 64), threads=1, conv_algorithm="direct")
    return oc.plan(trace, "100%", "keep-all", granule=oc.Granule(512, ranges=False))


def addresses(plan: Plan) -> dict[tuple[str, int], list[int]]:
    """{(variable without its tile, bytes): where an allocator puts its tiles, step after step}."""
    arena = BestFit(DryMemory(4 * plan.peak_bytes))
    live, found = {}, dict[tuple[str, int], list[int]]()
    for request in allocation_log(plan.trace, plan.schedule, plan.peak_bytes).requests:
        if request.op == "free":
            arena.free(live.pop(request.key))
        elif request.op == "allocate":
            live[request.key] = arena.allocate(request.nbytes, request.tag)
            if "[" in request.tag:
                place = re.sub(r"\[.*", "", request.tag), request.nbytes
                found.setdefault(place, []).append(live[request.key].address)
    return found


@pytest.mark.parametrize(
    ("how", "tiles", "inner"),
    [((4, 4), 16, ["0.2.out", "0.3.out", "0.3.index"]), (8, 6, ["0.0.out", "0.2.out"])],
    ids=["tiles", "bands"],
)
def test_tiles_of_one_shape_share_their_buffers(
    how: int | tuple[int, int], tiles: int, inner: list[str]
) -> None:
    """Blocks are asked for tile by tile, and lie in a few places, where others lay before."""
    plan = plan_of(how)
    found = addresses(plan)
    for name in inner:
        blocks = max((at for (tensor, _), at in found.items() if tensor == name), key=len)
        assert len(blocks) >= tiles, name
        assert len(set(blocks)) <= len(blocks) // 4, name
    assert plan.peak_bytes < plan_of(None).peak_bytes / 2
