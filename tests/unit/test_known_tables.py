"""Tables of the library and what chance makes: machines, sources, transforms of images, splits.

A number that stands in a table of ours has no law; a transform of images that draws otherwise is
as random as before, and changes everybody's run.
`support/known.py` says why the answers are written down.
"""

from __future__ import annotations

import inspect
from dataclasses import astuple, replace

import numpy as np
import pytest
from support import known
from support.known_steps import row_of, step

import ooctrain as oc
from ooctrain import models
from ooctrain.data.synthetic import synthetic, synthetic_images, synthetic_pixels
from ooctrain.data.transforms import (
    CenterCrop,
    Compose,
    Draws,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from ooctrain.errors import OoctrainError
from ooctrain.step import presets
from ooctrain.step.chain import toy_machine
from ooctrain.step.machine import Disk, call_durations_ns
from ooctrain.step.presets import PRESETS, machine, on_disk, with_link
from ooctrain.tracing import trace

TRANSFORMS = {
    "crop": RandomCrop((5, 7), padding=2), "crop of sides": RandomCrop(6, (1, 0, 3, 2), fill=9),
    **{mode: RandomCrop((6, 8), 3, padding_mode=mode) for mode in ("edge", "reflect", "symmetric")},
    "crop with a fraction": RandomCrop(5, 2, fill=0.5), "grey": RandomCrop(5, 2, fill=255),
    "beyond bytes": RandomCrop(5, 2, fill=256), "too large": RandomCrop(40),
    "centre": CenterCrop((4, 5)), "odd centre": CenterCrop((3, 6)),
    "flip": RandomHorizontalFlip(), "seldom": RandomVerticalFlip(0.2),
    "always": RandomVerticalFlip(1),
    "normal": Normalize([0.5, 1.5, 100.0], [0.25, 2.0, 60.0]),
    "all": Compose([RandomCrop((6, 7), 1), RandomHorizontalFlip(), RandomVerticalFlip(0.3)]),
}  # fmt: skip
IMAGES = {
    "bytes": np.arange(3 * 8 * 9, dtype=np.uint8).reshape(3, 8, 9),
    "floats": np.arange(3 * 8 * 9, dtype=np.float32).reshape(3, 8, 9) / 4,
}


#: Functions that make a preset; `PRESETS` has what they gave on import.
MADE = [
    make for name, make in inspect.getmembers(presets, inspect.isfunction)
    if not name.startswith("_") and make.__module__ == presets.__name__
    and not inspect.signature(make).parameters
    and inspect.signature(make).return_annotation == "Machine"
]  # fmt: skip


def test_machines_are_what_they_were():
    for preset in MADE:
        assert PRESETS[preset().name] == preset()  # made anew, not as it was imported
    made = {**PRESETS, "toy": toy_machine(3.0), "toy both ways": toy_machine(2.0, link="duplex")}
    made["linked"] = with_link(machine("a100-pcie"), 12_345.0)
    disk = Disk(900.0, 1100.0, "shared", 70.0)
    shaken = replace(
        machine("cpu-generic"), disk=disk, latency_us=3.0, pacing_us=5.0, interference=1.5,
        link_out_bytes_per_us=2000.0, link_in_bytes_per_us=3000.0,
    )  # fmt: skip
    for name, base in {"generic": machine("cpu-generic"), "shaken": shaken}.items():
        for limit in (None, 400.0, 1000.0, 9e9):
            made[f"{name} on disk, {limit}"] = on_disk(base, limit)
            if limit:
                made[f"{name} linked, {limit}"] = with_link(base, limit)
    rows = [
        (name, *astuple(one)[1:], sum(call_durations_ns(step("blocks"), one)),
         one.transfer_ns(12_345, "out"), one.transfer_ns(54_321, "in"), one.slowdown)
        for name, one in made.items()
    ]  # fmt: skip
    known.check_rows("machines", "all", rows)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_images_are_transformed_as_they_were(name):
    rows = []
    for kind, image in IMAGES.items():
        for number in range(5):
            try:
                made = np.asarray(TRANSFORMS[name](image, Draws(7, number)))
                found = made.shape, made.dtype, known.digest(made.tolist())
            except OoctrainError as refusal:
                found = refusal.code, known.digest(refusal.numbers)
            rows.append((kind, number, *found))
    known.check_rows("transforms", name, rows)


@pytest.mark.parametrize("name", ["resnet18", "vgg11_bn", "alexnet", "unet"])
def test_networks_are_split_as_they_were(name):
    oc.manual_seed(0)
    rows = []
    for depth, grid, stochastic in ((0.3, (2, 3), False), (0.6, (3, 1), True), (1.0, (1, 2), True)):
        recipe = models.MODELS[name]
        model = models.build(name, 7, "imagenet", recipe.channels)
        split = oc.split(model, depth=depth, grid=grid, stochastic=stochastic)
        shape = (2, recipe.channels, 192, 256)
        found = split.shape_of(shape)
        rows.append((depth, grid, *astuple(found), *row_of(trace(split, shape, threads=2))))
    known.check_rows("splits", name, rows)


#: Each kind of synthetic data, small: {name: data set}.
SYNTHETIC = {
    f"{kind.__name__}, {'training' if train else 'test'}, seed {seed}":
        kind(train, size, channels, samples=9, seed=seed)
    for kind in (synthetic, synthetic_pixels, synthetic_images)
    for train, size, channels, seed in ((True, 6, 2, 0), (False, 11, 3, 0), (True, 11, 1, 5))
}  # fmt: skip


@pytest.mark.parametrize("name", SYNTHETIC)
def test_synthetic_data_is_what_it_was(name):
    data = SYNTHETIC[name]
    rows = [("samples", len(data))]
    for index in range(len(data)):
        image, target = data[index]
        place = np.arange(1, image.size + 1).reshape(image.shape)
        told = np.asarray(target, np.float64)
        weights = np.arange(1, told.size + 1).reshape(told.shape)
        sums = float((image * place).mean()), float((told * weights).sum())
        rows.append((index, *image.shape, *told.shape, *(round(each, 2) + 0.0 for each in sums)))
    known.check_rows("synthetic", name, rows)
