"""Bad input to tilings: one typed error each, with numbers and a fix; what is only less is said."""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import ooctrain as oc
from ooctrain import nn
from ooctrain.cli import main
from ooctrain.errors import OoctrainError
from ooctrain.rewrite.tile import tile
from ooctrain.step.rows import Window
from ooctrain.step.trace import Trace


def model() -> nn.Sequential:
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1)
    )


def step(images: int = 2) -> Trace:
    return oc.trace(model(), (images, 2, 16, 12), "mse", None, threads=1, conv_algorithm="direct")


def banded(trace: Trace, grid: tuple = (2, 1), *ends: str) -> Trace:
    return tile(trace, grid, *ends, halo="keep")


def planned(rewrite: str) -> oc.Plan:
    return oc.plan(step(), "100%", "keep-all", rewrites=(rewrite,))


def of(*layers: nn.Module, image: tuple = (1, 2, 16, 12), **options: object) -> Trace:
    oc.manual_seed(0)
    return oc.trace(nn.Sequential(*layers).tiled(2), image, "mse", None, threads=1, **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Doubled(oc.Op):
    """A user's operation without a rule."""

    def shape(self, x):
        return x

    def forward(self, x):
        return 2 * x

    def backward(self, dy):
        return 2 * dy


class Double(nn.Module):
    def forward(self, input):
        return Doubled()(input)


@dataclass(frozen=True)
class Joined(oc.Op):
    """A user's operation over single pixels of two images."""

    def shape(self, x, y):
        return x

    def forward(self, x, y):
        return x + y

    def backward(self, dy):
        return dy, dy

    def window(self):
        return Window(), Window()


class Joining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(channels=2)

    def forward(self, input):
        return Joined()(self.conv(input), input)


class Forked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.second = conv(channels=2), conv(channels=2)

    def forward(self, input):
        x = self.conv(input)
        return self.second(x) + x


def of_names() -> Trace:
    layers = OrderedDict(conv1=conv(), relu=nn.ReLU())
    network = nn.Sequential(OrderedDict(features=nn.Sequential(layers)))
    return oc.trace(network, (1, 2, 9, 9), "mse", None, threads=1)


def forked() -> Trace:
    return oc.trace(Forked(), (1, 2, 9, 9), "mse", None, threads=1)


def conv(kernel: int = 3, channels: int = 4) -> nn.Conv2d:
    return nn.Conv2d(2, channels, kernel, padding=1)


#: What is asked for, and what its error says.
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "bands that are not number": (lambda: planned("bands:x"), "'bands:x' is not a tiling"),
    "no bands": (lambda: planned("bands:0"), "'bands:0' asks for 0 bands"),
    "no tiles across": (lambda: planned("tile:2x0"), "'tile:2x0' asks for 0 tiles"),
    "fewer than no bands": (lambda: planned("bands:-1"), "'bands:-1' is not a tiling"),
    "more digits than a number has": (
        lambda: planned("bands:" + "9" * 5000), "is none of 1, 2, 3 and so on"
    ),
    "perhaps again": (lambda: nn.Sequential(conv()).tiled(4, again="yes"), "again='yes'"),
    "bands by halves": (lambda: banded(step(), (2.5, 1)), r"not \(2.5, 1\)"),
    "bands that are true": (lambda: banded(step(), (True, 1)), r"not \(True, 1\)"),
    "an unknown layer": (
        lambda: banded(step(), (2, 1), "conv9"), r"'conv9'\n  numbers: 4 are there: 0\.fwd, 1\.fwd"
    ),
    "nearly a layer": (
        lambda: banded(of_names(), (2, 1), "features.convl"), "did you mean 'features.conv1'"
    ),
    "more pixels than a GPU counts": (
        lambda: of(conv(), image=(1, 2, 50_000, 50_000), device="cuda"), "at most 2147483647"
    ),
    "the wrong way round": (lambda: banded(step(), (2, 1), "3", "0"), "'3.fwd' to '0.fwd'"),
    "a chain that forks": (
        lambda: tile(forked(), (2, 2), "conv", "add"),
        "'conv.fwd' does not lead straight to",
    ),
    "an operation that reads two images": (
        lambda: tile(oc.trace(Joining(), (1, 2, 9, 9), "mse", None, threads=1), (2, 2),
                     "conv", "joined"),
        "it reads more than one image",
    ),
    "an operation without a rule": (lambda: of(conv(), Double()), "'1.fwd' cannot run in bands"),
    "parts of a batch": (
        lambda: of(conv(), nn.BatchNorm2d(4), image=(4, 2, 8, 8), accumulate=2),
        "a step accumulates 2 parts",
    ),
    "one value per channel": (
        lambda: of(conv(3), nn.BatchNorm2d(4), image=(1, 2, 1, 1)), "one value per channel"
    ),
    "an image smaller than a kernel": (lambda: of(conv(9), image=(1, 2, 5, 5)), "larger than"),
    "other channels": (lambda: of(conv(), image=(1, 3, 16, 12)), "input has 3 channels"),
    "bands in bands": (lambda: banded(banded(step())), "runs in tiles already"),
    "bands in bands by name": (
        lambda: banded(banded(step()), (2, 1), "0", "1"), "'[01]' runs in tiles already"
    ),
    "bands over bands": (
        lambda: banded(banded(step(), (2, 1), "1", "2"), (2, 1), "0", "3"),
        r"'1\.fwd' runs in tiles already",
    ),
    "tiles in tiles": (lambda: tile(tile(step(), (2, 2)), (2, 2)), "runs in tiles already"),
    "tiles in tiles by name": (
        lambda: tile(tile(step(), (2, 2)), (2, 2), "0", "3"), "'0' runs in tiles already"
    ),
    "tiles in bands": (lambda: tile(banded(step()), (2, 2)), "runs in tiles already"),
    "bands in tiles": (lambda: banded(tile(step(), (2, 2))), "runs in tiles already"),
    "a tile by its name": (
        lambda: banded(banded(step(1)), (2, 1), "0.fwd[h 0:7]"), "runs in tiles already"
    ),
    "twice in a plan": (
        lambda: oc.plan(step(), "100%", "keep-all", rewrites=("bands:2", "bands:2")),
        "runs in tiles already",
    ),
    "no tiles": (lambda: oc.plan(step(), "100%", "sft:tiles=0"), "tiles=0 is not a whole number"),
    "fewer than no tiles": (lambda: oc.plan(step(), "100%", "sft:tiles=-1"), "tiles=-1 is not"),
    "perhaps untiled": (lambda: oc.plan(step(), "100%", "banded:untiled=7"), "untiled=7"),
    "perhaps untiled, sft": (lambda: oc.plan(step(), "100%", "sft:untiled=7"), "untiled=7"),
    "below every tiling": (lambda: oc.plan(step(), 100, "banded"), "finds no tiling within"),
    "below every tiling, sft": (lambda: oc.plan(step(), 100, "sft"), "finds no tiling within"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_one_typed_error_with_a_fix(case: str) -> None:
    asked, said = REFUSED[case]
    with pytest.raises(OoctrainError, match=said) as refused:
        asked()
    assert refused.value.fix
    assert refused.value.code != "OOC-000"


def test_a_step_that_is_tiled_in_part_can_be_tiled_further() -> None:
    trace = banded(banded(step(), (2, 1), "0", "1"), (3, 1), "2", "3")
    assert {"0.fwd[n 0, h 0:7]", "3.fwd[n 0, h 0:1]"} <= {call.name for call in trace.calls}


FEWER = {
    "bands:999": "bands:999 makes 16 bands: the input of '0.fwd' has 16 rows",
    "bands_again:17:0:1": "bands_again:17:0:1 makes 16 bands: the input of '0.fwd' has 16 rows",
    "tile:99x99": "tile:99x99 makes 8 x 6 tiles: the output of '3.fwd' has 8 rows and 6 columns",
    "tile:9x2::2": "tile:9x2::2 makes 8 x 2 tiles: the output of '2.fwd' has 8 rows and 6 columns",
}


@pytest.mark.parametrize("name", FEWER)
def test_fewer_tiles_than_asked_for_are_said_in_the_plan(name: str, tmp_path: Path) -> None:
    plan = planned(name)
    assert plan.notes["remarks"] == [FEWER[name]]
    plan.save(str(tmp_path / "plan.json"))
    kept = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert kept["notes"]["remarks"] == [FEWER[name]]


def test_as_many_as_asked_for_are_no_news() -> None:
    for name in ("bands:16", "tile:8x6", "tile:2x2", "fuse"):
        assert "remarks" not in planned(name).notes


def test_fewer_tiles_than_asked_for_are_said_where_no_plan_says_it() -> None:
    with pytest.warns(UserWarning, match="makes 16 bands"):
        banded(step(), (17, 1))
    with pytest.warns(UserWarning, match="makes 8 x 6 tiles"):
        tile(step(), (99, 99))
    with pytest.warns(UserWarning, match="bands_again:40:0.fwd:3.fwd makes 16 bands"):
        oc.trace(model().tiled(40), (1, 2, 16, 12), "mse", None, threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        banded(step(), (16, 1))


@pytest.mark.slow
def test_fewer_tiles_than_asked_for_are_said_by_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "bands:999 makes 32 bands: the input of 'conv1.fwd' has 32 rows"
    path, about = tmp_path / "x.json", ["lenet", "--batch", "2", "--rewrite", "bands:999"]
    for command in ("plan", "simulate"):
        options = [*about, "--machine", "v100-pcie", "--json", str(path)]
        assert main([command, *options]) == 0
        assert said in " ".join(capsys.readouterr().out.split())
        assert json.loads(path.read_text(encoding="utf-8"))["remarks"] == [said]
    options = ["--batch", "2", "--machine", "v100-pcie", "--planner", "naive", "--budget", "50%"]
    jobs = ["--rewrite", "bands:999", "--bound", "simple", "--jobs", "1", "--fresh"]
    assert main(["compare", "lenet", *options, *jobs, "--json", str(path)]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert json.loads(path.read_text(encoding="utf-8"))["rows"][0]["remarks"] == said
