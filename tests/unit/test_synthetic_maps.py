"""Data whose target is a map, and the networks that learn maps, through the command line."""

import json

import numpy as np
import pytest
from support.quick import quick

from ooctrain import data
from ooctrain.cli import main


@pytest.mark.parametrize("name", ["synthetic-pixels", "synthetic-images"])
def test_samples_depend_on_seed_and_number_alone(name):
    first, more = data.load(f"{name}:samples=8"), data.load(f"{name}:samples=16")
    for one, other in zip(first[5], more[5], strict=True):
        assert np.array_equal(one, other)
    for other in (data.load(f"{name}:samples=8,seed=1"), data.load(name, train=False)):
        assert not np.array_equal(first[5][0], other[5][0])
    with pytest.raises(IndexError):
        first[8]


def test_shapes_and_kinds_of_targets():
    pixels = data.load("synthetic-pixels:classes=5,channels=2", image_size=20)
    assert data.shape_of(pixels) == data.Shape(2, 20, 20, 5, "pixels")
    x, y = pixels.take(np.arange(64))
    assert x.shape == (64, 2, 20, 20)
    assert x.dtype == np.float32
    assert y.shape == (64, 20, 20)
    assert y.dtype == np.int64
    assert set(np.unique(y)) == set(range(5))
    images = data.load("synthetic-images:channels=6", image_size=20)
    assert data.shape_of(images) == data.Shape(6, 20, 20, 3, "image")
    x, y = images.take(np.arange(3))
    assert x.shape == (3, 6, 20, 20)
    assert y.shape == (3, 3, 20, 20)
    assert y.dtype == np.float32
    assert np.abs(y).max() <= 1


class Foreign:
    """A data set of one's own, without `shape` and `take`."""

    def __init__(self, target):
        self.target = target

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.zeros((3, 4, 6), np.float32), self.target


def test_foreign_data_of_each_kind():
    maps = Foreign(np.array([[0, 3, 1, 0, 0, 0]] * 4))
    assert data.shape_of(maps) == data.Shape(3, 4, 6, 4, "pixels")
    pictures = Foreign(np.zeros((2, 4, 6), np.float64))
    assert data.shape_of(pictures) == data.Shape(3, 4, 6, 2, "image")
    _, y = next(iter(data.DataLoader(pictures, 2, prefetch=0)))
    assert y.dtype == np.float32
    assert data.shape_of(Foreign(2)) == data.Shape(3, 4, 6, 3)


def test_a_network_of_maps_does_not_learn_from_class_numbers(capsys):
    assert main(["train", "unet", "--data", "digits"]) == 2
    assert "--data synthetic-pixels" in capsys.readouterr().err
    assert main(["train", "lenet", "--data", "synthetic-images"]) == 2
    assert "--data digits" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unet", pytest.param("pix2pixhd", marks=pytest.mark.slow)])
def test_training_within_a_budget(name, tmp_path, capsys):
    path = tmp_path / "numbers.json"
    words = f"train {name} --image-size 16 --batch 4 --steps 2 --budget 50% --optimizer adam"
    words += f" --lr 0.0005 --threads 1 --verify --json {path}"
    assert main(words.split()) == 0
    numbers = json.loads(path.read_text())
    assert numbers["identical_to_incore"] is True
    assert len(numbers["losses"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize("name", quick(["unet", "deeplabv3plus", "pix2pixhd", "inception_v3"], 0))
def test_planning_asks_about_the_usual_images(name, tmp_path, capsys):
    path = tmp_path / "numbers.json"
    words = f"plan {name} --batch 2 --machine v100-pcie --json {path}"
    assert main(words.split()) == 0
    assert json.loads(path.read_text())["feasible"] is True
    size = {"unet": "512 x 512", "deeplabv3plus": "513 x 513", "pix2pixhd": "36 x 512 x 1024",
            "inception_v3": "299 x 299"}[name]  # fmt: skip
    assert size in capsys.readouterr().out
