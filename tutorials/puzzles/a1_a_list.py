# %% [markdown]
# # a1 A list
#
# A training step is a list of instructions. This one has four stages; every value has 100 bytes:
#
#     F0(x0) -> x1   F1(x1) -> x2   F2(x2) -> x3   F3(x3) -> x4   loss(x4) -> y4
#     B3(x3 x4 y4) -> y3   B2(x2 x3 y3) -> y2   B1(x1 x2 y2) -> y1   B0(x0 x1 y1) -> y0
#
# x0 is on the device before the step and must be there after it; nothing else may be left. `run
# F0` runs a call: all that it reads must be there. `free x1` gives a value's memory back.
#
# **Your work:** finish the step within 700 bytes. Nothing has to leave the device yet: free each
# value as soon as no later line reads it. A line is an instruction, and `;` stands for a new line.
# **Needs:** tutorial 02. `print(oc.puzzles.a1)` says what is given.

# %%
import ooctrain as oc

LIST = """
run F0
run F1   # and so on
"""

oc.puzzles.a1.check(LIST, picture="a1.svg")
