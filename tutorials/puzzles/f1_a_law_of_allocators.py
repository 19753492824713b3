# %% [markdown]
# # f1 A law of allocators
#
# Two right allocators, first fit and best fit, and seven broken ones, each with one planted bug. A
# *law* is a property that every right one has, whatever it is asked for: it raises AssertionError
# if it does not hold.
#
#     arena = make()                  an empty arena of arena.size = 64 bytes
#     offset = arena.allocate(size)   or None, where no hole takes it
#     arena.free(offset)
#
# **Your work:** a law that kills all seven bugs and raises no false alarm. Make and free blocks at
# random (with a seed!), and keep your own books of who lies where. When may a block be refused?
# **Needs:** b1, b2, tutorial 13.

# %%
import ooctrain as oc


def law(make):
    """Every allocator keeps it."""
    arena = make()
    offset = arena.allocate(arena.size)
    assert offset == 0, "an empty arena takes a block of its own size"


oc.puzzles.f1.check(law, picture="f1.svg")
