# %% [markdown]
# # a5 A shared link
#
# Six stages whose values have different sizes, and *one* copy at a time: what goes out and what
# comes in use the same link, 20 bytes a us, in the order of the list.
#
#     x0 100   x1 200   x2 60   x3 200   x4 60   x5 120   x6 60      (bytes; y0 .. y6 alike)
#
# The backward pass is short of time: 200 bytes take 10 us. A *part* of a value can move, too: `out
# x1[0:40]`, `free x1[0:40]`, `in x1[0:40]` are bytes 0 to 39.
#
# **Your work:** finish within 620 bytes in at most the time of `belady`, which here moves pieces
# of 20 bytes. Bring a part in as soon as there is room for it. **Needs:** a2, tutorial 09.
#
# `print(oc.puzzles.a5)` lists the calls with what they read and write.

# %%
import ooctrain as oc

LIST = """
run F0
"""

oc.puzzles.a5.check(LIST, picture="a5.svg")
