"""Wherever an array comes in, what is no array of real numbers is refused, and nothing has changed.

A masked array would lose its mask, a complex one its imaginary part; words would be read as
numbers. `ways_in` is the list of all doors; each kind of array knocks at each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from zoo.planting import plant

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.data import DataLoader
from ooctrain.data.dataset import ImageDataset
from ooctrain.engine import autograd, eager, state_dicts
from ooctrain.errors import ConfigError, OoctrainError, ShapeError
from ooctrain.step import user_values


class Unsupported:
    """As torch's bfloat16 tensors, which NumPy has no type for."""

    def __init__(self, array: np.ndarray, kind: type[Exception]):
        self.shape, self._kind = np.shape(array), kind

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise self._kind("Got unsupported ScalarType BFloat16")


#: Of a whole-number or a float array, what cannot be meant.
KINDS: dict[str, Callable[[np.ndarray], object]] = {
    "masked": lambda array: np.ma.masked_array(array, mask=True),
    "masked without a mask": np.ma.masked_array,
    "complex": lambda array: array.astype(np.complex64) + 1j,
    "complex without an imaginary part": lambda array: array.astype(np.complex128),
    "text": lambda array: array.astype(str),
    "bytes": lambda array: array.astype("S8"),
    "objects": lambda array: array.astype(object),
    "dates": lambda array: array.astype(np.int64).astype("datetime64[s]"),
    "records": lambda array: array.astype([("a", np.float32)]),
    "bfloat16": lambda array: Unsupported(array, TypeError),
    "needs a gradient": lambda array: Unsupported(array, RuntimeError),
    "ragged": lambda array: [[1.0], [1.0, 2.0]],
    "nothing of the kind": lambda array: object(),
}
X, Y = np.ones((4, 6), np.float32), np.array([0, 1, 2, 0])
IMAGES = np.ones((4, 1, 2, 2), np.float32)


def network() -> nn.Module:
    oc.manual_seed(1)
    return nn.Linear(6, 5)


class Samples:
    """A data set of one's own, sample by sample."""

    def __init__(self, images: object, labels: object):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[object, object]:
        return self.images, self.labels


class Batches(Samples):
    """A data set of one's own that hands out whole batches."""

    def take(self, indices: np.ndarray) -> tuple[object, object]:
        return self.images, self.labels


def first(dataset: Samples) -> object:
    return next(iter(DataLoader(dataset, 4, prefetch=0)))


def ways_in() -> Iterator[tuple[str, np.ndarray, Callable[[object], object]]]:
    """(door, what may come in, what to call with something else in its place)."""
    model = network()
    state = model.state_dict()
    weight = state["weight"]
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = oc.Trainer(model, optimizer=optimizer, threads=1)
    groups = optimizer.state_dict()["param_groups"]

    def load_slot(value: object) -> None:
        slots = [{"step": 1, "momentum": value}, {"step": 1, "momentum": np.zeros(5)}]
        state_dict = {"state": dict(enumerate(slots)), "param_groups": groups, "steps_done": 1}
        optimizer.load_state_dict(state_dict)

    def load(value: object, **options: bool) -> None:
        network().load_state_dict({**state, "weight": value}, **options)

    def data_set(images: object, labels: object) -> ImageDataset:
        return ImageDataset(images, labels, channels=1, classes=3)

    yield "tensor", X, oc.tensor
    yield "parameter", X, nn.Parameter
    yield "buffer", X, lambda value: network().register_buffer("extra", value)
    yield "class weights", X[0], nn.CrossEntropyLoss
    yield "copy_", weight, network().weight.copy_
    yield "load_state_dict", weight, load
    yield "load_state_dict, not strict", weight, lambda value: load(value, strict=False)
    yield "optimizer", weight, load_slot
    yield "step's images", X, lambda value: trainer.step(value, Y)
    yield "step's labels", Y, lambda value: trainer.step(X, value)
    yield "evaluate's images", X, lambda value: trainer.evaluate([(value, Y)])
    yield "evaluate's labels", Y, lambda value: trainer.evaluate([(X, value)])
    yield "predict", X, trainer.predict
    yield "images of a data set", IMAGES, lambda value: data_set(value, Y)
    yield "labels of a data set", Y, lambda value: data_set(IMAGES, value)
    yield "a sample", IMAGES[0], lambda value: first(Samples(value, 1))
    yield "a label", np.array(1), lambda value: first(Samples(IMAGES[0], value))
    yield "a batch", IMAGES, lambda value: first(Batches(value, Y))
    yield "a batch's labels", Y, lambda value: first(Batches(IMAGES, value))


def knock() -> list[str]:
    """The doors that something came in at that is no array of real numbers."""
    entered = []
    for door, fits, call in ways_in():
        for kind, make in KINDS.items():
            try:
                call(make(fits))
                entered.append(f"{door}: {kind}")
            except ShapeError:
                continue
            except Exception as error:
                entered.append(f"{door}: {kind}: {type(error).__name__}: {error}")
    return entered


@pytest.mark.filterwarnings("ignore")
def test_at_every_door_what_is_no_array_of_real_numbers_is_refused():
    assert knock() == []


@pytest.mark.filterwarnings("ignore:float64")
def test_what_fits_comes_in():
    """Of either precision, as whole numbers of any size, and as lists."""
    entered = []
    for door, fits, call in ways_in():
        others = (np.float64, np.float16) if fits.dtype.kind == "f" else (np.uint8, np.int32)
        entered += [call(fits.astype(kind)) for kind in (fits.dtype, *others)]
        if not door.startswith(("a sample", "a batch")):
            entered.append(call(fits.tolist()))
    assert len(entered) > 3 * 18


def test_a_refused_value_changes_nothing():
    model = network()
    before = model.state_dict()
    for make in KINDS.values():
        with pytest.raises(ShapeError):
            model.load_state_dict({"weight": np.zeros((5, 6)), "bias": make(np.zeros(5))})
    assert all(np.array_equal(model.state_dict()[name], value) for name, value in before.items())


BUGS = [
    ("_is_masked(value)", "False"),
    ("array.dtype.kind not in REAL_KINDS", 'array.dtype.kind not in "fiubc"'),
    ("array.dtype.kind not in REAL_KINDS", 'array.dtype.kind in "cOVM"'),
    ("(ValueError, TypeError, RuntimeError, OverflowError)", "ValueError"),
]


@pytest.mark.parametrize("bug", BUGS, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_the_law_bites(bug, monkeypatch):
    planted = plant(monkeypatch, user_values, "as_numbers", *bug)
    for room in (autograd, state_dicts, eager):
        monkeypatch.setattr(room, "as_numbers", planted)
    assert knock()


IMAGE = oc.tensor(np.ones((1, 1, 4, 4), np.float32))
SIDES = ((1,) * 3, (1,) * 10, 1, None, (1.5, 1, 1, 1), ("1", 1, 1, 1), (None,) * 4, "abcd",
         (-4, -4, 0, 0))  # fmt: skip
FACTORS = (np.nan, np.inf, -np.inf, "2", (2, 2, 2), [2.0], 1j, 0, -1, 1.2345678, None, object())
SIZES = ((1, 2, 3), "12", 1.5, 0, (-1, 2), object(), (None, 2), [])
MODES = ([], None, "wrapped", 3)


@pytest.mark.parametrize("what", ["sides", "factors", "sizes", "modes", "inputs"])
def test_wrong_arguments_of_pad_and_interpolate_have_a_typed_error(what):
    pad, interpolate = oc.functional.pad, oc.functional.interpolate
    calls = {
        "sides": [lambda s=s, m=m: pad(IMAGE, s, m) for s in SIDES for m in
                     ("constant", "reflect")],
        "factors": [lambda f=f: interpolate(IMAGE, scale_factor=f) for f in FACTORS],
        "sizes": [lambda s=s: interpolate(IMAGE, s) for s in SIZES],
        "modes": [
            *(lambda m=m: pad(IMAGE, (1,) * 4, m) for m in MODES),
            *(lambda m=m: interpolate(IMAGE, 2, mode=m) for m in MODES),
        ],
        "inputs": [
            lambda: pad(X, (1,) * 4), lambda: interpolate(X, 2), lambda: pad(None, (1,) * 4),
            lambda: interpolate(oc.tensor(X), 2), lambda: interpolate(None, scale_factor=2),
            lambda: interpolate(oc.tensor(X), scale_factor=2), lambda: interpolate([], 2),
        ],
    }  # fmt: skip
    for call in calls[what]:
        with pytest.raises(OoctrainError) as caught:
            call()
        assert isinstance(caught.value, ConfigError)
