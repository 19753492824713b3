"""Rewrites as plug-ins: names, what they keep, laws that hold them to it, `--rewrite`."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import plugins as specs
from ooctrain.api import step_trace
from ooctrain.cli import main
from ooctrain.errors import ConfigError
from ooctrain.rewrite import REWRITES, apply_rewrites, keeps_of
from ooctrain.testing.check_rewrite import RewriteFailure, check_rewrite

OWN = """
from dataclasses import replace
from ooctrain.rewrite.tile import tile

def nothing(trace):
    return trace

def tiles(trace, tiles=2):
    return tile(trace, (tiles, tiles))
tiles.keeps = "bound"

class Bands:
    keeps = "bound"
    def __init__(self, bands=2):
        self.bands = bands
    def __call__(self, trace):
        return tile(trace, (self.bands, 1), halo="keep")

def lies(trace):
    return tile(trace, (2, 2))

def loses(trace):
    return replace(trace, outputs={n: v for n, v in trace.outputs.items() if n == "loss"})

def other_network(trace):
    return trace
other_network.keeps = "meaning changed"

def number(trace):
    return 3

def wrong(trace):
    return trace
wrong.keeps = "most"
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "own.py"
    file.write_text(OWN, encoding="utf-8")
    return str(file)


def test_names_and_what_they_keep(own: str) -> None:
    assert {"fuse", "share_storage", "tile", "bands"} <= set(oc.rewrites())
    assert keeps_of("fuse") == keeps_of("share_storage") == "bits"
    assert keeps_of("bands:4") == keeps_of(f"{own}:tiles:tiles=3") == "bound"
    assert keeps_of(f"{own}:nothing") == "bits"
    assert keeps_of(f"{own}:other_network") == "meaning changed"
    assert "no such rewrite" not in REWRITES


def test_a_rewrite_of_a_file_is_planned_and_verified(own: str) -> None:
    trace = step_trace("lenet", 2)
    name = f"{own}:Bands:bands=3"
    plan = oc.plan(trace, "100%", planner="keep-all", machine="v100-pcie", rewrites=(name,))
    assert plan.rewrites == (name,)
    assert any("[h " in call.name or "[n " in call.name for call in plan.trace.calls)


def test_a_plan_file_runs_no_code_that_nobody_named(own: str, tmp_path: Path) -> None:
    trace, path, name = step_trace("lenet", 2), str(tmp_path / "p.json"), f"{own}:tiles"
    plan = oc.plan(trace, "100%", planner="keep-all", machine="v100-pcie", rewrites=(name,))
    plan.save(path)
    with pytest.raises(ConfigError, match="would run the file"):
        oc.load_plan(path, trace)
    assert oc.load_plan(path, trace, [name]).schedule == plan.schedule


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{own}:number", "returned int"),
        ("{own}:wrong", "unknown value of keeps: 'most'"),
        ("{own}:tiles:tile=3", "tiles"),
        ("{own}:nobody", "defines no 'nobody'"),
        ("{own}x.py:f", "no Python file"),
        ("tiled", "no rewrite 'tiled'"),
        ("", "no rewrite ''"),
    ],
)
def test_bad_names(own: str, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        apply_rewrites(step_trace("lenet", 2), [name.format(own=own)])


def test_another_packages_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("theirs", "ooctrain.rewrite.fuse:fuse", "ooctrain.rewrites")

    def entry_points(*, group: str, name: str = "theirs") -> list[EntryPoint]:
        return [entry] if (group, name) == ("ooctrain.rewrites", "theirs") else []

    monkeypatch.setattr(specs, "entry_points", entry_points)
    assert "theirs" in oc.rewrites()
    trace = step_trace("lenet", 2)
    assert (
        apply_rewrites(trace, ["theirs"]).fingerprint == apply_rewrites(trace, ["fuse"]).fingerprint
    )


# The laws


@pytest.mark.parametrize("name", ["fuse", "share_storage", "tile:2x2", "bands:3", "bands_again:2"])
def test_our_own_keep_their_laws(name: str) -> None:
    assert check_rewrite(name, examples=2) > 0


@pytest.mark.slow
def test_rewrites_of_a_file_keep_theirs(own: str) -> None:
    for name in ("nothing", "tiles", "Bands:bands=2", "other_network"):
        assert check_rewrite(f"{own}:{name}", examples=3) > 0


@pytest.mark.parametrize(("name", "law"), [("lies", "other numbers"), ("loses", "same interface")])
def test_a_rewrite_that_keeps_less_than_it_says_is_found(own: str, name: str, law: str) -> None:
    with pytest.raises(RewriteFailure, match=law):
        check_rewrite(f"{own}:{name}", examples=12)


def tiles_of_two(trace: oc.Trace) -> oc.Trace:
    """A rewrite that adds floats in another order, and says so below."""
    return oc.tile(trace, (2, 2))


def test_other_attributes_say_what_is_kept() -> None:
    honest = lambda trace: tiles_of_two(trace)  # noqa: E731
    honest.keeps = "bound"  # type: ignore[attr-defined]
    assert check_rewrite(honest, examples=3) > 0


def test_a_lie_about_bits_is_found() -> None:
    with pytest.raises(RewriteFailure, match="other numbers"):
        check_rewrite(tiles_of_two, examples=3)


def test_one_that_refuses_everything_is_found() -> None:
    with pytest.raises(RewriteFailure, match="refuses all steps"):
        check_rewrite("tile:2x2:nobody", examples=2)


# The command


def test_rewrite_in_plan_compare_and_explain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, rewrite = tmp_path / "plan.json", "bands:4"
    options = ["--batch", "2", "--machine", "v100-pcie", "--rewrite", rewrite]
    assert main(["plan", "lenet", *options, "--planner", "belady", "--save", str(path)]) == 0
    assert rewrite in json.loads(path.read_text(encoding="utf-8"))["rewrites"]
    assert main(["simulate", "lenet", *options, "--planner", "belady"]) == 0
    assert (
        main(["compare", "lenet", *options, "--planner", "belady", "--budget", "50%", "--fresh",
              "--bound", "simple", "--jobs", "1", "--json", str(tmp_path / "c.json")]) == 0
    )  # fmt: skip
    capsys.readouterr()
    assert main(["explain", "--rewrite", "bands:4", "--rewrite", "fuse"]) == 0
    shown = capsys.readouterr().out
    assert "bands:4 keeps: every output to the bit where sums are exact" in shown
    assert "fuse keeps: every output of the step to the bit" in shown


# A tiled model


def tiled_model(**how: object) -> oc.nn.Sequential:
    oc.manual_seed(0)
    features = oc.nn.Sequential(
        oc.nn.Conv2d(3, 4, 3, padding=1), oc.nn.ReLU(), oc.nn.MaxPool2d(2), oc.nn.Conv2d(4, 4, 3)
    )
    if how:
        assert features.tiled(**how) is features  # type: ignore[arg-type]
    return oc.nn.Sequential(features, oc.nn.AdaptiveAvgPool2d(1), oc.nn.Flatten())


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"bands": 4}, "bands_again:4:0.0.fwd:0.3.fwd"),
        ({"bands": 3, "again": False}, "bands:3:0.0.fwd:0.3.fwd"),
        ({"bands": (2, 3)}, "tile:2x3:0.0.fwd:0.3.fwd"),
    ],
)
def test_a_model_is_tiled_by_one_changed_line(how: dict, kind: str) -> None:
    plain, tiled = (oc.trace(tiled_model(**h), (1, 3, 24, 24), threads=1) for h in ({}, how))
    assert tiled.fingerprint == apply_rewrites(plain, [kind]).fingerprint
    assert len(tiled.calls) > len(plain.calls)


def test_what_cannot_be_tiled_is_said_when_the_step_is_traced() -> None:
    whole = oc.nn.Sequential(oc.nn.Conv2d(3, 4, 3), oc.nn.AdaptiveAvgPool2d(1), oc.nn.Flatten())
    with pytest.raises(ConfigError, match="cannot run in bands"):
        oc.trace(whole.tiled(4), (1, 3, 24, 24), threads=1)
    with pytest.raises(ConfigError, match="accumulates 2 parts"):
        oc.trace(tiled_model(bands=2), (2, 3, 24, 24), threads=1, accumulate=2)
    for bands in (0, (2, 0), (1, 2, 3), True, 2.5, "4"):
        with pytest.raises(ConfigError, match="neither a number of bands"):
            tiled_model(bands=bands)


@pytest.mark.slow
def test_a_tiled_model_trains_as_the_plain_one() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3, 24, 24)).astype("float32"), rng.integers(0, 4, 2)
    losses = []
    for how in ({}, {"bands": 4}, {}):
        model, later = tiled_model(**how), bool(losses) and not how
        with oc.Trainer(model, threads=1, conv_algorithm="direct") as trainer:
            first = trainer.step(x, y)
            calls = len(trainer.prepared.plan.trace.calls)
            if later:  # tiled between two steps: the next one has it
                model[0].tiled(4)
            losses.append([first, trainer.step(x, y), trainer.step(x, y)])
            assert (len(trainer.prepared.plan.trace.calls) > calls) == later
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] == pytest.approx(losses[2], rel=1e-5)
