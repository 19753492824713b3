"""Tiled traces are planned, proved and executed like any other; a user's operation as well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from support.check_tile import chain_trace, check_tile, random_values

import ooctrain as oc
from ooctrain import nn
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.step.machine import call_durations_ns
from ooctrain.step.presets import rtx2080ti
from ooctrain.step.rows import Window
from ooctrain.step.trace import Trace
from ooctrain.units import GIB

SEGMENT = "tile:4x4:0:7"


def model() -> nn.Sequential:
    oc.manual_seed(0)
    body = [layer for _ in range(4) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())]
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((2, 3, 32, 32)).astype("float32"), rng.integers(0, 4, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rewrites",
    [
        ("fuse", "share_storage", SEGMENT),
        (SEGMENT, "fuse", "share_storage"),
        ("tile:2x2:0:3", "share_storage", "tile:3x3:4:8"),
    ],
    ids=["last", "first", "two segments"],
)
def test_same_gradients_by_every_order_of_rewrites(rewrites: tuple[str, ...]) -> None:
    network = model()
    trace = oc.trace(network, (2, 3, 32, 32), threads=2, conv_algorithm="direct")
    plain = oc.execute(oc.plan(trace, "1GiB", planner="keep-all"), network, batch())
    for planner, budget in (("keep-all", "1GiB"), ("window", "256KiB")):
        plan = oc.plan(trace, budget, planner=planner, rewrites=rewrites)
        oc.verify(plan, trace, budget)
        run = oc.execute(plan, network, batch())
        assert run.loss == pytest.approx(plain.loss, rel=1e-6)
        for name, gradient in plain.gradients.items():
            assert run.gradients[name] == pytest.approx(gradient, rel=1e-4, abs=1e-6), name


def test_fits_where_no_call_of_the_untiled_trace_fits() -> None:
    trace = oc.trace(model(), (2, 3, 64, 64), threads=2, conv_algorithm="direct")
    untiled, tiled = (
        trace_minimum_bytes(trace),
        trace_minimum_bytes(oc.tile(trace, (4, 4), "0", "8")),
    )
    assert tiled < untiled / 2
    budget = (untiled + tiled) // 2
    with pytest.raises(oc.Infeasible):
        oc.plan(trace, budget, planner="naive", rewrites=())
    plan = oc.plan(trace, budget, planner="naive", rewrites=("tile:4x4:0:8",))
    assert plan.peak_bytes <= budget


def vgg16_traces(pixels: int, tiles: int) -> tuple[Trace, Trace]:
    """The step on one image without the linear layers of ImageNet, whole and in tiles."""
    trace = oc.trace(oc.models.build("vgg16", stem="cifar"), (1, 3, pixels, pixels), threads=2)
    return trace, oc.tile(trace, (tiles, tiles))


def roofline_s(trace: Trace) -> float:
    """All calls one after the other on paper 003's smaller GPU."""
    return sum(call_durations_ns(trace, rtx2080ti())) / 1e9


@pytest.fixture(scope="module")
def vgg16() -> tuple[Trace, Trace]:
    return vgg16_traces(10240, 16)


@pytest.mark.slow
def test_vgg16_of_10240_pixels_fits_11_gib(vgg16: tuple[Trace, Trace]) -> None:
    """Paper 003's claim, in 16 x 16 tiles as there: 124 GiB become 2.3, and nothing is swapped."""
    whole, tiled = vgg16
    assert trace_peak_bytes(whole) > 118 << 30
    assert trace_peak_bytes(tiled) / GIB == pytest.approx(2.3, abs=0.05)


@pytest.mark.slow
def test_tiled_a_step_takes_twice_as_long_at_the_roofline(vgg16: tuple[Trace, Trace]) -> None:
    """Forward calls run again and halos several times; the paper says "minimal overhead"."""
    whole, tiled = map(roofline_s, vgg16)
    assert 1.9 < tiled / whole < 2


@pytest.mark.slow
def test_20480_pixels_fit_11_gib_and_take_four_times_as_long(vgg16: tuple[Trace, Trace]) -> None:
    """In 32 x 32 tiles: the time is linear in the pixels, as the paper says."""
    _, tiled = vgg16_traces(20480, 32)
    assert trace_peak_bytes(tiled) / GIB == pytest.approx(6.4, abs=0.05)
    assert roofline_s(tiled) / roofline_s(vgg16[1]) == pytest.approx(4.1, abs=0.05)


@dataclass(frozen=True)
class Blur(oc.Op):
    """Sum of three rows, as a user would write it, with a tile rule."""

    top: int = 1
    bottom: int = 1

    def shape(self, x):
        n, c, h, w = x
        return n, c, h + self.top + self.bottom - 2, w

    def forward(self, x):
        padded = np.pad(x, ((0, 0), (0, 0), (self.top, self.bottom), (0, 0)))
        return padded[:, :, :-2] + padded[:, :, 1:-1] + padded[:, :, 2:]

    def backward(self, dy, x):
        padded = np.zeros((*x.shape[:2], x.shape[2] + self.top + self.bottom, x.shape[3]), x.dtype)
        for row in range(3):
            padded[:, :, row : row + dy.shape[2]] += dy
        return padded[:, :, self.top : self.top + x.shape[2]]

    def window(self):
        return Window(kernel=3, pad_lo=self.top, pad_hi=self.bottom), Window()

    def with_padding(self, padding):
        return Blur(padding[0], padding[1])


class Blurred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x):
        return Blur()(self.conv(Blur()(x)))


@pytest.mark.parametrize("grid", [(2, 2), (9, 1)])
def test_an_operation_of_your_own_is_tiled_by_its_rule(grid: tuple[int, int]) -> None:
    trace = chain_trace(Blurred(), (1, 2, 9, 7))
    assert any("Blur" in type(call.op).__name__ for call in trace.calls)
    check_tile(trace, grid, random_values(trace))
