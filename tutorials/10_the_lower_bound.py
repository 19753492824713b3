# %% [markdown]
# # 10 The lower bound
#
# **Goal:** know how fast a step could be at best, without knowing the best plan; see what a bound
# says and what it does not.
# **Prerequisites:** 04, 09. **Minutes:** 25.
# **Paper:** 002, section 3.3 (proposition 3) and its fractional relaxation.
#
# "Our planner is 20 % faster than theirs" says little: both may be far from what is possible. A
# bound is a makespan that *no* schedule beats. A plan close to it needs no further work; where a
# plan is far from it, either the plan is bad or the bound is weak.

# %%
import random
from dataclasses import replace

from lesson import Lesson

import ooctrain as oc
from ooctrain.sched.bounds.closed import compute_us, per_call_link_us, proposition_3_us
from ooctrain.sched.bounds.exact import exact_makespan_us

pictures = oc.pictures
lesson = Lesson("10 the lower bound")

# %% [markdown]
# ## Bytes that must move
#
# The chain of tutorial 04: eight stages of 100 bytes, 10 us forward, 20 us backward; the link moves
# 2 bytes per us, one way at a time. In-core, memory is fullest at the first backward call, that of
# stage 8: 1100 bytes. The budget is 600. So 500 bytes must go out before that call and come back
# after it: proposition 3 of paper 002. **What is the bound, in us?**

# %%
lesson.cell("proposition 3 by hand")
chain = oc.equal_stages(8)
machine = oc.Machine("toy", 1, 1, link_bytes_per_us=2, link="shared")
in_core_bytes = oc.trace_peak_bytes(chain)
print(f"    peak {in_core_bytes} bytes; the computation alone {compute_us(chain, machine):.0f} us")

# %%
lesson.predict("proposition 3 (us)")

# %%
proposition = proposition_3_us(chain, 600, machine)
lesson.reveal("proposition 3 (us)", proposition)

# %% [markdown]
# ## One call at a time
#
# While that call runs, these bytes are away. They left before it began and return after it has
# ended, so its own 20 us come on top. Before it: the 80 us of the forward pass, or the way out,
# whichever is longer; after it: the rest of the backward pass, or the way back, whichever is
# longer. The same can be said of every call; take the largest sum. **What is the bound now?**

# %%
lesson.cell("the bound per call")
lesson.predict("per-call bound (us)")

# %%
per_call = per_call_link_us(chain, 600, machine, recompute=False)
lesson.reveal("per-call bound (us)", per_call)
best_plan = min(
    oc.plan(chain, 600, name, machine).makespan_us for name in ("belady", "dynprog", "greedy")
)
print(f"    the best of three planners takes {best_plan:.0f} us")

# %% [markdown]
# 20 us lie between them: there is a better plan, or a better bound, or both.
#
# ## All calls at once: a linear program
#
# Each call alone forces something. Together they may force more. Let bytes flow like water: for
# each call, one number says how much has gone out so far, one how much has come in. Memory, link
# and time are linear in them, so a linear program (LP) finds the least time. Every real schedule
# has such numbers, so the program's optimum is a bound. We compare it with the *exact* optimum,
# which a search can find for steps of a few calls and bytes: once where values may be cut into
# bytes, once where they move whole. **On which share of 12 tiny steps is the bound exact for bytes
# (within 1 %)?**

# %%
lesson.cell("the linear program against an exact search")
tiny_machine = oc.Machine("tiny", 1, 1, link_bytes_per_us=1, link="shared")


def tiny_step(rng):
    """A chain of two stages, of values of 1 to 4 bytes, and calls of 1 to 3 us."""

    def drawn(count, most):
        return [rng.randint(1, most) for _ in range(count)]

    step = oc.chain(drawn(3, 4), drawn(3, 4), drawn(2, 3), drawn(2, 3), [0] * 2, [0] * 2)
    # Its first value is an input here, which need not be there when the step ends.
    return replace(step, variables=(replace(step.variables[0], kind="input"), *step.variables[1:]))


# %%
lesson.predict("share of tiny steps on which the bound is exact")

# %%
rows = []
for seed in range(12):
    rng = random.Random(seed)
    step = tiny_step(rng)
    least, most = (
        oc.trace_minimum_bytes(step, oc.Granule(1)),
        oc.trace_peak_bytes(step, oc.Granule(1)),
    )
    budget = rng.randint(least, most)
    water = oc.fluid_bound(step, budget, tiny_machine, recompute=False).makespan_us
    truth = exact_makespan_us(step, budget)
    whole = exact_makespan_us(step, budget, partial=False)
    rows.append((water, truth, whole))
    print(f"      bound {water:5.2f} us; best in bytes {truth:2d} us, in whole values {whole} us")
exact_share = sum(water > 0.99 * truth for water, truth, _ in rows) / len(rows)
lesson.reveal("share of tiny steps on which the bound is exact", exact_share)

# %% [markdown]
# The bound is never above the best in bytes, and that is never above the best in whole values: the
# linear program relaxes the problem in bytes, which relaxes the problem in whole values. These are
# theorems, and tests of the library.
#
# ## A bound is true of a class of schedules
#
# ResNet-18 on a V100 over PCIe with a budget of 10 %. The bound for schedules that run each call
# once says how long swapping takes *at best*. The planner `prefix` (tutorial 12) runs some calls
# twice. **What is its makespan, as a share of that bound?**

# %%
lesson.cell("what the bound does not cover")
model = oc.models.build("resnet18", num_classes=1000, stem="imagenet")
# `oc.plan` rewrites a trace by itself; a bound must be asked about the same, rewritten trace.
trace = oc.apply_rewrites(oc.trace(model, (256, 3, 224, 224), threads=1), ("fuse", "share_storage"))
gpu = oc.machine("v100-pcie")

# %%
lesson.predict("prefix / bound of swapping")

# %%
tight = oc.resolve_budget(trace, "10%", oc.Granule(1))
# resident: of schedules in which parameters stay where they are
swapping = oc.fluid_bound(trace, tight, gpu, recompute=False, resident=True)
anything = oc.fluid_bound(trace, tight, gpu, recompute=True)
both = oc.plan(trace, tight, "prefix", gpu).makespan_us
share = both / swapping.makespan_us
lesson.reveal("prefix / bound of swapping", share)
for bound in (swapping, anything):
    print(f"    {bound.makespan_us:8.0f} us: {bound.covers}")
print(f"    {both:8.0f} us: the plan, {both / anything.makespan_us:.2f} times the second bound")

# %% [markdown]
# Below 1, and this is no mistake: that bound is about schedules that run every call once, and this
# one does not. A bound without its class is not a statement at all, so `covers` is printed with it.
#
# ## All bounds on one network
#
# At which budgets is a bound more than the computation alone, and how far above it is a planner?
# The linear program sees all calls together, proposition 3 only the fullest moment.

# %%
lesson.cell("bounds against the budget")
shares = (5, 10, 25, 50, 75)
alone_us = compute_us(trace, gpu)
curves = {name: [] for name in ("belady", "LP of swapping", "proposition 3", "LP with recompute")}
for percent in shares:
    budget = oc.resolve_budget(trace, f"{percent}%", oc.Granule(1))
    found = {
        "belady": oc.plan(trace, budget, "belady", gpu).makespan_us,
        "LP of swapping": oc.fluid_bound(
            trace, budget, gpu, recompute=False, resident=True
        ).makespan_us,
        "proposition 3": proposition_3_us(trace, budget, gpu),
        "LP with recompute": oc.fluid_bound(trace, budget, gpu, recompute=True).makespan_us,
    }
    for name, value in found.items():
        curves[name].append((percent, value / alone_us))
    print(f"      {percent:2d} %:", ", ".join(f"{n} {v / alone_us:.3f}" for n, v in found.items()))
images_us = trace.variables[trace.calls[0].ins[0]].nbytes / gpu.in_bytes_per_us
print(f"    the images alone: {1 + images_us / alone_us:.3f}")
lesson.picture(
    "10_bounds.svg",
    pictures.curves_svg(
        "ResNet-18, batch 256, PCIe: a planner and three bounds",
        [pictures.Curve(name, points, dashed=name != "belady") for name, points in curves.items()],
        axes=("budget, % between the least and the peak", "makespan / computation alone"),
        y_low=0.95,
    ),
)

# %% [markdown]
# `belady` is within half a percent of its bound everywhere: where values may only be swapped, next
# to nothing is left to gain. Proposition 3 is true and weak. The bound that allows recomputing
# hardly rises as the budget falls; whether a plan can follow it is the subject of tutorial 12. And
# why does `belady` take 1.035 times the computation even with a budget of 75 %? The images come
# over the link too, before the first call can begin.
#
# ## Exercises
#
# `python 10_the_lower_bound.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. A chain needs 50 bytes more than there is. The link moves 10 bytes per us, one way at a time;
#    the computation takes 8 us. What is the bound of proposition 3, in us?
# 2. Does `belady` get faster on the chain of eight stages if the link moves 2 bytes per us each way
#    at once? ("yes", "no"; think of when the bytes go out, and when they come back)
# 3. A plan has the makespan of its bound. May another plan be faster? ("yes", "no", "only if it is
#    of another class")

# %%
lesson.cell("exercises")
both_ways = oc.Machine("toy", 1, 1, link_bytes_per_us=2, link="duplex")
one_way_us, both_ways_us = (
    oc.plan(chain, 600, "belady", link).makespan_us for link in (machine, both_ways)
)
lesson.exercise("1. proposition 3", lambda a: a == 10, None)
lesson.exercise("2. both ways", lambda a: a == ("yes" if both_ways_us < one_way_us else "no"), None)
lesson.exercise("3. another plan", lambda a: a == "only if it is of another class", None)

# %%
assert compute_us(chain, machine) == 240
assert in_core_bytes == 600 + 500
assert proposition == 500
assert per_call == 250 + 20 + 250
assert both_ways_us == one_way_us, "bytes go out in the forward pass, and come back after it"
assert best_plan == per_call + 20
assert all(water <= truth + 1e-6 for water, truth, _ in rows)
assert all(truth <= whole for _, truth, whole in rows)
assert anything.makespan_us <= both < swapping.makespan_us
belady_curve, swap_curve = curves["belady"], curves["LP of swapping"]
for (_, planned), (_, proved) in zip(belady_curve, swap_curve, strict=True):
    assert proved <= planned * (1 + 1e-9) <= 1.005 * proved
assert abs(belady_curve[-1][1] - (1 + images_us / alone_us)) < 0.001
assert curves["LP with recompute"][0][1] < 1.05, "it hardly rises"
for (_, proved), (_, simple) in zip(swap_curve, curves["proposition 3"], strict=True):
    assert simple <= proved * 1.001
print("\nall asserts passed")
