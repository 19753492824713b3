# %% [markdown]
# # 06 Best fit and fragmentation
#
# **Goal:** build the allocator that all frameworks use, and watch swapping break it.
# **Prerequisites:** 03, 04. **Minutes:** 25.
# **Paper:** 000, section 4 and figure 3.
#
# An allocator answers one question: where does the next block go? On a training step that stays
# in memory, nearly any answer will do. With swapping, blocks come and go in another order, and the
# free memory ends up in pieces that are all too small: *fragmentation*.

# %%
import bisect
import random

from lesson import Lesson

import ooctrain as oc
from ooctrain.experiments.paper_000.fragmentation import largest_budget

units = oc.units
lesson = Lesson("06 best fit and fragmentation")

# %% [markdown]
# ## Best fit in thirty lines
#
# Keep the holes sorted by size; take the smallest that is large enough; cut off what is left over.
# When a block comes back, melt its hole with the holes next to it (*coalescing*). PyTorch,
# TensorFlow and nnabla do this, in memory that they once got from the driver and keep.

# %%
lesson.cell("best fit in thirty lines")


class BestFit:
    """The smallest hole that is large enough; holes melt with their neighbours."""

    def __init__(self, size):
        self.holes = [(size, 0)]  # (size, offset), sorted
        self.blocks = {}  # offset: size

    def allocate(self, size):
        """The offset of a new block, or None."""
        place = bisect.bisect_left(self.holes, (size, -1))
        if place == len(self.holes):
            return None
        hole, offset = self.holes.pop(place)
        if hole > size:
            bisect.insort(self.holes, (hole - size, offset + size))
        self.blocks[offset] = size
        return offset

    def free(self, offset):
        """Makes a hole of a block."""
        size = self.blocks.pop(offset)
        for hole in [h for h in self.holes if h[1] + h[0] == offset or h[1] == offset + size]:
            self.holes.remove(hole)
            size, offset = size + hole[0], min(offset, hole[1])
        bisect.insort(self.holes, (size, offset))


arena = BestFit(10)
a, b, c = arena.allocate(3), arena.allocate(2), arena.allocate(3)
arena.free(a)
print(f"    blocks {arena.blocks}, holes (size, offset) {arena.holes}")
print(f"    a block of 2 goes to {arena.allocate(2)}, not into the larger hole at {a}")
arena.free(b)
print(f"    after freeing the second block its hole melts with the first: {arena.holes}")

# %% [markdown]
# ## The step of one page
#
# Eight equal stages within 500 bytes, as in [docs/one_page.md](../docs/one_page.md): values of 100
# bytes come and go. We ask our allocator for what that list asks for. **How many bytes must its
# arena have?**

# %%
lesson.cell("blocks of equal size")
lesson.predict("bytes of the arena")


# %%
def serves(requests, size):
    """Whether an arena of this size serves all requests of a log."""
    arena, offsets = BestFit(size), {}
    for request in requests:
        if request.op == "allocate":
            offsets[request.key] = arena.allocate(request.nbytes)
            if offsets[request.key] is None:
                return False
        elif request.op == "free":
            arena.free(offsets.pop(request.key))
    return True


eight = oc.plan(oc.equal_stages(8), 500, "window", oc.toy_machine())
requests = oc.allocation_log(eight.trace, eight.schedule, eight.peak_bytes, steps=1).requests
enough = next(size for size in range(100, 2000, 100) if serves(requests, size))
lesson.reveal("bytes of the arena", enough)

# %% [markdown]
# Exactly what the list needs: where all blocks are alike, every hole fits the next block. A network
# is not like that.
#
# ## A step that stays in memory
#
# We record what a training step of ResNet-50 at batch 64 asks for (its *allocation log*), and
# *replay* it: the same requests, no bytes. The difference between what the allocator **reserved**
# (the highest address used) and what was **granted** at the peak is what lies in holes. **What
# share of the reserved memory lies in holes if nothing is swapped?**

# %%
lesson.cell("in-core: everything stays")
whole = oc.Granule(1, ranges=False)  # count bytes, and move whole variables only
resnet = oc.models.build("resnet50", num_classes=1000, stem="imagenet")
trace = oc.trace(resnet, (64, 3, 224, 224), threads=1)


def log_of(budget, planner):
    """The allocation log of a plan, and the plan."""
    plan = oc.plan(trace, budget, planner, "v100-16gb-nvlink", whole)
    return oc.allocation_log(plan.trace, plan.schedule, plan.peak_bytes), plan


# %%
lesson.predict("share in holes, in-core")

# %%
in_core_log, in_core = log_of(1 << 40, "keep-all")
in_core_holes = oc.alloc.replay(in_core_log, "best-fit").external_share
lesson.reveal("share in holes, in-core", in_core_holes)

# %% [markdown]
# Next to nothing. Activations are made in the forward pass and freed in the opposite order in the
# backward pass, like plates on a pile: holes appear at the top and melt at once.
#
# ## The same step with a budget of 20 %
#
# Now the window planner swaps; with `persistent=host` it swaps parameters too, as paper 000 does.
# **And now?**

# %%
lesson.cell("swapping: blocks come and go")
lesson.predict("share in holes, swapping")

# %%
swap_log, swapped = log_of("20%", "window:persistent=host")
best = oc.alloc.replay(swap_log, "best-fit")
lesson.reveal("share in holes, swapping", best.external_share)
print(f"    the list needs {units.format_bytes(swapped.peak_bytes)}, best fit takes "
      f"{units.format_bytes(best.stats.peak_reserved_bytes)}")  # fmt: skip

# %% [markdown]
# ## Look at it
#
# Time goes to the right, addresses go up; each rectangle is a block from its making to its end. In
# the upper picture the blocks form a pyramid. In the lower one, grey is free: it is there, but
# never where it is needed. A long-lived block in the wrong place splits the memory for as long as
# it lives.

# %%
lesson.cell("a picture of who lies where, and when")


FORWARD, BACKWARD, WEIGHTS = range(3)  # colours


def colour_of(tag):
    """The colour of a block, by the name of what lies in it."""
    if ".grad" in tag:  # a gradient, or the workspace of a call that computes one
        return BACKWARD
    return WEIGHTS if ".weight" in tag else FORWARD


def areas(log):
    """A rectangle for each block of the log's first step, as best fit places it."""
    return [
        oc.pictures.Area(
            life.begin, life.end, life.lo / units.GIB, life.hi / units.GIB, life.tag,
            colour_of(life.tag),
        )
        for life in oc.alloc.block_lives(log, "best-fit")
        if life.hi - life.lo > units.MIB // 2  # smaller ones would not be seen
    ]  # fmt: skip


drawn = [
    oc.pictures.areas_svg(
        f"{title}: the list needs {units.format_bytes(plan.peak_bytes)}",
        areas(log),
        axes=("request", "address, GiB"),
        legend=("forward", "backward", "weights and momentum"),
        limits=[("what the list needs", plan.peak_bytes / units.GIB)],
    )
    for title, log, plan in (
        ("in-core", in_core_log, in_core),
        ("swapping", swap_log, swapped),
    )
]
lesson.picture("06_fragmentation.svg", oc.pictures.stacked_svg(drawn))

# %% [markdown]
# ## When it fails
#
# Give best fit exactly what the list needs. It fails, and it can say that there would have been
# enough. Virtual addressing (next tutorial) does not fail.

# %%
lesson.cell("an arena of exactly what the list needs")
tight = oc.alloc.replay(swap_log, "best-fit", budget=swapped.peak_bytes)
print("   ", tight.failure.text.replace("\n", "\n    "))
chunked = oc.alloc.replay(swap_log, "va:chunk=64KiB", budget=int(1.02 * swapped.peak_bytes))
print(f"    va served all {chunked.served} requests in 2 % more than the list needs")

# %% [markdown]
# ## Figure 3 of paper 000
#
# A planner counts bytes; it does not know about holes. So its budget must be *less* than the arena,
# so that what the allocator reserves still fits. Take ResNet-50 at batch 928 on a GPU with 16 GiB.
# **With best fit, how many of the 16 GiB can the planner use?** (In the paper it was 8
# GiB, with an allocator that never joins the pieces that the driver gave.)

# %%
lesson.cell("how much of the memory can the planner use?")
lesson.predict("GiB usable with best fit")

# %%
rows = largest_budget("resnet50", 928, ("best-fit", "va:chunk=2MiB"))
for row in rows:
    budget, taken = units.format_bytes(row.budget_bytes), units.format_bytes(row.reserved_bytes)
    print(f"      {row.allocator:<14} {budget:>9} usable, {taken:>9} reserved")
    print(f"{'':21}{row.images_per_s:.0f} images/s")
usable = rows[0].budget_bytes / units.GIB
lesson.reveal("GiB usable with best fit", usable)

# %% [markdown]
# The memory that fragmentation takes away is memory that the scheduler cannot prefetch into, so
# the step is slower too. `ooctrain reproduce fragmentation` does this for all batch sizes.
#
# ## Exercises
#
# `python 06_best_fit_and_fragmentation.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. An arena of 10 holds blocks of 3, 2 and 3 (as above). After freeing the first, in which order
#    must requests for 2 and 3 come so that both fit? ("2,3", "3,2" or "both")
# 2. "Worst fit" takes the *largest* hole. Blocks of 3 and 2 have been freed (not neighbours), and
#    the rest is full. Requests for 2 and 3 come in that order. Does worst fit serve both? (True or
#    False)
# 3. What is the share in holes, in percent (whole number), if 12 GiB are granted and 16 reserved?

# %%
lesson.cell("exercises")


def both_fit(first, second):
    """Whether two requests are served after the first block of exercise 1 has gone."""
    arena = BestFit(10)
    gone, _, _ = (arena.allocate(size) for size in (3, 2, 3))
    arena.free(gone)
    return None not in (arena.allocate(first), arena.allocate(second))


lesson.exercise("1. the order", lambda a: a == "both", None)
lesson.exercise("2. worst fit", lambda a: a is False, None)
lesson.exercise("3. share in holes", lambda a: a == 25, None)

# %%
ours, theirs = BestFit(64 * units.MIB), oc.alloc.choose_allocator("best-fit", 64 * units.MIB)
theirs = theirs.make(oc.alloc.DryMemory(64 * units.MIB))
rng, made = random.Random(0), [(ours.allocate(512), theirs.allocate(512))]
base = made[0][1].address
for _ in range(300):  # makes a block, or frees one, at random
    if rng.random() < 0.6:
        size = 512 * rng.randint(1, 99)
        made.append((ours.allocate(size), theirs.allocate(size)))
        assert made[-1][0] == made[-1][1].address - base, "the library's best fit is ours"
    elif made:
        offset, block = made.pop(rng.randrange(len(made)))
        ours.free(offset)
        theirs.free(block)
for offset, _ in made:
    ours.free(offset)
assert ours.holes == [(64 * units.MIB, 0)], "all holes have melted into one"
assert enough == eight.peak_bytes == 500
assert both_fit(2, 3)
assert both_fit(3, 2)
assert in_core_holes < 0.02
assert best.external_share > 0.1
assert tight.failure is not None
assert "fragment" in tight.failure.text
assert chunked.failure is None
assert usable < 13
assert rows[1].budget_bytes > rows[0].budget_bytes
assert rows[1].images_per_s > rows[0].images_per_s
print("\nall asserts passed")
