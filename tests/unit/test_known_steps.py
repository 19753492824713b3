"""Steps are recorded and rewritten as they were: each network, and each rewrite of a few steps.

What is computed is the business of laws (`../properties/test_rewrites.py`); a step that computes
the same by other calls, or one more, is legal, and shows here. `support/known.py` says why.
"""

from __future__ import annotations

import numpy as np
import pytest
from support import known
from support.known_steps import MAKERS, row_of, step
from support.quick import all_but

import ooctrain as oc
from ooctrain import models, nn
from ooctrain.errors import OoctrainError
from ooctrain.rewrite import apply_rewrites
from ooctrain.tracing import trace

REWRITES = (
    "fuse", "share_storage", "reorder", "fuse,share_storage", "narrow:4096", "pin_small:2048",
    "bands:2", "bands:5", "fuse,bands:3", "tile:2x2", "tile:3x1",
)  # fmt: skip


def rewritten(name: str, rewrites: str) -> known.Row:
    try:
        return rewrites, *row_of(apply_rewrites(step(name), rewrites.split(",")))
    except OoctrainError as error:
        return rewrites, error.code


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_and_its_rewrites_are_known(name):
    rows = [("as recorded", *row_of(step(name)))]
    known.check_rows("steps", name, rows + [rewritten(name, which) for which in REWRITES])


#: Longer networks of families that another stands for.
LONG = "densenet161", "densenet169", "densenet201", "resnet101", "resnet152"


#: Networks of many weights, which take long to draw.
HEAVY = "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"
LARGE_STEM = "alexnet", "vgg11", "vgg11_bn", "pix2pixhd", "pix2pixhd_perceptual"
DRAWN = [f"{name} {stem}" for name in models.MODELS for stem in ("imagenet", "cifar")]
DRAWN_LATE = [
    which for which in DRAWN for name, stem in [which.split()]
    if name in (*LONG, *HEAVY) or (name in LARGE_STEM and stem == "imagenet")
]  # fmt: skip


@pytest.mark.parametrize("name", all_but(models.MODELS, *LONG))
def test_the_step_of_a_network_is_known(name):
    recipe = models.MODELS[name]
    small = models.build(name, 7, "imagenet", recipe.channels)
    shape = 2, recipe.channels, recipe.height, recipe.width
    made = known.digest(small), known.digest([(n, p.shape) for n, p in small.named_parameters()])
    known.check_rows("networks", name, [(*row_of(trace(small, shape, threads=2)), *made)])


def weights_of(model: nn.Module) -> str:
    """Of each parameter and buffer the ends, a value between them, and how far the first go."""
    found = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        flat = np.asarray(tensor.storage.read()).reshape(-1)
        ends = flat[[0, flat.size // 3, -1]].tolist()
        found.append((name, tensor.requires_grad, *ends, float(np.abs(flat[:1000]).max())))
    return known.digest(found)


@pytest.mark.parametrize("which", all_but(DRAWN, *DRAWN_LATE, *DRAWN[1::3], *DRAWN[2::3]))
def test_the_weights_of_a_network_are_known(which):
    """What a seed gives; with few classes, other channels than usual, and either stem."""
    name, stem = which.split()
    oc.manual_seed(3)
    recipe = models.MODELS[name]
    most = {"imagenet": 299 if "inception" in name else 128, "cifar": 64}[stem]
    side, channels = min(recipe.height, most), 4 if recipe.channels == 3 else recipe.channels
    model = models.build(name, 5, stem, channels)
    row = weights_of(model), *row_of(trace(model, (2, channels, side, side), threads=2))
    known.check_rows("weights", which, [row])


def test_every_row_is_of_a_step():
    assert known.whose("steps") == set(MAKERS)
    assert known.whose("networks") == set(models.MODELS)
    assert known.whose("weights") == set(DRAWN)
