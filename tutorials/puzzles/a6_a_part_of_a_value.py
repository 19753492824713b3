# %% [markdown]
# # a6 A part of a value
#
# Six equal stages within 650 bytes; in-core they need 900. The link is slow: 4 bytes a us, 25 us
# for a value, in both directions at once. So every byte that moves needlessly costs time: only the
# 250 bytes that are too many should leave.
#
# **Your work:** finish within 650 bytes in at most the time of `belady`, in pieces of 50 bytes.
# Keep the link busy from the first stage on, and begin to fetch as soon as a value has been freed.
# **Needs:** a5, tutorial 10 for the bound.
#
# `print(oc.puzzles.a6)` lists the calls with what they read and write.

# %%
import ooctrain as oc

LIST = """
run F0
out x0[0:50]
"""

oc.puzzles.a6.check(LIST, picture="a6.svg")
