# %% [markdown]
# # c2 Kept rows
#
# A band is done: `there` input rows were there, and the output rows before `done` have been
# computed. The next band reads some of the old input rows again. Those are *kept*; all others can
# go.
#
# **Your work:** return (first, last + 1) of the kept rows, and (there, there) if there are none.
# Layers are as in c1. A row too few is missing later; a row too many costs memory in each layer at
# each border. **Needs:** c1, tutorial 14.

# %%
import ooctrain as oc


def kept(there, done, kernel, stride, padding, rows):
    """[first, end) of the input rows below `there` that output rows from `done` on read."""
    return (0, there)  # everything is kept


oc.puzzles.c2.check(kept, picture="c2.svg")
