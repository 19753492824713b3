"""Steps are recorded and rewritten as they were: each network, and each rewrite of a few steps.

What is computed is the business of laws (`../properties/test_rewrites.py`); a step that computes
the same by other calls, or one more, is legal, and shows here. `support/known.py` says why.
"""

from __future__ import annotations

import pytest
from support import known
from support.known_steps import MAKERS, row_of, step
from support.quick import all_but

from ooctrain import models
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


@pytest.mark.parametrize("name", all_but(models.MODELS, *LONG))
def test_the_step_of_a_network_is_known(name):
    recipe = models.MODELS[name]
    small = models.build(name, 7, "imagenet", recipe.channels)
    shape = 2, recipe.channels, recipe.height, recipe.width
    made = known.digest(small), known.digest([(n, p.shape) for n, p in small.named_parameters()])
    known.check_rows("networks", name, [(*row_of(trace(small, shape, threads=2)), *made)])


def test_every_row_is_of_a_step():
    assert known.whose("steps") == set(MAKERS)
    assert known.whose("networks") == set(models.MODELS)
