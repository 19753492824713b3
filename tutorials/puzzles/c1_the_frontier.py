# %% [markdown]
# # c1 The frontier
#
# Row o of a layer's output reads the rows o s - p, ..., o s - p + k - 1 of its input, as far as
# they exist (k: kernel, s: stride, p: padding on both sides, `rows` input rows). So there are
# (rows + 2 p - k) // s + 1 output rows.
#
# The first `there` rows of the input are there; the others will come with a later band. Which rows
# of the output can be computed now? The first few: up to the *frontier*.
#
# **Your work:** return how many. If you return too many, a row is read that is not there yet; if
# too few, rows are kept longer than needed, and the second number counts them. **Needs:**
# tutorial 14.

# %%
import ooctrain as oc


def frontier(there, kernel, stride, padding, rows):
    """How many output rows can be computed from the first `there` input rows."""
    return there  # right for a kernel of one row


oc.puzzles.c1.check(frontier, picture="c1.svg")
