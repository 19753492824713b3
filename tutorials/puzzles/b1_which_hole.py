# %% [markdown]
# # b1 Which hole
#
# Three steps of a ResNet-18 that swaps ask for some 1,600 blocks. Between the blocks that live lie
# *holes*; behind the last block is the free end of the arena, which grows when it is used.
#
# **Your work:** `choose(holes, size)` gets the holes [(offset, bytes), ...] by their offsets, and
# returns the number of the one that the block goes into, or None: the free end. The arena must not
# become larger than that of the library's `best-fit`. **Needs:** tutorial 06.

# %%
import ooctrain as oc


def choose(holes, size):
    """The number of a hole that takes `size` bytes, or None."""
    if holes and holes[-1][1] >= size:
        return len(holes) - 1  # the last one, if it takes the block
    return None


oc.puzzles.b1.check(choose, picture="b1.svg")
