# %% [markdown]
# # c3 Gather, do not scatter
#
# In the backward pass, output row o gives a share of its gradient dy[o] to each input row that it
# read. Written so, it *scatters*: bands add to the same rows of dx, and the order of the sums
# changes the bits. Turned round it *gathers*: dx[row] is a sum over the rows of dy that had read
# `row`.
#
# **Your work:** return (first, last + 1) of these rows of dy, and (0, 0) if there are none. Layers
# are as in c1. **Needs:** c1, tutorial 14.

# %%
import ooctrain as oc


def gather(row, kernel, stride, padding, rows):
    """[first, end) of the output rows that read an input row."""
    return (row, row + 1)  # right for a kernel of one row


oc.puzzles.c3.check(gather, picture="c3.svg")
