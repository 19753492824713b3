# %% [markdown]
# # 12 Together
#
# **Goal:** decide for each value whether to keep it, send it away, or compute it again; get close
# to what no schedule beats.
# **Prerequisites:** 09, 10, 11. **Minutes:** 30.
# **Paper:** 001, section 3 (hybrid of recomputation and swapping); 002, section 7 (left open).
#
# Swapping uses the link and leaves the processor alone. Recomputing uses the processor and leaves
# the link alone. A planner that does only one of them leaves the other half of the machine idle.

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
# The prices are worlds apart. A ReLU only reads and writes memory: cheap. A convolution multiplies:
# dearer than the link. A batch norm's statistics are a few hundred bytes that take a pass over all
# of its input: it never pays to drop those. And the link's price is only paid where the link is the
# bottleneck: as long as copies overlap with computation they cost nothing.
#
# ## The teaching planner
#
# Sort the values by price. Drop the first d of them, so that they are computed again; let Belady's
# rule of tutorial 09 send away what is still too much; take the best d. That is the planner
# `prefix`. **How many values does the best plan drop with a budget of 25 % over PCIe? (as a share
# of all)**

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
# A valley over PCIe: on the left the link is the bottleneck, on the right the processor. On NVLink
# there is nothing to gain on the left: the link hides everything.
#
# ## Against each alone, and against the bound
#
# A published planner that does both is `capuchin` (2020). It looks at each value once: first it
# swaps those that are away longest, as long as the link can hide the copies; then it takes, for
# each further one, whichever costs less, the copies that show or the computation. `combined` starts
# from plans such as `prefix`'s and searches. For each value it tries to keep it, to drop it once,
# and to drop it again after each use; and it tries to hold the values from which others are
# computed again. ResNet-18 is easy: there `prefix` is within 1 % of the bound. ResNet-50 with a
# budget of 10 % is not: whatever a planner that only swaps does, it takes three times the bound.
# **How far above the bound is `combined` there? (as a share)**

# %%
lesson.cell("swap, recompute, both")
names = ("belady", "rotor", "capuchin", "prefix:steps=8", "combined:evaluations=1000")

# %%
lesson.predict("combined: above the bound at 10 %")

# %%
deep = oc.models.build("resnet50", num_classes=1000, stem="imagenet")
deep_trace = oc.trace(deep, (256, 3, 224, 224), threads=1)
deep_trace = oc.apply_rewrites(deep_trace, ("fuse", "share_storage"))
ratio = {}
deep_shares = (10, 25, 50)
for percent in deep_shares:
    size = oc.resolve_budget(deep_trace, f"{percent}%", granule)
    bound_us = oc.fluid_bound(deep_trace, size, pcie).makespan_us
    for name in names:
        try:
            plan = oc.plan(deep_trace, size, name, pcie, time_limit_s=None)
            ratio[name, percent] = plan.makespan_us / bound_us
        except oc.Infeasible:
            ratio[name, percent] = None
    row = ((name, ratio[name, percent]) for name in names)
    shown = ", ".join(f"{name} {value:.3f}" if value else f"{name} -" for name, value in row)
    print(f"      {percent} %, times the bound: {shown}")
lesson.reveal("combined: above the bound at 10 %", ratio["combined:evaluations=1000", 10] - 1)
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
        doubling="both",
    ),
)

# %% [markdown]
# Swapping alone (`belady`, the best there is) waits for the link, and `rotor` has no plan for a
# chain that short of memory. `capuchin` decides about one value after the other and never takes
# anything back: near `belady`. `prefix` orders all values by one price, which is right as long as
# few are dropped. What `combined` finds at 10 % is a matter of which values are *kept* to compute
# others from, and no list of prices says that.
#
# ## When the host is short of memory, too
#
# What is sent away takes room on the host. Host memory is a budget like the device's
# (`host_budget`), and the planners search within both. The images wait there in any case; what is
# left is for copies. With no room for copies, swapping is out of the question. ResNet-18 at 25 %
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
host_names = ("belady", "prefix:steps=8", "combined:evaluations=200")
within = {}
for name in host_names:
    for share in room_shares:
        host_bytes = images_bytes + on_host * share // 100
        try:
            plan = oc.plan(trace, budget, name, pcie, time_limit_s=None, host_budget=host_bytes)
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
# `combined` is within a hundredth of its best without any.
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
        oc.plan(trace, "50%", name, pcie, time_limit_s=None, host_budget=images_bytes)
    except oc.Infeasible:
        return False
    return True


without = [name for name in ("belady", "rotor", "combined:evaluations=100") if not has_a_plan(name)]
lesson.exercise("4. no plan", lambda a: [a] == without, None)

# %%
assert all(one <= other * 1.0001 for one, other in pairwise(prices))
assert 0 < cheaper <= 1
belady_us = oc.plan(trace, budget, "belady", pcie).makespan_us
assert abs(curves[pcie.name][0][1] * alone_us / belady_us - 1) < 0.01, "nothing dropped: belady"
assert best_pcie[0] > 0
assert best_pcie[1] < curves[pcie.name][0][1]
assert best_nvlink[0] <= best_pcie[0]
for percent in (10, 25):
    together = ratio["combined:evaluations=1000", percent]
    assert 1 - 1e-9 <= together <= ratio["prefix:steps=8", percent] + 0.02
    assert together <= ratio["belady", percent]
assert ratio["belady", 10] > 2.5, "swapping alone is far from the bound"
assert ratio["prefix:steps=8", 10] > 1.4 * ratio["combined:evaluations=1000", 10]
assert ratio["combined:evaluations=1000", 10] < 1.2
assert within["belady", 0] is None
assert within[host_names[-1], 0] > within[host_names[-1], 100]
assert longer < 0.01
by_prefix = [within["prefix:steps=8", share] for share in (0, 20, 100)]
assert by_prefix[1] - by_prefix[2] < 0.1 * (by_prefix[0] - by_prefix[2]), "a fifth: most of it"
assert without == ["belady"]
print("\nall asserts passed")
