"""Crops and flips follow from the seed alone: a run that stops at any step and goes on sees the
same images as one that never stopped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from zoo.planting import plant

import ooctrain as oc
from ooctrain.cli import main
from ooctrain.data import Augmentation, DataLoader, TensorDataset, transforms
from ooctrain.errors import ConfigError
from ooctrain.execution.checkpoint import load

COUNT, SIDE = 7, 6
IMAGES = np.arange(COUNT * 2 * SIDE * SIDE, dtype=np.float32).reshape(COUNT, 2, SIDE, SIDE)
DATA = TensorDataset(IMAGES, np.arange(COUNT))
CHANGES = st.builds(
    lambda crop, pad, flip: Augmentation(crop, pad if crop else 0, flip),
    st.none() | st.integers(1, SIDE), st.integers(0, 2), st.booleans(),
)  # fmt: skip


def loader(changes: Augmentation, seed: int) -> DataLoader:
    return DataLoader(DATA, 2, shuffle=True, drop_last=True, seed=seed, transform=changes.training)


def seen(batches: DataLoader, epochs: int) -> list[bytes]:
    return [x.tobytes() + y.tobytes() for _ in range(epochs) for x, y in batches]


@settings(max_examples=30)
@given(CHANGES, st.integers(0, 2**40), st.integers(0, 5))
@example(Augmentation(4, 1, True), 3, 4)
@example(Augmentation(5), 1, 1)
@example(Augmentation(flip=True), 2, 5)
def test_a_run_that_stops_at_any_step_goes_on_with_the_same_images(changes, seed, stop):
    whole = seen(loader(changes, seed), 2)
    first = loader(changes, seed)
    before = []
    while len(before) < stop:
        for x, y in first:
            before.append(x.tobytes() + y.tobytes())
            if len(before) == stop:
                break
    second = loader(changes, seed)
    second.load_state_dict(first.state_dict())
    after = []
    while len(before) + len(after) < len(whole):
        after += [x.tobytes() + y.tobytes() for x, y in second]
    assert before + after == whole


@settings(max_examples=20)
@given(CHANGES, st.integers(0, 2**40))
def test_what_is_trained_on_is_a_part_of_its_image_perhaps_mirrored(changes, seed):
    side = changes.crop or SIDE
    padded = np.pad(IMAGES, ((0, 0), (0, 0), (changes.pad,) * 2, (changes.pad,) * 2))
    for images, labels in loader(changes, seed):
        for image, label in zip(images, labels, strict=True):
            source = padded[label]
            room = range(source.shape[1] - side + 1)
            parts = [source[:, r : r + side, c : c + side] for r in room for c in room]
            if changes.flip:
                parts += [part[:, :, ::-1] for part in parts]
            assert any(np.array_equal(image, part) for part in parts)


def test_every_place_and_both_ways_occur_and_another_epoch_is_another_draw():
    batches = DataLoader(DATA, COUNT, seed=1, transform=Augmentation(5, 0, True).training)
    epochs = [next(iter(batches))[0] for _ in range(60)]
    assert len({images[0].tobytes() for images in epochs}) == 8, "2 x 2 places, both ways"
    assert len({images.tobytes() for images in epochs}) > 50


def test_a_test_sees_the_middle_and_nothing_of_chance():
    middle = DataLoader(DATA, COUNT, transform=Augmentation(4, 1, True).testing)
    (images, _), (again, _) = next(iter(middle)), next(iter(middle))
    assert np.array_equal(images, IMAGES[:, :, 1:5, 1:5])
    assert np.array_equal(images, again)


@pytest.mark.parametrize("wrong", [{"crop": 0}, {"pad": 2}, {"crop": 4, "pad": -1}])
def test_what_is_no_crop_is_refused(wrong):
    with pytest.raises(ConfigError):
        Augmentation(**wrong)


def test_the_law_bites_on_epochs_that_are_alike(monkeypatch):
    plant(monkeypatch, transforms.Draws, "__init__", "words_of(key)", "words_of(key[:1])")
    with pytest.raises(AssertionError):
        test_every_place_and_both_ways_occur_and_another_epoch_is_another_draw()


@pytest.mark.slow
def test_the_law_bites_on_a_lost_seed(monkeypatch):
    plant(monkeypatch, transforms.Draws, "__init__", "words_of(key)", "words_of(())")
    with pytest.raises(AssertionError):
        test_a_run_that_stops_at_any_step_goes_on_with_the_same_images()


# From the command line, from image files.


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    image = pytest.importorskip("PIL.Image")
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        for number in range(15):
            height, width = rng.integers(30, 50, 2)
            pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
            image.fromarray(pixels).save(folder / label / f"{number}.png")
    return folder


def train(photos: Path, tmp_path: Path, *options: str) -> tuple[int, dict]:
    numbers = tmp_path / "numbers.json"
    status = main(["train", "lenet", "--data", str(photos), "--batch", "8", "--threads", "1",
                   "--crop", "28", "--flip", "--epochs", "2", "--json", str(numbers),
                   *options])  # fmt: skip
    return status, json.loads(numbers.read_text())


@pytest.mark.slow
def test_a_run_on_image_files_stopped_at_any_step_ends_with_the_same_bits(photos, tmp_path):
    straight = tmp_path / "straight.safetensors"
    status, whole = train(photos, tmp_path, "--checkpoint", str(straight))
    assert status == 0
    steps = len(whole["losses"])
    assert steps == 6, "25 of 30 images in batches of 8, twice"
    for stop in range(1, steps):
        path = str(tmp_path / f"stopped-{stop}.safetensors")
        assert train(photos, tmp_path, "--steps", str(stop), "--checkpoint", path)[0] == 0
        resumed = train(photos, tmp_path, "--resume", path, "--budget", "60%")[1]
        assert resumed["losses"] == whole["losses"], stop
        one, other = load(straight), load(path)
        assert all(np.array_equal(one.arrays[n], other.arrays[n]) for n in one.arrays), stop


@pytest.mark.slow
def test_crops_and_flips_belong_to_a_run(photos, tmp_path, capsys):
    path = str(tmp_path / "run.safetensors")
    assert train(photos, tmp_path, "--steps", "1", "--checkpoint", path)[0] == 0
    assert train(photos, tmp_path, "--resume", path, "--crop", "24")[0] == 1
    assert "another crop" in capsys.readouterr().err
    seeds = [train(photos, tmp_path, "--seed", s, "--steps", "2")[1]["losses"] for s in "001"]
    assert seeds[0] == seeds[1] != seeds[2]


def test_images_that_a_crop_is_cut_out_of_are_larger_by_an_eighth(photos):
    data = oc.data.load(str(photos), crop=28)
    assert (data.shape.height, data.shape.width, data.shape.classes) == (32, 32, 2)
    assert oc.data.load(f"folder:{photos}", image_size=40, crop=28).shape.height == 40


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "digits", "--crop", "64"], "--crop 64 is larger than the images of 32 x 32"),
        (["--data", "digits", "--pad", "4"], "needs --crop"),
        (["--data", "synthetic-pixels", "--flip"], "but not their targets"),
    ],
)
def test_a_crop_that_cannot_be_is_refused(options, words, capsys):
    model = "unet" if "synthetic-pixels" in options else "lenet"
    assert main(["train", model, "--steps", "1", "--batch", "4", *options]) == 2
    assert words in capsys.readouterr().err
