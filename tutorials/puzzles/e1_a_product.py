# %% [markdown]
# # e1 The gradient of a product
#
# On the tape of tutorial 01 the gradient of a line is more lines. `t.run("mul", "a", "b")` adds a
# line and returns the name of what it writes. The tape knows `add`, `sub`, `mul` and `matmul`.
#
# **Your work:** the rule for y = a * b. It gets the tape, the names of a, b, y and of the gradient
# of y, and returns the names of the gradients of a and b. It is compared with slopes, element by
# element; and what of the forward pass your lines read must wait for them. **Needs:** tutorial 01.

# %%
import ooctrain as oc


def mul_gradient(t, a, b, y, dy):
    """The names of the gradients of a and b."""
    return dy, dy  # right for `add`


oc.puzzles.e1.check(mul_gradient, picture="e1.svg")
