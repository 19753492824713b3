"""Tables of the library and what chance makes: machines, sources, transforms of images, splits.

A number that stands in a table of ours has no law; a transform of images that draws otherwise is
as random as before, and changes everybody's run.
`support/known.py` says why the answers are written down.
"""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from support import known
from support.known_steps import row_of, step

import ooctrain as oc
from ooctrain import models
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
from ooctrain.step.chain import toy_machine
from ooctrain.step.machine import call_durations_ns
from ooctrain.step.presets import PRESETS, machine, with_link
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


def test_machines_are_what_they_were():
    made = {**PRESETS, "toy": toy_machine(3.0), "toy both ways": toy_machine(2.0, link="duplex")}
    made["linked"] = with_link(machine("a100-pcie"), 12_345.0)
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
