# %% [markdown]
# # a3 Compute it again
#
# Six stages, 500 bytes, and a link that moves 1 byte a us: a copy of a value takes 100 us, its
# stage only 10. So do not send values away: drop them, and run their stages again.
#
#     run F0 keep x1     a second run; `keep` names the outputs that stay (all, if it is absent)
#
# **Your work:** finish within 500 bytes in at most the time of `rotor`, which finds the best way
# to recompute a chain. Which values are worth keeping? **Needs:** tutorial 11.
#
# `print(oc.puzzles.a3)` lists the calls with what they read and write.

# %%
import ooctrain as oc

LIST = """
run F0
run F1
free x1   # it can be computed again from x0
"""

oc.puzzles.a3.check(LIST, picture="a3.svg")
