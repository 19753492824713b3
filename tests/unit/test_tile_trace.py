"""Tiled traces as traces: what is kept, what is gone, how far the peak falls, what is refused.

Values are the business of tests/properties/test_tiled_gradients.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.check_tile import chain_trace

from ooctrain import nn
from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.rewrite.tile import tile, tile_by_name
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.step.machine import specs_of
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace as trace_step


def vgg_like() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2),
    )  # fmt: skip


def step() -> Trace:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    model = nn.Sequential(*vgg_like(), *head)
    return trace_step(model, (4, 3, 32, 32), threads=2, conv_algorithm="direct")


def test_the_tiled_trace_is_whole() -> None:
    plain = step()
    tiled = tile(plain, (2, 2))
    tiled.check()
    assert tiled.outputs.keys() == plain.outputs.keys()
    for name, v in plain.outputs.items():
        assert tiled.variables[tiled.outputs[name]].shape == plain.variables[v].shape
    old_names = [{t.variables[v].name for v in t.carries.values()} for t in (plain, tiled)]
    assert old_names[0] == old_names[1]
    initial = [[t.variables[v].name for v in t.initial] for t in (plain, tiled)]
    assert initial[0] == initial[1]


def test_activations_inside_are_gone_and_the_peak_falls() -> None:
    model = nn.Sequential(
        *[layer for _ in range(3) for layer in (nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU())]
    )
    plain = chain_trace(model, (2, 8, 64, 64), conv_algorithm="direct")
    tiled = tile(plain, (4, 4))
    names = {v.name for v in tiled.variables}
    assert "1.out" not in names
    assert "5.out" in names
    whole = 4 * 2 * 8 * 64 * 64
    largest_inside = max(v.nbytes for v in tiled.variables if "[h" in v.name)
    assert largest_inside < whole / 8
    # Left are x, y, dy, dx and the largest tile; untiled, five activations more.
    assert trace_peak_bytes(tiled) < trace_peak_bytes(plain) - 2 * whole


def test_more_tiles_need_less() -> None:
    plain = chain_trace(vgg_like(), (2, 3, 64, 64), conv_algorithm="direct")
    peaks = [trace_peak_bytes(tile(plain, (n, n))) for n in (1, 2, 4, 8)]
    assert peaks == sorted(peaks, reverse=True)


def test_forward_calls_run_again_in_backward() -> None:
    tiled = tile(chain_trace(vgg_like(), (1, 3, 16, 16)), (2, 1))
    again = [c for c in tiled.calls if ".again" in c.name and "slice" not in c.name]
    # All five of each tile: the pool's positions are needed, and all that leads to them.
    assert len(again) == 2 * 5
    assert all(c.phase == "backward" and c.pure for c in again)
    gradients = [c for c in tiled.calls if c.forward_of is not None]
    assert all(tiled.calls[c.forward_of].phase == "forward" for c in gradients)


def test_what_no_gradient_needs_is_not_run_again() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 1, 1))
    tiled = tile(chain_trace(model, (1, 3, 16, 16)), (2, 1))
    again = [c.name.split(".")[0] for c in tiled.calls if ".again" in c.name and "fwd" in c.name]
    assert again == ["0", "0"]  # the last convolution's output is read by no gradient


def test_evaluation_is_tiled_forward_only() -> None:
    plain = trace_step(
        vgg_like(), (2, 3, 16, 16), loss=None, optimizer=None, training=False, threads=2
    )
    tiled = tile(plain, (2, 2))
    assert {c.phase for c in tiled.calls} == {"forward"}
    assert tiled.outputs.keys() == {"output"}


def test_each_convolution_keeps_its_algorithm() -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1))
    for algorithm in ("direct", "im2col", "winograd2", "winograd4"):
        tiled = tile(chain_trace(model, (1, 16, 20, 20), conv_algorithm=algorithm), (5, 5))
        found = {c.op.algorithm for c in tiled.calls if hasattr(c.op, "algorithm")}
        assert found == {algorithm}


@pytest.mark.parametrize("threads", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("algorithm", ["direct", "im2col", "winograd2", "winograd4"])
def test_workspaces_are_for_the_same_threads(algorithm: str, threads: int) -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 1, 1))
    for image in ((1, 16, 6, 6), (4, 16, 64, 64)):
        plain = chain_trace(model, image, conv_algorithm=algorithm, threads=threads)
        tiled = tile(plain, (3, 3))
        for call in tiled.calls:
            ins, outs = specs_of(tiled, call.ins), specs_of(tiled, call.outs)
            needed = CPU.workspace_bytes(call.op, ins, outs, threads)
            assert call.workspace_bytes == needed, call.name


def test_first_and_last() -> None:
    plain = step()
    part = tile(plain, (2, 2), first="0", last="2")
    names = {c.name for c in part.calls}
    assert "3.fwd" in names
    assert "2.fwd" not in names
    same = tile_by_name(plain, "tile:2x2:0:2")
    assert same.fingerprint == part.fingerprint
    assert tile_by_name(plain, "tile:2x2").fingerprint == tile(plain, (2, 2)).fingerprint
    assert (
        tile_by_name(plain, "tile:2x2::1").fingerprint == tile(plain, (2, 2), last="1").fingerprint
    )


def test_the_grid_is_at_most() -> None:
    plain = chain_trace(vgg_like(), (1, 3, 4, 4))
    with pytest.warns(UserWarning, match="tile:9x9 makes 2 x 2 tiles"):
        most = tile(plain, (9, 9))
    assert most.fingerprint == tile(plain, (2, 2)).fingerprint


def test_storage_reuse_of_the_original_is_kept() -> None:
    plain = step()
    relu = plain.variable_by_name["1.out"].id
    calls = [replace(c, reuse={relu: c.ins[0]}) if c.name == "1.fwd" else c for c in plain.calls]
    in_place = replace(plain, calls=tuple(calls))
    in_place.check()
    tiled = tile(in_place, (2, 2))
    assert all(c.reuse for c in tiled.calls if c.name.startswith("1.fwd"))


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        ("0", "7", ["'5.fwd'", "cannot be tiled", "no fixed stride"]),
        ("7", None, ["'7.fwd'", "cannot be tiled"]),
        ("nowhere", None, ["no forward call is named 'nowhere'"]),
        ("2", "0", ["'0' comes before '2.fwd'"]),
    ],
)
def test_refusals_name_the_call_and_the_reason(
    first: str | None, last: str | None, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        tile(step(), (2, 2), first, last)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_batch_norm_and_forks_are_refused() -> None:
    normed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    trace = chain_trace_with_state(normed)
    with pytest.raises(ConfigError, match=r"'0\.0\.fwd' does not lead.*0\.1\.stats.*whole batch"):
        tile(trace, (2, 2), "0.0", "0.2")

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 3, 1, 1), nn.Conv2d(3, 3, 3, 1, 1)

        def forward(self, x):
            x = self.a(x)
            return x + self.b(x)

    with pytest.raises(ConfigError, match="does not lead straight"):
        tile(chain_trace(Residual(), (1, 3, 8, 8)), (2, 2), "a", "b")


def chain_trace_with_state(model: nn.Module) -> Trace:
    head = nn.Sequential(model, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return trace_step(head, (2, 3, 8, 8), threads=2)


@pytest.mark.parametrize("grid", [(0, 2), (2, -1), (2,)])
def test_a_grid_is_two_positive_numbers(grid: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="grid"):
        tile(step(), grid)


@pytest.mark.parametrize(
    "name", ["tile", "tile:4", "tile:4x", "tile:axb", "tile:1x1:a:b:c", "split:2x2"]
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a tiling"):
        tile_by_name(step(), name)


def test_a_tiled_segment_is_not_tiled_again() -> None:
    tiled = tile(step(), (2, 2))
    with pytest.raises(ConfigError):
        tile(tiled, (2, 2), "0", "3")


def test_two_segments() -> None:
    plain = step()
    both = tile(tile(plain, (2, 2), "0", "1"), (2, 2), "2", "4")
    both.check()
    assert {"1.out", "4.out"} <= {v.name for v in both.variables}
    assert "3.out" not in {v.name for v in both.variables}
