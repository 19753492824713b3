# %% [markdown]
# # b4 All places beforehand
#
# Before a step begins, all of its blocks are known: how large, and from when to when each lives.
# So their places can be worked out once: *static planning*. Two blocks may have the same bytes if
# they never live at the same time.
#
# **Your work:** `pack(blocks)` gets [(bytes, begin, end), ...], each living in [begin, end), and
# returns an offset for each. "The largest first, each as low as it can go" is a good start, and
# not good enough: try other orders, and take the best. The targets are the library's, the bound is
# the most that lives at one time. The second set are the blocks of a ResNet-18. **Needs:**
# tutorial 08.

# %%
import ooctrain as oc


def pack(blocks):
    """An offset for each block."""
    offsets, top = [], 0
    for size, *_ in blocks:
        offsets.append(top)  # so far no byte is used twice
        top += size
    return offsets


oc.puzzles.b4.check(pack, picture="b4.svg")
