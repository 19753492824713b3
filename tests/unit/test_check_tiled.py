"""`oc.testing.check_tiled`: each result beside its bound; planted bugs make it fail."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.quick import quick
from support.tile_chains import Chain, chains
from zoo.band_bugs import BAND_BUGS
from zoo.norm_band_bugs import NORM_BAND_BUGS, OF_KERNELS

import ooctrain as oc
from ooctrain import nn
from ooctrain.errors import ConfigError
from ooctrain.layers.regions import Insert
from ooctrain.rewrite.tile import weave
from ooctrain.testing import TiledFailure, TiledReport, check_tiled
from ooctrain.testing.tiled.check_tiled import (
    SCALARS,
    allowed_errors,
    compared,
    gamma,
    gradient_step,
    random_values,
)

SHAPE = (2, 2, 15, 11)
OF_INSTANCES = "the state of the first image"


def convs() -> nn.Sequential:
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5),
        nn.Conv2d(4, 4, 3, 2, 1),
    )  # fmt: skip


def norms() -> nn.Sequential:
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)
    )


def classifier() -> nn.Sequential:
    oc.manual_seed(0)
    features = nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(
        nn.Sequential(*features).tiled(3, again=False), nn.Flatten(), nn.Linear(3, 5)
    )


def promises(report: TiledReport) -> dict[str, str]:
    return {row.name: row.promise for row in report.rows}


def test_bands_keep_the_bits_of_all_but_gradients_of_weights() -> None:
    report = check_tiled(convs(), SHAPE, "bands:4")
    assert promises(report) == {
        "y": "bits", "grad:x": "bits", "grad:0.bias": "bits", "grad:4.bias": "bits",
        "grad:0.weight": "bound", "grad:4.weight": "bound",
    }  # fmt: skip
    assert all(row.holds for row in report.rows)
    assert repr(report).startswith("TiledReport(bands:4: 4 results to the bit, 2 within bounds")
    assert "grad:0.weight" in str(report)
    assert len(str(report).splitlines()) == 8


def test_statistics_keep_their_bits() -> None:
    found = promises(check_tiled(norms(), SHAPE, "bands_again:5:0:3"))
    exact = {name for name, promise in found.items() if promise == "bits"}
    assert {"1.running_mean", "1.running_var", "grad:1.weight", "grad:1.bias"} <= exact
    assert found.keys() - exact == {"grad:0.weight", "grad:3.weight"}


def test_tiles_have_bounds_of_gradients() -> None:
    found = promises(check_tiled(convs(), SHAPE, "tile:3x2"))
    assert found.pop("y") == "bits"
    assert {*found.values()} == {"bound"}


def test_what_a_model_wants_itself_and_what_lies_behind() -> None:
    """The pooled mean is a sum over bands, and so is all that follows within a bound."""
    found = promises(check_tiled(classifier(), (2, 2, 9, 8)))
    assert found["y"] == "bound"
    inner = nn.Sequential(convs().tiled(3), nn.BatchNorm2d(4))
    assert promises(check_tiled(inner, SHAPE))["grad:x"] == "bits"


def test_by_definition_where_no_bound_is_known() -> None:
    oc.manual_seed(0)
    wide = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1))
    report = check_tiled(wide, (1, 16, 13, 9), "bands:3", conv_algorithm="winograd4")
    assert promises(report)["y"] == "definition"
    assert all(row.error < 1e-9 for row in report.rows)


def test_the_bound_of_a_weight_s_gradient_by_hand() -> None:
    """2 gamma(n) sum |x| |dy|, n pixels."""
    oc.manual_seed(0)
    trace = gradient_step(nn.Sequential(nn.Conv2d(1, 1, 1)), (1, 1, 6, 5), threads=1)
    values = random_values(trace, 0, integers=None)
    allowed = allowed_errors(trace, ["bands:2"], values, SCALARS)[trace.outputs["grad:0.weight"]]
    size = np.sum(np.abs(values["x"].astype("float64") * values["dy"]))
    # Two bands are added up: 2 additions more than the 30 products.
    assert allowed.bound((1, 1, 1, 1)).item() == pytest.approx(2 * gamma(32) * size, rel=1e-12)


def test_nothing_tiled_is_said() -> None:
    with pytest.raises(ConfigError, match="nothing is tiled"):
        check_tiled(convs(), SHAPE)


def _fails(
    patch: pytest.MonkeyPatch, plant: Callable, model: nn.Module, tiling: str
) -> TiledFailure:
    assert check_tiled(model, SHAPE, tiling)
    plant(patch)
    with pytest.raises(TiledFailure) as failure:
        check_tiled(model, SHAPE, tiling)
    return failure.value


#: With results of the right shapes: what is wrong is one number or another.
QUIET = (
    "bands go into the whole from below", "dropout of the first rows", "dropout of the first image",
    "rows of the first image", "weight gradients of the last band",
)  # fmt: skip


@pytest.mark.parametrize("bug", quick(QUIET, 0))
def test_a_planted_bug_of_bands_makes_it_fail(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = _fails(monkeypatch, BAND_BUGS[bug], convs(), "bands:3")
    assert "expected" in failure.numbers
    assert failure.where.startswith("at (")


@pytest.mark.slow
@pytest.mark.parametrize("bug", sorted({*OF_KERNELS} - {OF_INSTANCES}))
def test_a_planted_bug_of_norms_makes_it_fail(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _fails(monkeypatch, NORM_BAND_BUGS[bug], norms(), "bands:3:0:3")


def test_a_planted_bug_of_tiles_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """dX inserted, not added: what two tiles share is that of the later one."""
    plain = weave.insertion

    def insertion(op, whole, part, region, phase):
        return plain(Insert, whole, part, region, phase)

    failure = _fails(
        monkeypatch, lambda patch: patch.setattr(weave, "insertion", insertion), convs(), "tile:3x2"
    )
    assert "'grad:x'" in str(failure)


@pytest.mark.slow
@settings(max_examples=60)
@given(chains(), st.integers(0, 99), st.sampled_from(["bands", "bands_again", "tile"]))
def test_it_holds_of_any_chain(chain: Chain, seed: int, kind: str) -> None:
    trace = chain.trace("direct")
    assume(trace is not None)
    size = f"{chain.grid[0]}x{chain.grid[1]}" if kind == "tile" else str(chain.grid[0])
    try:
        rows = compared(trace, [f"{kind}:{size}"], random_values(trace, seed, integers=None))
    except ConfigError as refusal:  # where bands cannot be right
        assume("adds images of one pixel in one block" not in str(refusal))
        raise
    wrong = [row for row in rows if not row.holds]
    assert not wrong
