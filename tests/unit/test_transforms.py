"""Transforms of images, one by one; arrays as data, parts of data, random splits."""

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import data
from ooctrain.data.transforms import (
    CenterCrop,
    Compose,
    Draws,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from ooctrain.errors import ConfigError

IMAGE = np.arange(2 * 4 * 5, dtype=np.float32).reshape(2, 4, 5)


def all_of(transform, image=IMAGE, draws=300):
    """Every image that chance makes, by its bytes."""
    made = [transform(image, Draws(7, number)) for number in range(draws)]
    return {np.ascontiguousarray(one).tobytes(): one for one in made}


def test_draws_are_fixed_for_ever():
    # Recorded once: a change of NumPy or of this library must not change anybody's run.
    draws = Draws(1, 2, 3)
    assert [draws.below(1000) for _ in range(4)] == [719, 12, 99, 887]
    values = [Draws(number).uniform() for number in range(2000)]
    assert 0 <= min(values) < 0.01 < 0.99 < max(values) < 1
    assert abs(np.mean(values) - 0.5) < 0.03


def test_a_crop_is_any_part_and_nothing_else():
    found = all_of(RandomCrop((3, 4)))
    wanted = {IMAGE[:, i : i + 3, j : j + 4].tobytes() for i in range(2) for j in range(2)}
    assert set(found) == wanted


def test_a_crop_may_reach_into_its_padding():
    found = all_of(RandomCrop((4, 5), padding=(1, 0), fill=9.0))
    wide = np.pad(IMAGE, ((0, 0), (0, 0), (1, 1)), constant_values=9.0)
    assert set(found) == {wide[:, :, j : j + 5].tobytes() for j in range(3)}
    (only,) = all_of(RandomCrop((5, 5), padding=(0, 1, 0, 0), padding_mode="reflect")).values()
    assert np.array_equal(only, np.pad(IMAGE, ((0, 0), (1, 0), (0, 0)), mode="reflect"))


def test_flips_have_their_chance():
    for flip, mirrored in (
        (RandomHorizontalFlip, IMAGE[:, :, ::-1]), (RandomVerticalFlip, IMAGE[:, ::-1]),
    ):  # fmt: skip
        wanted = {IMAGE.tobytes(), np.ascontiguousarray(mirrored).tobytes()}
        assert set(all_of(flip())) == wanted
        (never,), (always,) = all_of(flip(0)).values(), all_of(flip(1.0)).values()
        assert np.array_equal(never, IMAGE)
        assert np.array_equal(always, mirrored)
        flipped = [np.array_equal(flip(0.25)(IMAGE, Draws(n)), mirrored) for n in range(800)]
        assert abs(np.mean(flipped) - 0.25) < 0.05


def test_the_middle_and_the_mean():
    (middle,) = all_of(CenterCrop(2), draws=3).values()
    assert np.array_equal(middle, IMAGE[:, 1:3, 2:4])
    changed = Compose([CenterCrop((4, 5)), Normalize((1.0, 2.0), (2.0, 4.0))])(IMAGE, Draws(0))
    assert np.array_equal(changed[1], (IMAGE[1] - 2) / 4)
    assert changed.dtype == np.float32


WRONG = [
    lambda: RandomCrop(0), lambda: RandomCrop((1, 2, 3)), lambda: RandomCrop(2, padding=-1),
    lambda: RandomCrop(2, padding=(1, 2, 3)), lambda: RandomCrop(2, padding_mode="wrap"),
    lambda: RandomCrop(5)(IMAGE, Draws(0)), lambda: CenterCrop(5)(IMAGE, Draws(0)),
    lambda: RandomHorizontalFlip(1.5), lambda: Normalize((0.5,), (0.0,)),
    lambda: Normalize((0.5, 0.5), (1.0,)), lambda: Normalize((0,) * 3, (1,) * 3)(IMAGE, Draws(0)),
    lambda: data.TensorDataset(IMAGE), lambda: data.TensorDataset(IMAGE, np.zeros(3)),
    lambda: data.TensorDataset(IMAGE, np.array(["a", "b"])),
    lambda: data.TensorDataset(np.ma.masked_array(IMAGE), np.zeros(2)),
    lambda: data.random_split(DATA, [5, 4]), lambda: data.random_split(DATA, [0.5, 0.4]),
    lambda: data.random_split(DATA, []), lambda: data.random_split(DATA, [11, -1]),
    lambda: data.random_split(DATA, [4.5, 5.5]),
    lambda: data.DataLoader(DATA, num_workers=-1),
]  # fmt: skip
DATA = data.TensorDataset(np.arange(30, dtype=np.uint8).reshape(10, 3), np.arange(10))


@pytest.mark.parametrize("make", WRONG)
def test_what_there_is_not_is_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_images_move_with_their_class_numbers_only():
    maps = data.TensorDataset(np.zeros((4, 1, 6, 6)), np.zeros((4, 6, 6), int))
    loader = data.DataLoader(maps, 2, transform=RandomHorizontalFlip())
    with pytest.raises(ConfigError, match="would not be cut or mirrored"):
        next(iter(loader))
    images = data.TensorDataset(np.zeros((4, 1, 6, 6)), np.zeros(4, int))
    ragged = data.DataLoader(images, 4, transform=lambda x, draws: x[:, : 1 + draws.below(6)])
    with pytest.raises(ConfigError, match="make no batch"):
        next(iter(ragged))


def test_arrays_are_a_data_set():
    made = data.TensorDataset(oc.tensor(np.ones((4, 3), np.float32)), np.arange(4, dtype=np.int32))
    x, y = next(iter(data.DataLoader(made, 3)))
    assert (x.dtype, x.shape, y.dtype, y.tolist()) == (np.float32, (3, 3), np.int64, [0, 1, 2])
    image, label = DATA[4]
    assert (image.tolist(), label) == ([12.0, 13.0, 14.0], 4)
    assert data.TensorDataset(np.ones((2, 3)), np.ones((2, 1))).take(np.array([1]))[1].dtype == "f4"


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([6, 4], [6, 4]), ([0.5, 0.5], [5, 5]), ([0.33, 0.33, 0.34], [4, 3, 3]), ([1.0], [10]),
     ([10, 0], [10, 0])],
)  # fmt: skip
def test_a_random_split_hands_out_each_sample_once(lengths, sizes):
    parts = data.random_split(DATA, lengths, seed=3)
    assert [len(part) for part in parts] == sizes
    numbers = [[int(part[i][1]) for i in range(len(part))] for part in parts]
    assert sorted(number for part in numbers for number in part) == list(range(10))
    again = data.random_split(DATA, lengths, seed=3)
    assert [part.indices.tolist() for part in again] == numbers
    other = data.random_split(DATA, lengths, seed=4)
    assert [part.indices.tolist() for part in other] != numbers
    for part, labels in zip(parts, numbers, strict=True):
        assert part.take(np.arange(len(part)))[1].tolist() == labels


def test_a_part_has_the_shape_of_the_whole():
    train, test = data.random_split(data.load("digits"), [0.9, 0.1])
    assert data.shape_of(train) == data.shape_of(test) == data.shape_of(data.load("digits"))
