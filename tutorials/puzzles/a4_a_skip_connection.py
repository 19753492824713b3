# %% [markdown]
# # a4 A skip connection
#
# Six stages, and F4 reads x1 besides x4, as in a residual block:
#
#     F4(x4 x1) -> x5                       B4(x4 x1 x5 y5) -> y4 s1
#     add(y1 s1) -> t1, in place of y1      B0(x0 x1 t1) -> y0
#
# All other stages are as in a2, at 20 bytes a us. x1 is read three times over a long stretch, and
# s1 waits for `add`. (`add` writes t1 over y1: y1 is gone then, and needs no `free`.)
#
# **Your work:** finish within 600 bytes in at most the time of `belady`, which evicts what is read
# again last. Can you do better? `combined` also computes again. **Needs:** a2, tutorial 09.
#
# `print(oc.puzzles.a4)` lists the calls with what they read and write.

# %%
import ooctrain as oc

LIST = """
run F0
"""

oc.puzzles.a4.check(LIST, picture="a4.svg")
