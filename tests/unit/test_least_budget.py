"""The least budget of a step in bands of one row, as docs/tiling.md states it; and what is below.

The formula is computed here from a list of layers, by brute force, without the package's row rules;
what it is compared with is the verifier's: with that budget a list is legal, with a byte less there
is none.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain import nn
from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cpu.conv.conv_workspace import workspace_bytes
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.tile.banded import Banded
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.step.presets import v100_pcie

#: Channels of 3 x 3 convolutions with ReLU, and "pool".
NETS = {
    "narrow": (3, 8, 8),
    "wide": (3, 16, 16, 16),
    "pooled": (3, 8, 8, "pool", 16, 16),
    "deep": (3, 16, 16, 16, 16, 16),
    "pooled twice": (3, 8, 8, "pool", 8, 16, "pool", 32, 32),
}
ROWS = 16


def step(net: tuple, width: int, rows: int = ROWS) -> oc.Trace:
    oc.manual_seed(0)
    layers, channels = list[nn.Module](), net[0]
    for layer in net[1:]:
        if layer == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, layer, 3, padding=1), nn.ReLU()]
            channels = layer
    shape = (1, net[0], rows, width)
    return oc.trace(nn.Sequential(*layers), shape, "mse", threads=1, conv_algorithm="direct")


def frontier(before: list[int], window: tuple[int, int, int], outputs: int) -> list[int]:
    """The largest o of which all windows end in, and the next one begins within, the rows before
    each cut, tried one after the other.
    """
    (kernel, stride, padding), found = window, []
    for rows in before:
        fits = [
            o for o in range(1, outputs + 1)
            if (o - 1) * stride - padding + kernel <= rows and o * stride - padding <= rows
        ]  # fmt: skip
        found.append(outputs if rows == before[-1] else max(fits, default=0) if rows else 0)
    return found


def least_bytes(net: tuple, width: int, rows: int = ROWS) -> int:
    """Of all bands of all convolutions the largest of

        forward          4 W (C r + K o) + 4 (9 C K + K) + S
        weight gradient  4 W (C r + K o) + 4 * 9 C K + S
        update           3 * 4 * 9 C K
        loss, backward   3 * 4 W K o + 4, behind the last one

    where a band reads r = a_v(t+1) - max(0, a_u(t) - 1) rows and makes o = a_u(t+1) - a_u(t), and S
    is the scratch of the kernel.
    """
    most, channels, height = 0, net[0], rows
    cuts = list(range(rows + 1))
    for layer in net[1:]:
        if layer == "pool":
            height, width = height // 2, width // 2
            cuts = frontier(cuts, (2, 2, 0), height)
            continue
        weight = 4 * 9 * channels * layer
        most = max(most, 3 * weight)
        after = frontier(cuts, (3, 1, 1), height)
        for t in range(rows):
            own, read = after[t + 1] - after[t], cuts[t + 1] - max(0, after[t] - 1)
            if own:
                above, below = max(0, 1 - after[t]), max(0, after[t + 1] + 1 - height)
                shape = ConvShape(
                    1, channels, read, width, layer, 3, 3, padding=(above, below, 1, 1)
                )
                images = 4 * width * (channels * read + layer * own)
                forward = weight + 4 * layer + workspace_bytes(shape, "direct", "forward", 1)
                backward = weight + workspace_bytes(shape, "direct", "grad_weight", 1)
                most = max(most, images + max(forward, backward))
        cuts, channels = after, layer
    own = max(hi - lo for lo, hi in pairwise(cuts))
    return max(most, 3 * 4 * width * channels * own + 4)


@pytest.mark.parametrize("width", quick([16, 60, 128, 512], 2))
@pytest.mark.parametrize("net", quick([*NETS], 0, 2))
def test_the_formula_is_the_verifier_s_least_budget(net: str, width: int) -> None:
    trace = step(NETS[net], width)
    loss = next(call.name for call in trace.calls if call.phase == "loss")
    name, least = f"bands_again:{ROWS}:0:{loss}", least_bytes(NETS[net], width)
    plan = oc.plan(trace, least, "naive", rewrites=(name,))
    oc.verify(plan, trace, least)
    with pytest.raises(oc.Infeasible) as refused:
        oc.plan(trace, least - 1, "naive", rewrites=(name,))
    assert refused.value.minimum_bytes == least


def classifier(channels: int, rows: int, width: int) -> oc.Trace:
    """Convolutions on a wide, low image; a mean, which bands can sum; a layer that has no rows."""
    oc.manual_seed(0)
    convs = nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4)
    model = nn.Sequential(*convs, *head)
    trace = oc.trace(model, (1, 3, rows, width), threads=1, conv_algorithm="direct")
    return apply_rewrites(trace, ("fuse", "share_storage"))


def test_below_bands_of_one_row_tiles_take_over() -> None:
    """They hold the whole image, so they need less where it is low and its channels are few."""
    trace = classifier(16, 8, 512)
    rows = [apply_rewrites(trace, [f"{kind}:8:0:2"]) for kind in ("bands", "bands_again")]
    one_row = min(map(trace_minimum_bytes, rows))
    plan = Banded().plan(Question(trace, one_row * 3 // 4, v100_pcie()))
    assert plan.notes["tiling"].startswith("tile:")
    assert plan.peak_bytes <= one_row * 3 // 4


@pytest.mark.parametrize(("planner", "lacking"), [("banded", "4.fwd"), ("sft", "3.fwd")])
def test_below_every_tiling_the_refusal_is_typed_and_names_what_is_missing(
    planner: str, lacking: str
) -> None:
    trace = classifier(16, 8, 512)
    with pytest.raises(oc.Infeasible) as refused:
        oc.plan(trace, 1000, planner, rewrites=(), machine="v100-pcie")
    error, text = refused.value, str(refused.value)
    assert f"call {error.witness_call}" in text
    assert "least of any tiling" in text
    assert str(error.minimum_bytes) in text
    assert f"a row rule where there is none: '{lacking}': " in text
    plan = oc.plan(trace, error.minimum_bytes, planner, rewrites=(), machine="v100-pcie")
    assert plan.peak_bytes <= error.minimum_bytes
