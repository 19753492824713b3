# %% [markdown]
# # 21 Reading a paper critically
#
# **Goal:** run what a paper prints, letter by letter, before you believe it; learn five places
# where mistakes like to sit.
# **Prerequisites:** 04, 05, 10. **Minutes:** 30.
# **Paper:** 000 to 004; [docs/errata.md](../docs/errata.md).
#
# A paper is written by people, read by people and never tested. What it prints can be wrong
# although its idea is right, and although its authors' program is right. The five papers of this
# library are good; `docs/errata.md` lists what is wrong in them, and each entry has a test that
# runs the printed form and sees it fail. This tutorial shows how such an entry is found: *take the
# smallest case, do what is printed, compare with something that cannot be wrong.*

# %%
import re
from itertools import product

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.course.pages import page
from ooctrain.rewrite.tile import halo
from ooctrain.step.rows import Window

pictures = oc.pictures
lesson = Lesson("21 reading a paper critically")

# %% [markdown]
# ## First place: numbers that should agree
#
# Paper 000 prints in section 5.1 a batch size of 1,444, "1.6 times larger" than the 928 that fits
# in-core; its abstract and table 1 say 1,440. Which one is the slip? Does the ratio tell? **How
# many batch sizes are 1.6 times 928, if the ratio is rounded to one decimal?**

# %%
lesson.cell("what a rounded ratio says")
lesson.predict("batch sizes that are 1.6 times 928")

# %%
in_core, in_the_text, in_the_table = 928, 1444, 1440
fitting = [batch for batch in range(in_core, 2 * in_core) if round(batch / in_core, 1) == 1.6]
lesson.reveal("batch sizes that are 1.6 times 928", len(fitting))
for batch in (in_the_text, in_the_table):
    print(
        f"    {batch} / {in_core} = {batch / in_core:.3f}: {'fits' if batch in fitting else 'no'}"
    )

# %% [markdown]
# Both fit, so the ratio cannot decide; the table can, since it was measured row by row
# (`000-batch-1444-and-ratio`). With one digit more, 1.55, the text would have checked itself. When
# you write: print the digits that tell your cases apart.
#
# ## Second place: formulas for the case in the figure
#
# Paper 003's tables 3 and 4 say how many input rows a tile of T output rows reads: s T + 2 f, with
# f half of the kernel (`003-table-4-stride`). We count instead: mark the rows that the windows
# touch. **For how many of the 60 combinations of kernel 1 to 5, stride 1 to 3 and T 1 to 4 is the
# printed formula right?**

# %%
lesson.cell("a formula and a count")
lesson.predict("combinations for which the formula is right")

# %%
cases = list(product(range(1, 6), range(1, 4), range(1, 5)))


def counted(kernel, stride, rows):
    """From the first to the last input row that the windows of some output rows touch."""
    touched = [o * stride + r for o in range(rows) for r in range(kernel)]
    return max(touched) - min(touched) + 1


def printed(kernel, stride, rows):
    """As tables 3 and 4 have it."""
    return stride * rows + 2 * (kernel // 2)


def corrected(kernel, stride, rows):
    """Right for every stride and kernel."""
    return stride * rows + (kernel - stride)


right = [case for case in cases if printed(*case) == counted(*case)]
lesson.reveal("combinations for which the formula is right", len(right))
print(f"    with stride 1 and an odd kernel: {sum(k % 2 and s == 1 for k, s, _ in right)}")
print(f"    the corrected formula is right for {sum(corrected(*c) == counted(*c) for c in cases)}")

# %% [markdown]
# The picture shows the difference to the count for T = 4. A formula that is checked on the example
# for which it was made has not been checked.

# %%
lesson.cell("where it is wrong")
lesson.picture(
    "21_formula.svg",
    pictures.curves_svg(
        "Rows that the printed formula reads too many (T = 4)",
        [
            pictures.Curve(
                f"stride {stride}",
                [(k, printed(k, stride, 4) - counted(k, stride, 4)) for k in range(1, 6)],
            )
            for stride in (1, 2, 3)
        ],
        axes=("kernel", "rows more than the windows touch"),
    ),
)

# %% [markdown]
# ## Third place: the borders
#
# Section 2.3 of the same paper pads a tile once, with the halo of the whole chain. Tutorial 05 did
# that: the rows near the border came out wrong. The paper also pads before a maximum with zeros. We
# take the maximum of three neighbours of a row of *negative* numbers. **How many of its 8 outputs
# are wrong with zeros at the ends?**

# %%
lesson.cell("zeros under a maximum")
lesson.predict("wrong outputs")

# %%
row = -np.arange(1.0, 9.0)


def pooled(padding):
    """Maxima of three neighbours, with a value beyond both ends."""
    padded = np.pad(row, 1, constant_values=padding)
    return np.lib.stride_tricks.sliding_window_view(padded, 3).max(axis=1)


truth = [max(row[max(0, i - 1) : i + 2]) for i in range(len(row))]
wrong = int((pooled(0.0) != truth).sum())
lesson.reveal("wrong outputs", wrong)
print(f"    with minus infinity: {int((pooled(-np.inf) != truth).sum())} wrong")
read = halo.read_span(halo.Span(0, 4), Window(kernel=3, stride=1, pad_lo=1, pad_hi=1), 8)
print(f"    the library reads rows {read.inside} and pads {read.pad_lo} row before")

# %% [markdown]
# Behind a ReLU nothing is negative, so most networks never show it (`003-max-pool-padding`). Ask of
# each sentence: *for which inputs would I see that it is wrong?*
#
# ## Fourth place: loops that end only on the authors' machine
#
# Listing 3 of paper 003 walks over the operators and cuts segments. In lines 5 and 6 an operator
# that needs no tiling is skipped by `continue`, in a loop that goes on with `i = end`. We run these
# lines as printed on four operators of which the second is small, with a limit to the rounds. **How
# many rounds does the loop take until i reaches 4?** (0 for never)

# %%
lesson.cell("as printed, with a limit")
lesson.predict("rounds, 0 for never")

# %%
sizes, capacity = [9, 2, 9, 9], 5


def rounds(advance_when_skipped, limit=1000):
    """Rounds of the printed loop, or 0 if it has not ended by the limit."""
    i, done = 0, 0
    while i < len(sizes):
        done += 1
        if done > limit:
            return 0
        end = i
        if sizes[i] <= capacity:  # no tiling here
            i = end + 1 if advance_when_skipped else end
            continue
        while end < len(sizes) and sizes[end] > capacity:
            end += 1
        i = end
    return done


lesson.reveal("rounds, 0 for never", rounds(advance_when_skipped=False))
print(f"    advanced by one: {rounds(advance_when_skipped=True)} rounds")

# %% [markdown]
# Pseudo code is never run (`003-listing-3-endless`). Type it in, give it a limit, and try the empty
# case, one element, and the element that takes the other branch.
#
# ## Fifth place: claims about what is best
#
# Proposition 3 of paper 002 is a bound: no schedule is faster. Such a claim has a cheap test, as
# one counterexample is enough: try many small cases against a search. On chains of equal stages we
# compare the bound with the best of all planners. **In how many of 12 budgets does a plan beat the
# bound that the library computes for schedules that run each call once?**

# %%
lesson.cell("look for a counterexample")
lesson.predict("budgets at which a plan beats the bound")

# %%
chain, machine = oc.equal_stages(8), oc.toy_machine(5)
beaten, gaps = 0, []
for budget in range(500, 1100, 50):
    bound_us = oc.lower_bound(chain, budget, machine, recompute=False).makespan_us
    best_us = min(
        oc.plan(chain, budget, name, machine).makespan_us for name in ("belady", "greedy", "window")
    )
    beaten += best_us < bound_us * (1 - 1e-9)
    gaps.append((budget, best_us / bound_us))
lesson.reveal("budgets at which a plan beats the bound", beaten)
print(
    f"    the best plan takes {min(g for _, g in gaps):.3f} to {max(g for _, g in gaps):.3f} bounds"
)

# %% [markdown]
# No counterexample is no proof; but a wrong claim rarely survives a thousand small cases. The
# errata of paper 002 are held to a search over all schedules of a tiny step in this way
# (`002-slots-rounding` is one of them).
#
# ## The whole list
#
# Each row of `docs/errata.md` (`ooctrain docs errata` shows it) has an id, what is printed, why it
# is wrong, what is right, and a test. **How many errata does it list?**

# %%
lesson.cell("the list")
lesson.predict("errata")

# %%
ids = re.findall(r"^\| `(00\d)-", page("errata"), re.M)
lesson.reveal("errata", len(ids))
for paper in sorted(set(ids)):
    print(f"    paper {paper}: {ids.count(paper)}")

# %% [markdown]
# Papers with listings and with proofs have most: they say most that can be checked. A paper in
# which nothing can be found wrong may only be a paper that says nothing exactly.
#
# ## Exercises
#
# `python 21_reading_a_paper_critically.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. How many input rows do 8 output rows of a 4 x 4 convolution with stride 2 read?
# 2. By what must a tile be padded before a *minimum* of neighbours: 0, "inf" or "-inf"?
# 3. A paper reports a speed-up of 1.2 over a baseline. Its step takes 3 times a lower bound. How
#    many times faster than the paper's could another method be at most?

# %%
lesson.cell("exercises")
lesson.exercise("1. rows of a strided convolution", lambda a: a == corrected(4, 2, 8), None)
lesson.exercise("2. padding of a minimum", lambda a: a == "inf", None)
lesson.exercise("3. what is left to gain", lambda a: a == 3, None)

# %%
assert {in_the_text, in_the_table} <= set(fitting)
assert len(right) < len(cases) / 2
assert all(corrected(*case) == counted(*case) for case in cases if case[0] >= case[1])
assert wrong == 2
assert rounds(advance_when_skipped=False) == 0 < rounds(advance_when_skipped=True)
assert beaten == 0
print("\nall asserts passed")
