"""Bytes stay bytes from the data to `nn.FromBytes`, and models without it are given floats.

Each way to batches of bytes trains like floats that NumPy made of the same bytes; a mean and a
deviation for each channel are as torchvision's `Normalize` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain import data, nn
from ooctrain.errors import ConfigError, ShapeError

MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (8, 3, 6, 6), np.uint8)
Y = np.arange(8) % 5


class Mine:
    """A data set of one's own, of bytes; labels of the kinds that people have."""

    def __init__(self, kind: Callable[[int], Any] = int):
        self.kind = kind

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        return X[index], self.kind(Y[index])


def flip(image: np.ndarray, draws: data.transforms.Draws) -> np.ndarray:
    return image[:, ::-1, ::-1]


BATCHES: dict[str, Callable[[], Iterable[Any]]] = {
    "TensorDataset": lambda: data.DataLoader(data.TensorDataset(X, Y), 4),
    "its Subset": lambda: data.DataLoader(data.Subset(data.TensorDataset(X, Y), range(8)), 4),
    "a list of pairs": lambda: data.DataLoader(list(zip(X, Y, strict=True)), 4),
    "a data set of one's own": lambda: data.DataLoader(Mine(), 4),
    "labels of NumPy": lambda: data.DataLoader(Mine(np.int32), 4),
    "labels as arrays": lambda: data.DataLoader(Mine(np.asarray), 4),
    "batches": lambda: [(X[:4], Y[:4]), (X[4:], Y[4:])],
    "flipped twice": lambda: data.DataLoader(
        data.TensorDataset(X, Y), 4,
        transform=data.transforms.Compose([flip, flip, data.transforms.RandomCrop(6)])),
    "flipped and cut": lambda: data.DataLoader(
        data.TensorDataset(X, Y), 4, transform=data.Augmentation(6, 0).training),
    "ImageDataset": lambda: data.DataLoader(
        data.ImageDataset(X, Y, channels=3, classes=5, mean=(100.0,), std=(50.0,)), 4),
    "its Subset, shuffled not": lambda: data.DataLoader(
        data.Subset(data.ImageDataset(X, Y, channels=3, classes=5), np.arange(8)), 4),
}  # fmt: skip


def model(first: nn.Module) -> nn.Module:
    oc.manual_seed(0)
    return nn.Sequential(first, nn.Flatten(), nn.Linear(108, 5))


def losses(first: nn.Module, batches: Iterable[Any]) -> list[float]:
    with oc.Trainer(model(first)) as trainer:
        found = trainer.fit(batches, epochs=2)
        evaluated = trainer.evaluate(batches)
        return [*found, evaluated.loss]


def as_floats(mean: Any, std: Any) -> list[float]:
    mean, std = (np.asarray(v, np.float32).reshape(1, -1, 1, 1) for v in (mean, std))
    floats = (X.astype(np.float32) - mean) / std
    return losses(nn.Identity(), [(floats[:4], Y[:4]), (floats[4:], Y[4:])])


@pytest.mark.parametrize("name", BATCHES)
def test_bytes_come_through(name):
    assert losses(nn.FromBytes(), BATCHES[name]()) == as_floats(0, 255)


@pytest.mark.parametrize("name", quick([n for n in BATCHES if n != "ImageDataset"], 0, 3, 6))
def test_a_model_without_from_bytes_takes_them_as_floats(name):
    assert losses(nn.Identity(), BATCHES[name]()) == as_floats(0, 1)


class Wrapper:
    """A data set of one's own around another one, sample by sample."""

    def __init__(self, inner: Any, change: Callable[[np.ndarray], np.ndarray] = lambda x: x):
        self.inner, self.change = inner, change

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        image, label = self.inner[index]
        return self.change(image), label


class Delegating(Wrapper):
    """Has the names of what it wraps, too, whose whole batches know nothing of the change."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Batches(Wrapper):
    """Takes whole batches."""

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self.inner.take(indices)
        return self.change(images), labels


class Flipped(data.TensorDataset):
    """One of ours with its own samples."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        image, label = super().__getitem__(index)
        return image[..., ::-1], label


class FlippedImages(data.ImageDataset):
    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image, label = super().__getitem__(index)
        return image[..., ::-1], label


class FlippedBatches(data.ImageDataset):
    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images, labels = super().take(indices)
        return images[..., ::-1], labels


def flipped(image: np.ndarray) -> np.ndarray:
    return image[..., ::-1]


NORMED = {"channels": 3, "classes": 5, "mean": (100.0,), "std": (50.0,)}
#: {what: data whose images are X flipped, as bytes, and as floats where nothing wants bytes}
OWN: dict[str, Callable[[], Any]] = {
    "a wrapper": lambda: Wrapper(data.ImageDataset(X, Y, **NORMED), flipped),
    "of arrays": lambda: Wrapper(data.TensorDataset(X, Y), flipped),
    "of a subset": lambda: Wrapper(data.Subset(data.ImageDataset(X, Y, **NORMED), range(8)),
                                   flipped),
    "a subset of a wrapper": lambda: data.Subset(
        Wrapper(data.ImageDataset(X, Y, **NORMED), flipped), range(8)),
    "a wrapper of a wrapper": lambda: Wrapper(Wrapper(data.ImageDataset(X, Y, **NORMED)), flipped),
    "that delegates": lambda: Delegating(data.ImageDataset(X, Y, **NORMED), flipped),
    "that takes batches": lambda: Batches(data.ImageDataset(X, Y, **NORMED), flipped),
    "a subclass": lambda: Flipped(X, Y),
    "a subclass of images": lambda: FlippedImages(X, Y, **NORMED),
    "a subclass with batches": lambda: FlippedBatches(X, Y, **NORMED),
    "of a list": lambda: Wrapper(list(zip(X, Y, strict=True)), flipped),
}  # fmt: skip


@pytest.mark.parametrize("workers", quick([1, 0, 3], 0))
@pytest.mark.parametrize("name", OWN)
def test_bytes_come_through_data_sets_of_ones_own(name, workers):
    loader = data.DataLoader(OWN[name](), 4, num_workers=workers)
    with oc.Trainer(model(nn.FromBytes())) as trainer:
        found = trainer.fit(loader)
        assert np.isfinite(trainer.evaluate(loader).loss)
        for x, y in trainer.ahead(loader):
            assert x.dtype == np.uint8
            assert np.array_equal(x, X[..., ::-1][:4] if y[0] == Y[0] else X[..., ::-1][4:])
    floats = (X[..., ::-1] / np.float32(255)).astype(np.float32)
    with oc.Trainer(model(nn.Identity())) as trainer:
        assert trainer.fit([(floats[:4], Y[:4]), (floats[4:], Y[4:])]) == found


@pytest.mark.parametrize("name", OWN)
def test_where_nothing_wants_bytes_they_give_what_they_always_gave(name):
    loader = data.DataLoader(OWN[name](), 8)
    ((x, _),) = loader
    wanted = X if name in ("of arrays", "a subclass", "of a list") else (X - np.float32(100)) / 50
    assert np.array_equal(x, wanted[..., ::-1].astype(x.dtype))


def test_bytes_of_some_samples_and_floats_of_others_are_no_batch():
    """A wrapper that keeps what it was given once, for a model of floats."""
    kept: dict[int, np.ndarray] = {}

    class Keeping(Wrapper):
        def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
            image, label = self.inner[index]
            return kept.setdefault(index, image), label

    own = Keeping(data.ImageDataset(X, Y, **NORMED))
    own[0]
    with pytest.raises(ShapeError) as found, oc.Trainer(model(nn.FromBytes())) as trainer:
        trainer.fit(data.DataLoader(own, 4))
    assert "uint8" in found.value.numbers


def test_a_transform_that_calculates_is_given_floats_where_nothing_wants_bytes():
    def shifted(image, draws):
        return image - 200  # bytes would begin again at 255

    loader = data.DataLoader(data.TensorDataset(X, Y), 4, transform=shifted)
    assert np.array_equal(next(iter(loader))[0], X[:4].astype(np.float32) - 200)


def test_crops_and_flips_keep_bytes_in_a_loop_of_ones_own():
    change = data.Augmentation(6, pad=1, flip=True).training
    for x, _ in data.DataLoader(data.TensorDataset(X, Y), 4, transform=change):
        assert x.dtype == np.uint8
    odd = data.transforms.RandomCrop(6, padding=1, fill=-1)
    with pytest.raises(ConfigError):
        list(data.DataLoader(data.TensorDataset(X, Y), 4, transform=odd))


def test_a_loop_of_ones_own_gets_bytes_and_so_does_eager():
    with oc.Trainer(model(nn.FromBytes())) as trainer:
        for x, y in data.DataLoader(data.TensorDataset(X, Y), 4):
            assert x.dtype == np.uint8
            trainer.step(x, y)
    assert model(nn.FromBytes())(oc.tensor(x)).shape == (4, 5)


@pytest.mark.parametrize(
    ("mean", "std"), [(MEAN, STD), (list(MEAN), 58.4), (0, np.array(STD)), ([7], [2.0])]
)
def test_a_mean_for_each_channel(mean, std):
    assert losses(nn.FromBytes(mean, std), BATCHES["batches"]()) == as_floats(mean, std)


@pytest.mark.parametrize("mean", [(1, 2), (1, 2, 3, 4)])
def test_a_mean_of_other_channels_is_told_with_both_numbers(mean):
    with pytest.raises(ShapeError) as found, oc.Trainer(model(nn.FromBytes(mean))) as trainer:
        trainer.step(X, Y)
    assert str(len(mean)) in found.value.what
    assert "3" in found.value.what


@pytest.mark.parametrize(
    ("mean", "std"),
    [("a", 1), (None, 1), ((), 1), ((1, 2, 3), (1, 2)), (float("nan"), 1), (0, 0), (0, (1, 1, -1)),
     (((1, 2, 3),), 1), (0, float("inf"))],
)  # fmt: skip
def test_what_is_no_mean_or_deviation_is_refused_when_the_model_is_made(mean, std):
    with pytest.raises(ConfigError):
        nn.FromBytes(mean, std)


def test_folders_come_as_bytes_where_the_model_takes_them(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "val"):
        for label in "ab":
            (tmp_path / part / label).mkdir(parents=True)
            for i in range(4):
                pixels = np.full((6, 6, 3), 60 * i + 1, np.uint8)
                image.fromarray(pixels).save(tmp_path / part / label / f"{i}.png")
    folder = data.load(str(tmp_path), image_size=6)
    with oc.Trainer(model(nn.FromBytes(MEAN, STD))) as trainer:
        found = trainer.fit(data.DataLoader(folder, 4))
    with oc.Trainer(model(nn.Identity())) as trainer:
        assert trainer.fit(data.DataLoader(folder, 4)) == found, "as floats they are normalised"
    assert {x.dtype for x, _ in data.DataLoader(folder, 4)} == {np.dtype(np.float32)}
    for own in (Wrapper(folder), Delegating(folder), data.Subset(Wrapper(folder), range(8)),
                data.random_split(Wrapper(folder), [8])[0]):  # fmt: skip
        with oc.Trainer(model(nn.FromBytes(MEAN, STD))) as trainer:
            assert len(trainer.fit(data.DataLoader(own, 4))) == 2
            for x, _ in trainer.ahead(data.DataLoader(own, 4)):
                assert x.dtype == np.uint8
    with oc.Trainer(model(nn.FromBytes(MEAN, STD))) as trainer:
        assert trainer.fit(data.DataLoader(Wrapper(folder), 4)) == found


def test_floats_for_a_model_that_takes_bytes_are_told():
    floats = data.DataLoader(data.TensorDataset(X / 255, Y), 4)
    with pytest.raises(ShapeError), oc.Trainer(model(nn.FromBytes())) as trainer:
        trainer.fit(floats)


def test_a_run_that_stops_between_bytes_goes_on_there():
    loader = data.DataLoader(data.TensorDataset(X, Y), 2)
    with oc.Trainer(model(nn.FromBytes())) as trainer:
        for position, (x, y) in enumerate(trainer.ahead(loader), 1):
            trainer.step(x, y)
            if position == 2:
                break
    assert loader.state_dict() == {"epoch": 0, "position": 2}
