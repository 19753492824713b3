# %% [markdown]
# # 08 Static planning
#
# **Goal:** place all blocks of a training step before it begins; see how close that comes to what
# no placement can beat.
# **Prerequisites:** 06. **Minutes:** 20.
# **Paper:** 004, section 4.4 (static first fit, pools).
#
# Best fit decides without looking ahead: it does not know how long a block will live. But a
# training step is a list, and the list is known. So the whole placement can be worked out before
# the first step, and at run time there is nothing left to search.

# %%
import time
from collections import Counter
from itertools import accumulate

from lesson import Lesson

import ooctrain as oc
from ooctrain.alloc.first_fit import FirstFit
from ooctrain.alloc.log import foresee
from ooctrain.alloc.static import Lifetime, pack

pictures, units = oc.pictures, oc.units
lesson = Lesson("08 static planning")

# %% [markdown]
# ## Rectangles
#
# A block with a size and a lifetime is a rectangle: as wide as it lives, as high as it is large.
# Placing the blocks means pushing rectangles up and down until none overlap, as low as possible.
# We take one step of ResNet-50, swapping with a budget of 20 %.

# %%
lesson.cell("lifetimes of a training step")
whole = oc.Granule(1, ranges=False)  # count bytes, and move whole variables only
model = oc.models.build("resnet50", num_classes=1000, stem="imagenet")
trace = oc.trace(model, (64, 3, 224, 224), threads=1)
plan = oc.plan(trace, "20%", "window:persistent=host", "v100-16gb-nvlink", whole)
log = oc.allocation_log(plan.trace, plan.schedule, plan.peak_bytes, steps=1)
lives = foresee(log.requests, log.parameters).lifetimes
longest = max(lives, key=lambda life: life.end - life.begin)
print(f"    {len(lives)} blocks; the longest life is that of {longest.tag}")

# %% [markdown]
# ## What no placement can beat
#
# At each moment some blocks are live. Their sum, at its largest, is a lower bound: no placement
# needs less. It is the same number that the planner's ledger has as its peak.

# %%
lesson.cell("a lower bound")


def most_live(lives):
    """The largest sum of the blocks that live at the same time."""
    change = Counter()
    for life in lives:
        change[life.begin] += life.nbytes
        change[life.end] -= life.nbytes
    return max(accumulate(change[moment] for moment in sorted(change)))


least = most_live(lives)
print(f"    at least {units.format_bytes(least)}")
print(f"    the ledger's peak is {units.format_bytes(plan.peak_bytes)}")

# %% [markdown]
# ## First fit in fifteen lines
#
# Take the blocks one by one. Each goes to the lowest address at which nothing lies that lives at
# the same time. Paper 004 takes them in the order of the list. **By what share does that exceed
# the lower bound?**

# %%
lesson.cell("first fit in list order")


def first_fit(lives, order):
    """{block: offset}, the blocks taken in this order."""
    placed = {}
    for block in order:
        life = lives[block]
        beside = sorted(
            (offset, offset + lives[other].nbytes)
            for other, offset in placed.items()
            if lives[other].begin < life.end and life.begin < lives[other].end
        )
        offset = 0
        for lo, hi in beside:
            if lo - offset >= life.nbytes:
                break
            offset = max(offset, hi)
        placed[block] = offset
    return placed


def extent(lives, placed):
    """What a placement takes of memory."""
    return max(offset + lives[block].nbytes for block, offset in placed.items())


# %%
lesson.predict("list order: more than the bound")

# %%
in_list_order = first_fit(lives, range(len(lives)))
list_gap = extent(lives, in_list_order) / least - 1
lesson.reveal("list order: more than the bound", list_gap)

# %% [markdown]
# ## The large ones first
#
# When you pack a car you load the suitcases first. We know all blocks, so we may take them in any
# order. **By what share does that exceed the lower bound?**

# %%
lesson.cell("first fit by size")


def largest_first(lives):
    """The blocks, the largest first."""
    return sorted(range(len(lives)), key=lambda block: -lives[block].nbytes)


# %%
lesson.predict("by size: more than the bound")

# %%
by_size = first_fit(lives, largest_first(lives))
size_gap = extent(lives, by_size) / least - 1
lesson.reveal("by size: more than the bound", size_gap)


def picture(title, placed):
    """A placement as rectangles; what is smaller than 512 KiB would not be seen."""
    areas = [
        pictures.Area(
            lives[block].begin,
            lives[block].end,
            offset / units.GIB,
            (offset + lives[block].nbytes) / units.GIB,
            lives[block].tag,
            int(lives[block].parameter),
        )
        for block, offset in placed.items()
        if lives[block].nbytes > units.MIB // 2
    ]
    return pictures.areas_svg(
        title,
        areas,
        axes=("request", "address, GiB"),
        legend=("activations and gradients", "parameters"),
        limits=[("no placement is lower", least / units.GIB)],
        y_top=extent(lives, in_list_order) / units.GIB,
    )


lesson.picture(
    "08_placements.svg",
    pictures.stacked_svg(
        [picture("In list order", in_list_order), picture("The large ones first", by_size)]
    ),
)

# %% [markdown]
# ## All allocators on the same log
#
# The library has both rules, as `first-fit` and `first-fit-by-size`. `first-fit` has paper 004's
# pools too: parameters and their gradients lie in a pool of their own, apart from the general one,
# because small blocks that stay long would cut that to pieces (the paper's third pool is the
# host's). We replay the same log over all allocators.

# %%
lesson.cell("all allocators on one log")
names = (
    "best-fit",
    "first-fit",
    "first-fit:pools=1",
    "first-fit-by-size",
    "buddy",
    "va:chunk=64KiB",
)
found = {name: oc.alloc.replay(log, name) for name in names}
for name, row in found.items():
    reserved = row.stats.peak_reserved_bytes
    print(
        f"      {name:<18} {units.format_bytes(reserved):>9}, "
        f"{reserved / least - 1:6.1%} over the bound"
    )
forecast = foresee(log.requests, log.parameters)
ours = pack(forecast, oc.Granule(1, False), "list", pools=1).extent_bytes

# %% [markdown]
# Static planning by size beats best fit, but virtual addressing beats both: it does not need any
# placement at all. Why have the static ones then? They need no virtual memory, no search at run
# time, and their answer is known before the step. On a device without `cuMemMap` they are what
# there is.
#
# How near to the bound can a placement come at all? `first-fit:order=exact,pools=1` searches for
# the optimum as MiniMalloc does (`ooctrain/alloc/exact_packing.py`): it builds placements bottom
# up, and turns back as soon as what is left cannot fit. That takes seconds instead of milliseconds.
#
# ## The price: nothing unforeseen
#
# A static plan serves exactly the requests it has foreseen, in order. Anything else is refused,
# because its place may be taken.

# %%
lesson.cell("an unforeseen request")
static = FirstFit(oc.alloc.DryMemory(1 << 40))
static.load_plan(forecast)
static.allocate(lives[0].nbytes, lives[0].tag)
try:
    static.allocate(12345, "a surprise")
    refused = ""
except oc.errors.PlanMismatch as error:
    refused = str(error)
    print("   ", refused.replace("\n", "\n    "))
started = time.perf_counter()
pack(forecast, oc.Granule(512, False), "list", pools=2)
print(f"    planning {len(lives)} blocks took {(time.perf_counter() - started) * 1e3:.0f} ms, once")

# %% [markdown]
# STAlloc (2025) keeps the plan and serves what it did not foresee behind it, as it comes. Ours,
# `stalloc`, does so too:

# %%
both = oc.alloc.choose_allocator("stalloc", 1 << 40).make(oc.alloc.DryMemory(1 << 40))
both.load_plan(forecast)
both.allocate(lives[0].nbytes, lives[0].tag)
surprise = both.allocate(12345, "a surprise")
offset, planned = surprise.address - both.snapshot()["base"], sum(both.snapshot()["pools"])
print(f"    a surprise lies at {units.format_bytes(offset)}, behind all that is planned")

# %% [markdown]
# ## Exercises
#
# `python 08_static_planning.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. Three blocks of sizes 2, 1 and 3 live in [0, 2), [1, 4) and [3, 5). What is the lower bound?
# 2. First fit in list order gives the third block of exercise 1 which offset?
# 3. And with the largest first, what is the extent?

# %%
lesson.cell("exercises")
three = [Lifetime(2, "a", 0, 2), Lifetime(1, "b", 1, 4), Lifetime(3, "c", 3, 5)]
third = first_fit(three, range(3))[2]
shorter = extent(three, first_fit(three, largest_first(three)))
lesson.exercise("1. lower bound", lambda a: a == most_live(three), None)
lesson.exercise("2. offset of the third", lambda a: a == third, None)
lesson.exercise("3. extent by size", lambda a: a == shorter, None)

# %%
assert least == plan.peak_bytes
assert 0 < size_gap < list_gap
assert ours == extent(lives, in_list_order), "the library's list order is ours"
assert (most_live(three), third, shorter) == (4, 3, 4)
assert (
    found["first-fit-by-size"].stats.peak_reserved_bytes
    < found["best-fit"].stats.peak_reserved_bytes
)
assert found["va:chunk=64KiB"].stats.peak_reserved_bytes < 1.02 * least
assert "foreseen" in refused
assert offset == planned
print("\nall asserts passed")
