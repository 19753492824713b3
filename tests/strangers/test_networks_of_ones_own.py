"""A function's own defaults decide how a network of one's own is planned, unless something is said.

`def net(num_classes=3)` has three outputs for `plan`, `simulate`, `compare`, `step_trace` and
`models.build`; data that has other classes, or --classes, say otherwise, and the command prints it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ooctrain as oc
from ooctrain.api import step_trace
from ooctrain.cli import main

OWN = """
import functools
from ooctrain import nn

def _net(classes, channels):
    layers = nn.Conv2d(channels, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4, classes))

def three(num_classes=3): return _net(num_classes, 3)
def grey(num_classes=5, in_channels=1): return _net(num_classes, in_channels)
def bare(num_classes): return _net(num_classes, 3)
def fixed(): return _net(7, 3)
def odd(num_classes=None, in_channels=True): return _net(num_classes or 4, 3)
def keywords(*, num_classes=6, **rest): return _net(num_classes, 3)
made = fixed()
part = functools.partial(_net, 4, 3)
class Net:
    def __new__(cls, num_classes=2): return _net(num_classes, 3)
"""

#: {function: (classes, channels)} where nothing else is said.
USUAL = {
    "three": (3, 3), "grey": (5, 1), "bare": (1000, 3), "fixed": (7, 3), "odd": (1000, 3),
    "keywords": (6, 3), "Net": (2, 3), "made": (7, 3), "part": (4, 3),
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    return lambda name: f"{tmp_path / 'own.py'}:{name}"


def made(trace: oc.Trace) -> tuple[int, int]:
    """The classes and channels of a traced network."""
    shapes = {v.name: v.shape for v in trace.variables}
    return next(s for n, s in shapes.items() if n == "3.weight")[0], shapes["input"][1]


@pytest.mark.parametrize("name", USUAL)
def test_the_default_counts(name: str, own: Callable[[str], str]) -> None:
    assert made(step_trace(own(name), 2)) == USUAL[name]
    small = step_trace(own(name), 2, 32)
    assert made(small)[1] == USUAL[name][1]


@pytest.mark.parametrize(("name", "classes"), [("three", 3), ("grey", 5), ("bare", 10), ("Net", 2)])
def test_of_build(name: str, classes: int, own: Callable[[str], str]) -> None:
    assert oc.models.build(own(name)).state_dict()["3.weight"].shape[0] == classes
    assert oc.models.build(own(name), 9).state_dict()["3.weight"].shape[0] == 9


def planned(capsys: Any, tmp_path: Path, *words: str) -> tuple[int, str]:
    """In-core bytes of the command `plan`, and what it printed."""
    path = tmp_path / "plan.json"
    assert main(["plan", *words, "--batch", "2", "--budget", "1GiB", "--json", str(path)]) == 0
    found = json.loads(path.read_text(encoding="utf-8"))["incore_peak_bytes"]
    return found, capsys.readouterr().out


def test_of_the_commands(
    own: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for size in ((), ("--image-size", "32")):
        usual, said = planned(capsys, tmp_path, own("three"), *size)
        assert "classes" not in said
        as_said, said = planned(capsys, tmp_path, own("three"), "--classes", "3", *size)
        assert usual == as_said
        more, said = planned(capsys, tmp_path, own("three"), "--classes", "900", *size)
        assert more > usual
        assert "900, as --classes says" in said
    _, said = planned(capsys, tmp_path, own("grey"), "--data", "digits")
    assert "10, as digits has" in said
    assert main(["simulate", own("three"), "--batch", "2", "--budget", "1GiB"]) == 0
    with_lenet, _ = planned(capsys, tmp_path, "lenet", "--classes", "500")
    assert with_lenet > planned(capsys, tmp_path, "lenet")[0]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("fixed", "--classes", "7"), 2), (("three", "--classes", "0"), 2),
        (("three", "--data", "digits", "--classes", "9"), 2),
        (("three", "--data", "digits", "--classes", "12"), 0),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for(
    words: tuple[str, ...], status: int, own: Callable[[str], str]
) -> None:
    name, *rest = words
    assert main(["plan", own(name), *rest, "--batch", "2", "--budget", "1GiB"]) == status


def test_training_says_which_number_it_took(
    own: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", own("grey"), "--data", "digits", "--batch", "32", "--steps", "1"]) == 0
    assert "10, as digits has" in capsys.readouterr().out


# --- the first layers: --stem says, else the size of the images, and the header says which


STEMMED = """
from ooctrain import nn
def net(num_classes=3, stem="none"):
    channels = {"cifar": 4, "imagenet": 6}[stem]
    layers = nn.Conv2d(3, channels, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(channels, num_classes))
"""


@pytest.mark.parametrize("size", [64, 65])
def test_a_stem_is_that_which_is_said_else_the_one_for_the_size(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def planned(*words: str) -> tuple[tuple[int, float], str]:
        usual = ["resnet18", "--batch", "1", "--image-size", str(size), "--planner", "keep-all"]
        assert main(["plan", *usual, "--json", "p.json", *words]) == 0
        found = json.loads(Path("p.json").read_text())
        return (found["incore_peak_bytes"], found["compute_us"]), capsys.readouterr().out

    shown = {stem: planned("--stem", stem, "--classes", "10") for stem in ("cifar", "imagenet")}
    usual = "cifar" if size <= 64 else "imagenet"
    numbers, out = planned("--classes", "10")
    assert numbers == shown[usual][0]
    assert ("cifar, for small images of 64 x 64" in out) == (size <= 64)
    assert shown["cifar"][0] != shown["imagenet"][0]
    for stem, (_, said) in shown.items():
        assert f"{stem}, as --stem says" in said


def test_a_stem_is_given_to_a_function_that_takes_one_and_refused_otherwise(
    own: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.py").write_text(STEMMED, encoding="utf-8")
    words = ["--batch", "2", "--image-size", "32", "--stem", "imagenet"]
    assert main(["plan", f"{tmp_path / 'two.py'}:net", *words]) == 0
    assert "imagenet, as --stem says" in capsys.readouterr().out
    for name in (own("three"), own("keywords")):
        assert main(["plan", name, *words]) == 2
        assert "OOC-106" in capsys.readouterr().err


def test_weights_for_the_other_stem_are_met_with_that_stem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, own = str(tmp_path / "w.safetensors"), str(tmp_path / "own.safetensors")
    usual = ["train", "resnet18", "--data", "digits", "--batch", "2", "--steps", "1", "--weights"]
    # With another number of classes too, as torchvision's files have it.
    oc.save(oc.models.build("resnet18", 100, "imagenet").state_dict(), path)
    assert main([*usual, path]) == 2
    assert "likely fix: --stem imagenet" in capsys.readouterr().err
    oc.save(oc.models.build("resnet18", 100, "cifar").state_dict(), own)
    assert main([*usual, own]) == 2  # the stem is right, the classes are not
    assert "--stem" not in capsys.readouterr().err
