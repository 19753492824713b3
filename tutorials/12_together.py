# %% [markdown]
# # 12 Together
#
# **Goal:** decide for each value whether to keep it, send it away, or compute it again; get close
# to what no schedule beats.
# **Prerequisites:** 07, 08, 09, 10, 11. **Minutes:** 35.
# **Paper:** 001, section 3 (hybrid of recomputation and swapping); 002, section 7 (left open); 000,
# section 4 (virtual addressing).
#
# Swapping uses the link and leaves the processor alone. Recomputing uses the processor and leaves
# the link alone. A planner that does only one of them does not use the other half of the machine.

# %%
from itertools import pairwise

from lesson import Lesson

import ooctrain as oc
from ooctrain.sched.planners.belady import offload
from ooctrain.sched.planners.prefix import by_recompute_time
from ooctrain.step.machine import call_durations_ns

pictures, planning = oc.pictures, oc.planning
lesson = Lesson("12 together")
granule = oc.Granule(1)
model = oc.models.build("resnet18", num_classes=1000, stem="imagenet")
# Rewritten as `oc.plan` would: the prices are those of the calls that really run.
trace = oc.apply_rewrites(oc.trace(model, (256, 3, 224, 224), threads=1), ("fuse", "share_storage"))
pcie, nvlink = oc.machine("v100-pcie"), oc.machine("v100-32gb-nvlink")

# %% [markdown]
# ## Two prices
#
# A byte that is sent away travels twice: 2 / B us on a link that goes one way at a time. A byte
# that is computed again costs the time of its producer, divided by the bytes it writes. Take the
# *saved* values of ResNet-18, those that the forward pass writes and the backward pass reads, one
# by one. **What share of them is cheaper to compute again than to send over PCIe?**

# %%
lesson.cell("two prices for each value")
durations_us = [ns / 1000 for ns in call_durations_ns(trace, pcie)]
order = by_recompute_time(trace, pcie)  # the cheapest per byte first


def price_us_per_mb(value):
    """Time to compute a value alone again, for each of its megabytes."""
    runs = planning.rematerialise(trace, [value])
    extra_us = sum(durations_us[run.call] for run in runs) - sum(durations_us)
    return extra_us / (trace.variables[value].nbytes / 1e6)


link_us_per_mb = 2e6 / pcie.out_bytes_per_us

# %%
lesson.predict("share that is cheaper to compute again")

# %%
prices = [price_us_per_mb(value) for value in order]
cheaper = sum(price < link_us_per_mb for price in prices) / len(prices)
lesson.reveal("share that is cheaper to compute again", cheaper)
print(f"    over PCIe and back: {link_us_per_mb:.0f} us per MB")
for place in (0, len(order) // 2, len(order) - 1):
    name = trace.variables[order[place]].name
    print(f"    {name:<24} {prices[place]:6.1f} us per MB")

# %% [markdown]
# The prices are worlds apart. A ReLU only reads and writes memory: cheap. This convolution
# multiplies: dearer than the link. A batch norm's statistics are a few hundred numbers that take a
# pass over all of its input: it never pays to drop those. And the link's price is only paid where
# the link is the bottleneck: as long as copies overlap with computation, they cost nothing.
#
# ## The teaching planner
#
# Sort the values by price. Drop the first d of them, so that they are computed again; let Belady's
# rule of tutorial 09 send away what is still too much; take the best d. That is the planner
# `prefix`. **What share of the values does the best plan drop with a budget of 25 % over PCIe?**

# %%
lesson.cell("how many to drop")


def dropping(count, budget_bytes, machine):
    """The plan that computes the `count` cheapest values again; None where it does not fit."""
    runs = planning.rematerialise(trace, order[:count])
    question = planning.Question(trace, budget_bytes, machine, granule)
    try:
        decisions = offload("lesson", question, runs)
    except oc.Infeasible:
        return None
    return planning.plan_of("lesson", question, decisions)


budget = oc.resolve_budget(trace, "25%", granule)
counts = sorted({round(step * len(order) / 12) for step in range(13)})
alone_us = sum(durations_us)
curves = {}
for machine in (pcie, nvlink):
    plans = {count: dropping(count, budget, machine) for count in counts}
    curves[machine.name] = [
        (count, None if plan is None else plan.makespan_us / alone_us)
        for count, plan in plans.items()
    ]

# %%
lesson.predict("share of values that the best plan drops, PCIe")

# %%


def best_of(curve):
    """(number dropped, slowdown) where the curve is lowest."""
    return min((point for point in curve if point[1] is not None), key=lambda point: point[1])


best_pcie, best_nvlink = (best_of(curves[machine.name]) for machine in (pcie, nvlink))
lesson.reveal("share of values that the best plan drops, PCIe", best_pcie[0] / len(order))
bound = oc.fluid_bound(trace, budget, pcie).makespan_us / alone_us
print(f"    on PCIe it takes {best_pcie[1]:.3f} times the computation, the bound is {bound:.3f}")
print(f"    on NVLink it drops {best_nvlink[0]} of {len(order)}")
lesson.picture(
    "12_prefix.svg",
    pictures.curves_svg(
        "ResNet-18 at 25 %: how many values to compute again",
        [pictures.Curve(name, points) for name, points in curves.items()],
        axes=("values dropped, the cheapest first", "makespan / computation alone"),
        y_low=0.95 * min(us for points in curves.values() for _, us in points if us is not None),
    ),
)

# %% [markdown]
# The curve of PCIe is a valley: on its left the link is the bottleneck, on its right the processor.
# On NVLink dropping gains nothing: that link hides nearly all copies.
#
# ## Against each alone, and against the bound
#
# A published planner that does both is `capuchin` (2020). It looks at each value once: first it
# swaps those that are away longest, as long as the link can hide the copies; then it takes, for
# each further one, whichever costs less, the copies that show or the computation. `combined` starts
# from plans such as `prefix`'s and searches: for each value it tries to keep it, to drop it once,
# and to drop it whenever the next call does not read it; then it turns single gaps between two uses
# of a value, there and gone. With `evaluations=4000` it tries thousands of lists. ResNet-18 is
# easy: there `prefix` is within 1 % of the bound. ResNet-50 with a budget of 10 % is not: no list
# that only swaps takes less than three times the bound. **How far above the bound is `combined`
# there? (as a share)**

# %%
lesson.cell("swap, recompute, both")
combined = "combined:evaluations=4000"
names = ("belady", "rotor", "capuchin", "prefix", combined)

# %%
lesson.predict("combined: above the bound at 10 %")

# %%
deep = oc.models.build("resnet50", num_classes=1000, stem="imagenet")
deep_trace = oc.trace(deep, (256, 3, 224, 224), threads=1)
deep_trace = oc.apply_rewrites(deep_trace, ("fuse", "share_storage"))
deep_shares = (10, 25, 50)
sizes = {share: oc.resolve_budget(deep_trace, f"{share}%", granule) for share in deep_shares}
bounds_us = {share: oc.fluid_bound(deep_trace, sizes[share], pcie).makespan_us for share in sizes}
swapping = oc.fluid_bound(deep_trace, sizes[10], pcie, recompute=False)
swap_ratio = swapping.makespan_us / bounds_us[10]
print(f"    at 10 % swapping takes {swap_ratio:.3f} times the bound or more")
ratio = {}
print(f"      {'budget':<25}", *(f"{share:4d} %" for share in deep_shares))
for name in names:
    for share in deep_shares:
        try:
            plan = oc.plan(deep_trace, sizes[share], name, pcie)
            ratio[name, share] = plan.makespan_us / bounds_us[share]
        except oc.Infeasible:
            ratio[name, share] = None
    row = (ratio[name, share] for share in deep_shares)
    print(f"      {name:<25}", *("     -" if value is None else f"{value:6.3f}" for value in row))
lesson.reveal("combined: above the bound at 10 %", ratio[combined, 10] - 1)
lesson.picture(
    "12_together.svg",
    pictures.curves_svg(
        "ResNet-50, batch 256, PCIe: how far above what no schedule beats",
        [
            pictures.Curve("bound", [(share, 1.0) for share in deep_shares], dashed=True),
            *(
                pictures.Curve(name, [(share, ratio[name, share]) for share in deep_shares])
                for name in names
            ),
        ],
        axes=("budget, % between the least and the peak", "makespan / bound"),
        y_low=0.9,
    ),
)

# %% [markdown]
# Swapping alone waits for the link (`belady`, within 1 % of the bound of swapping), and `rotor` has
# no plan for a chain that short of memory. `capuchin` decides about one value after the other and
# never takes anything back; at 10 % it takes longer even than `belady`. `prefix` orders all values
# by one price, which is right as long as few are dropped. What `combined` finds at 10 % is a matter
# of which values are *kept* to compute others from, and no list of prices says that.
#
# ## When the host is short of memory, too
#
# What is sent away takes room on the host. Host memory is a budget like the device's
# (`host_budget`), and the planners search within both. The images wait there in any case; what is
# left is for copies. Where it has no room for copies, nothing can be swapped. ResNet-18 at 25 %
# over PCIe: **how much longer does `combined` take without any room for copies than with enough?
# (as a share)**

# %%
lesson.cell("two budgets")
images_bytes = trace.variables[trace.calls[0].ins[0]].nbytes
on_host = oc.plan(trace, budget, "belady", pcie).host_peak_bytes - images_bytes

# %%
lesson.predict("longer without room for copies")

# %%
room_shares = (0, 20, 50, 100)
host_names = ("belady", "prefix", "combined:evaluations=200")
within = {}
print(f"      {'host memory for copies':<26}", *(f"{share:4d} %" for share in room_shares))
for name in host_names:
    for share in room_shares:
        host_bytes = images_bytes + on_host * share // 100
        try:
            plan = oc.plan(trace, budget, name, pcie, host_budget=host_bytes)
            within[name, share] = plan.makespan_us / alone_us
        except oc.Infeasible:
            within[name, share] = None
    row = (within[name, share] for share in room_shares)
    print(f"      {name:<26}", *("     -" if value is None else f"{value:6.3f}" for value in row))
longer = within[host_names[-1], 0] / within[host_names[-1], 100] - 1
lesson.reveal("longer without room for copies", longer)
lesson.picture(
    "12_host.svg",
    pictures.curves_svg(
        "ResNet-18 at 25 %: how much host memory swapping needs",
        [
            pictures.Curve(name, [(share, within[name, share]) for share in room_shares])
            for name in host_names
        ],
        axes=("host memory for copies, % of what belady uses", "makespan / computation alone"),
        y_low=0.95,
    ),
)

# %% [markdown]
# `belady` has a plan only where the host holds all that it would send away. The others compute
# again what finds no room there. For `prefix` a fifth of that room already does most of the good;
# without any, `combined` takes less than 1 % longer than with all of it.
#
# ## From bytes to addresses
#
# A list counts bytes; the memory that it takes depends on the allocator, too (tutorials 07 and 08).
# Which allocators suit a list that drops and swaps? We let `combined` move whole values, as not all
# allocators can take parts, and replay its list: over the segments of the driver that never join
# (`best-fit-caching`), over places that a search found before the step (`first-fit`, with a seventh
# of the work that it does by default), and over virtual addresses, as paper 000 prints them
# (`va-paper`), as its authors programmed them (`va-nnabla`), and as the library has them (`va`).
# **How much more than the list's peak does `best-fit-caching` reserve? (as a share)**

# %%
lesson.cell("one list, five allocators")
whole = oc.plan(trace, "25%", "combined:evaluations=200", pcie, oc.Granule(1, ranges=False))
log = oc.allocation_log(whole.trace, whole.schedule, whole.peak_bytes)

# %%
lesson.predict("best-fit-caching: reserved above the peak")

# %%
searched = "first-fit:order=exact,pools=1,work=60000000"
chunked = ("va-paper:chunk=64KiB", "va-nnabla:chunk=64KiB", "va:chunk=64KiB")
reserved, maps = {}, {}
for name in ("best-fit-caching", searched, *chunked):
    replayed = oc.alloc.replay(log, name)
    reserved[name] = replayed.stats.peak_reserved_bytes / whole.peak_bytes - 1
    maps[name] = replayed.maps_by_step[2]
    print(f"      {name:<44} {reserved[name]:6.2%} above, {maps[name]} mappings in the third step")
lesson.reveal("best-fit-caching: reserved above the peak", reserved["best-fit-caching"])

# %% [markdown]
# Segments that never join waste half of the peak. Places found beforehand and chunks take less than
# a percent more than the peak: with either, nearly all of the memory is the planner's. The three
# kinds of virtual addressing reserve the same; only `va` has next to nothing left to map in the
# third step.
#
# ## Exercises
#
# `python 12_together.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. The link is twice as fast. What is the new price of a swapped byte, over the old one?
# 2. Of two values the first takes 100 us and has 10 MB, the second 60 us and 3 MB. Which of them is
#    dropped first? ("first", "second")
# 3. With nothing dropped, which other planner's plan does `prefix` make? (its name)
# 4. The host holds the images and nothing else. Of `belady`, `rotor`, `combined`: which one has no
#    plan for ResNet-18 at 50 %? (its name)

# %%
lesson.cell("exercises")
lesson.exercise("1. the factor", lambda a: a == 0.5, None)
lesson.exercise("2. dropped first", lambda a: a == "first", None)
lesson.exercise("3. nothing dropped", lambda a: a == "belady", None)


def has_a_plan(name):
    """Whether a planner has one for half of the memory and a host that holds no copies."""
    try:
        oc.plan(trace, "50%", name, pcie, host_budget=images_bytes)
    except oc.Infeasible:
        return False
    return True


without = [name for name in ("belady", "rotor", "combined:evaluations=100") if not has_a_plan(name)]
lesson.exercise("4. no plan", lambda a: [a] == without, None)

# %%
assert all(one <= other * 1.0001 for one, other in pairwise(prices))
assert 0.4 < cheaper < 0.6, "about half of them"
assert prices[0] < link_us_per_mb < prices[len(order) // 2] < 1e-3 * prices[-1]
belady_us = oc.plan(trace, budget, "belady", pcie).makespan_us
assert abs(curves[pcie.name][0][1] * alone_us / belady_us - 1) < 0.01, "nothing dropped: belady"
assert bound <= best_pcie[1] < 1.01 * bound
assert best_pcie[1] < curves[pcie.name][0][1] < curves[pcie.name][-1][1], "a valley"
assert best_nvlink[0] == 0
for share in deep_shares:
    others = [ratio[name, share] for name in names if name != combined]
    assert 1 - 1e-9 <= ratio[combined, share] <= min(value for value in others if value)
assert 3 < swap_ratio <= ratio["belady", 10] * (1 + 1e-9) < 1.01 * swap_ratio
assert ratio["belady", 10] < ratio["capuchin", 10]
assert ratio["rotor", 10] is None
assert ratio["prefix", 10] > 1.5 * ratio[combined, 10]
assert ratio[combined, 10] < 1.05
assert [share for share in room_shares if within["belady", share]] == [100]
assert within[host_names[-1], 0] > within[host_names[-1], 100]
assert longer < 0.01
by_prefix = [within["prefix", share] for share in (0, 20, 100)]
assert by_prefix[1] - by_prefix[2] < 0.1 * (by_prefix[0] - by_prefix[2]), "a fifth: most of it"
assert without == ["belady"]
assert reserved["best-fit-caching"] > 0.4
assert reserved[searched] < 0.01
assert reserved[chunked[0]] == reserved[chunked[1]] == reserved[chunked[2]] < 0.01
assert maps["va-paper:chunk=64KiB"] > maps["va-nnabla:chunk=64KiB"]
assert maps["va:chunk=64KiB"] < 0.001 * maps["va-nnabla:chunk=64KiB"]
print("\nall asserts passed")
