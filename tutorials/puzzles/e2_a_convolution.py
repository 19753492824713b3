# %% [markdown]
# # e2 The gradients of a convolution
#
# y = conv(x, w): x is (N, C, H, W), w is (K, C, R, S), no padding, stride 1:
#
#     y[n, k, i, j] = sum over c, r, s of x[n, c, i + r, j + s] * w[k, c, r, s]
#
# Both gradients are convolutions again: of padded dy with w turned by half, and of x with dy.
#
# **Your work:** two functions in NumPy that the tape does not know yet, and the rule that runs
# them. Loops are fine. **Needs:** e1.

# %%

import ooctrain as oc


def grad_x(dy, w):
    """(N, C, H, W) from dy (N, K, H - R + 1, W - S + 1)."""
    raise NotImplementedError("which rows of dy read a row of x?")


def grad_w(x, dy):
    """(K, C, R, S)."""
    raise NotImplementedError("which pairs of x and dy met at a weight?")


FUNCTIONS = {"grad_x": grad_x, "grad_w": grad_w}


def conv_gradient(t, x, w, y, dy):
    """The names of the gradients of x and w."""
    return t.run("grad_x", dy, w), t.run("grad_w", x, dy)


oc.puzzles.e2.check((FUNCTIONS, conv_gradient), picture="e2.svg")
