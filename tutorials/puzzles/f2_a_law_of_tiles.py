# %% [markdown]
# # f2 A law of tiles
#
# `frontier(there, kernel, stride, padding, rows)` is the answer to c1: how many output rows can be
# computed from the first `there` input rows. One is right, five are broken.
#
# **Your work:** a law that kills all five. It need not compute a frontier: it may say what one
# must be like. Output row o reads the rows o s - p, ..., o s - p + k - 1 that exist. **Needs:**
# c1.

# %%
import ooctrain as oc


def law(frontier):
    """Every frontier keeps it."""
    for rows in range(1, 9):
        assert frontier(0, 3, 1, 1, rows) == 0, "from nothing nothing can be computed"


oc.puzzles.f2.check(law, picture="f2.svg")
