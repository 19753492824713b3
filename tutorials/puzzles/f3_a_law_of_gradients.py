# %% [markdown]
# # f3 A law of gradients
#
# `forward(x)` is batch norm of (N, C) without gamma and beta, `backward(x, dy)` its gradient. One
# pair is right; in five the backward pass has a bug that a network would train with, only worse.
#
# **Your work:** a law that kills all five. Compare with a slope: (L(x + h d) - L(x - h d)) / 2h
# with L = sum of dy * forward(x) is the dot product of the gradient with d. Which dy sees the
# bugs? With dy = 1 everywhere most of them live. **Needs:** tutorial 01.

# %%
import numpy as np

import ooctrain as oc


def law(forward, backward):
    """Every gradient keeps it."""
    x = np.random.default_rng(0).standard_normal((6, 3))
    dy = np.ones_like(x)
    assert backward(x, dy).shape == x.shape, "a gradient for each element"


oc.puzzles.f3.check(law, picture="f3.svg")
