# %% [markdown]
# # 03 Out of memory
#
# **Goal:** run out of memory on purpose, and learn which of three different things has happened.
# **Prerequisites:** 02. **Minutes:** 15.
# **Paper:** 000, sections 1 and 4.
#
# "Out of memory" can mean: (a) the step does not fit in-core, but would if something were moved;
# (b) no order of calls could ever fit, because one call alone needs more; (c) there are enough free
# bytes, but not in one piece. The three have different cures, and the library tells them apart.

# %%
import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.alloc.arena_map import pieces_of

pictures, units = oc.pictures, oc.units
lesson = Lesson("03 out of memory")

# %% [markdown]
# ## Two numbers for every step
#
# The *trace peak* is what the step needs if nothing is moved. The *trace minimum* is what the
# persistent variables and the largest single call need. Between the two most planners work; a
# budget of "25%" means a quarter of the way from the minimum to the peak.
#
# **What share of the peak is the minimum, for ResNet-18 at batch 32?**

# %%
lesson.cell("minimum and peak")
lesson.predict("minimum / peak")

# %%
oc.manual_seed(0)
model = oc.models.build("resnet18", num_classes=10, stem="cifar")
# Threads need memory to work in, so their number is part of the trace.
trace = oc.trace(model, (32, 3, 32, 32), threads=2)
plan = oc.plan(trace, "100%", planner="keep-all")
least, most = oc.trace_minimum_bytes(plan.trace), oc.trace_peak_bytes(plan.trace)
share = least / most
lesson.reveal("minimum / peak", share)
print(f"    minimum {units.format_bytes(least)}, peak {units.format_bytes(most)}")

# %% [markdown]
# Much of the minimum is persistent: ResNet-18 has 11 million parameters, each with a momentum, and
# 32 small images need little in comparison. The share shrinks as the batch grows.
#
# ## (a) It does not fit in-core

# %%
lesson.cell("one byte too little")
in_core = plan.peak_bytes
try:
    oc.plan(trace, in_core - 1, planner="keep-all")
    refused = None
except oc.Infeasible as error:
    refused = error
    print("   ", str(error).replace("\n", "\n    "))
again = oc.plan(trace, refused.minimum_bytes, planner="keep-all")
moved = oc.plan(trace, in_core // 2, planner="window")
print(
    f"    the window planner fits the same step into half: {units.format_bytes(moved.peak_bytes)}"
)

# %% [markdown]
# The error carries the planner's own minimum, and it is honest: the same planner succeeds at
# exactly that number of bytes.
#
# ## (b) Nothing can fit
#
# `naive` swaps everything out after every call, parameters too. So it goes below the trace minimum,
# and as low as any planner that runs whole calls can go. **How many times larger than naive's
# minimum is the in-core peak?**

# %%
lesson.cell("the least that whole calls need")
lesson.predict("in-core peak / naive minimum")

# %%
try:
    oc.plan(trace, "1KiB", planner="naive")
except oc.Infeasible as error:
    bottom = error
    print("   ", str(error).replace("\n", "\n    "))
factor = in_core / bottom.minimum_bytes
lesson.reveal("in-core peak / naive minimum", factor)

# %% [markdown]
# Note the name of the call: to go lower, *that* call must become smaller. This is what
# tiling does (tutorial 05).
#
# ## (c) Enough bytes, but not in one piece
#
# An *allocator* says where a block of memory lies. One that hands out contiguous pieces can fail
# although enough is free. Let us do it by hand: four blocks fill an arena of 4 MiB; we free the
# first and the third, and ask for 2 MiB. (`DryMemory` is for dry runs: addresses and no bytes.
# Where blocks lie does not depend on what is in them.)

# %%
lesson.cell("fragmentation by hand")
choice = oc.alloc.choose_allocator("best-fit", 4 * units.MIB)
arena = choice.make(oc.alloc.DryMemory(4 * units.MIB))
blocks = [arena.allocate(units.MIB, f"block {i}") for i in range(4)]
arena.free(blocks[0])
arena.free(blocks[2])
try:
    arena.allocate(2 * units.MIB, "the large one")
    fragmented = ""
except oc.errors.OutOfDeviceMemory as error:
    fragmented = str(error)
    print("   ", fragmented.replace("\n", "\n    "))

# %% [markdown]
# Now the allocator `va`, for *virtual addressing*. It cuts memory into chunks, gives each block a
# range of addresses of its own, and asks the memory to *map* chunks behind them. Its `snapshot`
# says which chunks it chose.

# %%
lesson.cell("the same requests, with virtual addressing")
choice = oc.alloc.choose_allocator("va", 4 * units.MIB)
virtual = choice.make(oc.alloc.DryMemory(4 * units.MIB))
pages = [virtual.allocate(units.MIB, f"block {i}") for i in range(4)]
virtual.free(pages[0])
virtual.free(pages[2])
large = virtual.allocate(2 * units.MIB, "the large one")
print(f"    va: granted {units.format_bytes(large.granted_bytes)} from the same two holes")

# %% [markdown]
# The two holes serve one block: its addresses are contiguous, the memory behind them is not. That
# is the allocator this library uses by default (tutorial 07 builds it). The picture shows where
# each block lies in the 4 MiB.

# %%
lesson.cell("where the blocks lie")


def pieces(allocator):
    """What lies in an arena, in MiB: one piece or several for each block."""
    return [
        pictures.Piece(p.lo / units.MIB, p.hi / units.MIB, p.tag, int(p.tag == "the large one"))
        for p in pieces_of(allocator.snapshot())
        if p.kind == "block"
    ]


rows = [("best-fit", pieces(arena)), ("va", pieces(virtual))]
lesson.picture(
    "03_two_holes.svg",
    pictures.strips_svg(
        "Two holes of 1 MiB, and a request for 2 MiB",
        rows,
        extent=4,
        axis="MiB of the arena",
        legend=("blocks", "the large one (best-fit has no place for it)"),
    ),
)

# %% [markdown]
# ## The budget is real
#
# The cpu device's arena is exactly the budget: there is no more memory. We train one
# step in-core and one within half of it, and compare every bit.

# %%
lesson.cell("the same bits in half the memory")
rng = np.random.default_rng(0)
x = rng.normal(size=(32, 3, 32, 32)).astype(np.float32)
y = rng.integers(0, 10, 32)
small, full = oc.execute(moved, model, (x, y)), oc.execute(plan, model, (x, y))
same = small.loss == full.loss and all(
    np.array_equal(small.gradients[name], full.gradients[name]) for name in full.gradients
)
print(f"    loss {small.loss:.6f} in {units.format_bytes(moved.peak_bytes)}; same bits: {same}")

# %% [markdown]
# ## Exercises
#
# `python 03_out_of_memory.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. At which batch size does the minimum fall below a quarter of the peak? (try 32, 64, 128, 256)
# 2. Which call is the witness of naive's minimum? (its name)
# 3. Three blocks of 1 MiB are live in a best-fit arena of 4 MiB, at 0, 1 and 3 MiB. What is the
#    largest block, in MiB, that can still be had?


# %%
def share_at(batch):
    """Minimum over peak for ResNet-18 at a batch size."""
    step = oc.plan(oc.trace(model, (batch, 3, 32, 32), threads=2), "100%", planner="keep-all").trace
    return oc.trace_minimum_bytes(step) / oc.trace_peak_bytes(step)


lesson.cell("exercises")
answer = next(batch for batch in (32, 64, 128, 256) if share_at(batch) < 0.25)
lesson.exercise("1. the batch size", lambda a: a == answer, None)
lesson.exercise("2. the witness", lambda a: a == bottom.witness_call, None)
lesson.exercise("3. the largest hole", lambda a: a == 1, None)

# %%
assert refused is not None
assert again.peak_bytes == refused.minimum_bytes == in_core
assert moved.peak_bytes <= in_core // 2
assert factor > 3
assert "fragment" in fragmented
assert large.granted_bytes == 2 * units.MIB
held = [(p.lo, p.hi) for p in rows[1][1] if p.text == "the large one"]
assert held == [(0, 1), (2, 3)], "both holes"
assert same
print("\nall asserts passed")
