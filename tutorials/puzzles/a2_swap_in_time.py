# %% [markdown]
# # a2 Swap in time
#
# Tutorial 04's chain: eight stages, 10 us forward and 20 us backward each. In-core the step needs
# 1,100 bytes and takes 240 us. Now there are 500 bytes. A copy moves 20 bytes a us, in both
# directions at once, *while* the stages compute:
#
#     out x1      copies x1 to the host; it stays on the device until `free x1`, which waits
#     in x1       claims 100 bytes and fills them; who reads x1 waits until it is there
#
# An `in` waits for every `free` listed before it; so does a `run` that writes something new.
# *Where* in the list an instruction stands decides when it begins.
#
# **Your work:** finish within 500 bytes in at most the time that the planner `window` needs. The
# picture shows the three streams, yours above the planner's. **Needs:** tutorial 04.
#
# `print(oc.puzzles.a2)` lists the calls with what they read and write.

# %%
import ooctrain as oc

LIST = """
run F0
out x0   # x0 is read again by B0 alone: it can wait on the host
run F1
free x0
"""

oc.puzzles.a2.check(LIST, picture="a2.svg")
