"""The law of images bites: each planted bug passes the plain test and breaks the law.

The plain test is the obvious one: the same loader twice gives the same images.
"""

from __future__ import annotations

import numpy as np
import pytest
from properties import test_same_images as law
from zoo.data_bugs import BUGS

from ooctrain import data


def plain_test():
    """Whole batches by one thread, each epoch once."""

    def images():
        loader = data.DataLoader(law.DATA, law.COUNT, transform=law.CHANGE)
        return next(iter(loader))[0]

    first = images()
    assert first.shape == (law.COUNT, 2, 5, 5)
    assert np.array_equal(first, images())


def the_law():
    law.check(seed=1, batch=4, workers=2, prefetch=2, stops={2, 5})


def test_the_right_ones_pass():
    plain_test()
    the_law()


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_breaks_the_law(name, monkeypatch):
    BUGS[name](monkeypatch)
    with pytest.raises(AssertionError):
        the_law()


@pytest.mark.parametrize("name", sorted(set(BUGS) - {"one_source_for_all_samples"}))
def test_and_passes_the_plain_test(name, monkeypatch):
    BUGS[name](monkeypatch)
    plain_test()
