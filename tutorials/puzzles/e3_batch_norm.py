# %% [markdown]
# # e3 Batch norm, backward
#
# x is (N, C). With the mean m and the variance v of each channel over the batch,
#
#     y = gamma * (x - m) / sqrt(v + 1e-5) + beta
#
# m and v depend on x, too: two more ways for the gradient to reach it. Of the forward pass only x
# and gamma should have to wait; m and v are cheap to compute again.
#
# **Your work:** functions and a rule, as in e2. Three gradients: of x, gamma and beta. **Needs:**
# e2; f3 shows which test finds what is usually forgotten.

# %%
import numpy as np

import ooctrain as oc


def grad_x(x, gamma, dy):
    """(N, C): m and v are not constants."""
    return gamma * dy / np.sqrt(x.var(0) + 1e-5)


def grad_gamma(x, dy):
    """(C,)"""
    raise NotImplementedError("gamma meets the normalised x in each row")


FUNCTIONS = {"grad_x": grad_x, "grad_gamma": grad_gamma, "grad_beta": lambda dy: dy.sum(0)}


def norm_gradient(t, x, gamma, beta, y, dy):
    """The names of the gradients of x, gamma and beta."""
    return t.run("grad_x", x, gamma, dy), t.run("grad_gamma", x, dy), t.run("grad_beta", dy)


oc.puzzles.e3.check((FUNCTIONS, norm_gradient), picture="e3.svg")
