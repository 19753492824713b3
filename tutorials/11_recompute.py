# %% [markdown]
# # 11 Recompute
#
# **Goal:** trade time for memory by running forward calls again; see how far the trade goes, and
# why equal stages are a special case.
# **Prerequisites:** 02, 10. **Minutes:** 30.
# **Paper:** 001, sections 2 and 3 (recomputation with swapping); Chen et al. 2016, section 4.1.
#
# A value that is needed again does not have to be kept. It does not have to be sent away either:
# it can be computed again from what it was computed from.

# %%
import math
from collections import Counter

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.functional import concat, relu
from ooctrain.sched.planners.revolve import Splits
from ooctrain.sched.planning.chain_runs import Kind

pictures = oc.pictures
lesson = Lesson("11 recompute")

# %% [markdown]
# ## The step of one page
#
# In [docs/one_page.md](../docs/one_page.md) eight stages swap within 500 bytes and take 245 us
# instead of 240. The same step can do without the link: what is missing is computed again. The
# planner `rotor` finds the best way. **How many times longer than in-core does it take within the
# same 500 bytes?**

# %%
lesson.cell("the same step without a link")
lesson.predict("times longer than in-core")

# %%
eight = oc.equal_stages(8)
swapping, rerunning = (oc.plan(eight, 500, name, oc.toy_machine()) for name in ("window", "rotor"))
alone = oc.plan(eight, 10_000, "keep-all", oc.toy_machine()).makespan_us
lesson.reveal("times longer than in-core", rerunning.makespan_us / alone)
print(f"    in-core {alone:.0f} us, swapping {swapping.makespan_us:.0f} us")
roomier = oc.plan(eight, 600, "rotor", oc.toy_machine())
for plan in (rerunning, roomier):
    again = plan.notes["runs_again"]
    print(f"    rotor in {plan.peak_bytes} bytes: {plan.makespan_us:.0f} us, {again} more runs")

# %% [markdown]
# Expensive, since memory is tight: eight stages make 21 more runs. With 100 bytes more, a third of
# these is enough. `rotor` uses no link, so a slow one does not matter.
#
# ## Segments
#
# Cut 16 stages into k segments. The forward pass keeps only the value at the border of each. The
# backward pass of a segment first runs its stages again, and keeps all of them for a while. So at
# worst k borders and one segment of 16 / k stages are there at once. **Which k needs least?**

# %%
lesson.cell("how many segments")
stages = 16

# %%
lesson.predict("best number of segments")

# %%
held = {k: k + stages / k for k in (1, 2, 4, 8, 16)}
for k, values in held.items():
    print(f"      {k:2d} segments: {values:4.1f} values at once")
best_k = min(held, key=held.get)
lesson.reveal("best number of segments", best_k)

# %% [markdown]
# The square root of the number of stages: 4 segments hold 8 values at once, and one segment 17. The
# price: every stage but those of the last segment runs forward twice. The planner `chen-sqrt` does
# so. On a chain whose backward stages take twice as long as the forward ones, **how much longer
# does a step take? (as a share)**

# %%
lesson.cell("the price of a second forward pass")
machine = oc.Machine("toy", 1, 1, link_bytes_per_us=1)


def least_budget(trace, planner, on=machine):
    """The least budget at which a planner finds a plan."""
    try:
        oc.plan(trace, 1, planner, on)
    except oc.Infeasible as refusal:
        return refusal.minimum_bytes
    return 1


chain = oc.equal_stages(stages)
in_core = oc.plan(chain, 1 << 20, "keep-all", machine)

# %%
lesson.predict("longer by")

# %%
least = least_budget(chain, "chen-sqrt")
segmented = oc.plan(chain, least, "chen-sqrt", machine)
longer = segmented.makespan_us / in_core.makespan_us - 1
lesson.reveal("longer by", longer)
print(f"    memory: {in_core.peak_bytes} bytes in-core, {segmented.peak_bytes} in segments")
timelines = {
    title: oc.simulate(plan.schedule, plan.trace, machine)
    for title, plan in (("in-core", in_core), ("chen-sqrt", segmented))
}
phases = {call.name: call.phase for call in chain.calls}
lesson.picture("11_segments.svg", pictures.timelines_svg(timelines, phases=phases))

# %% [markdown]
# Less than a third: the last segment is not rerun, nor is the last stage of any other segment,
# whose output was kept.
#
# Look at the picture: the triangle of the in-core step becomes a low wall with a tooth for each
# segment, forward stages run between backward ones, and the link does nothing at all. There are
# three teeth, not four: the planner counts gradients too, and with them three segments (of 5, 6 and
# 5 stages) need no more memory than four.
#
# ## More than twice
#
# Why run stages only twice? If they may run more often, fewer values must be kept. Say that c
# values are kept at a time, and that each stage runs up to r times before the run that its backward
# stage needs. The longest chain that can then be differentiated has binomial(c + r, c) stages: 2
# values and 2 runs suffice for 6 stages, 4 and 4 for 70. So memory and runs both grow with the
# logarithm of the length only. The planner `revolve` does it. **What share of `chen-sqrt`'s least
# budget does `revolve` need for 40 stages?**

# %%
lesson.cell("fewer checkpoints, more runs")
long_chain = oc.equal_stages(40)

# %%
lesson.predict("revolve / chen-sqrt, least budget")

# %%
least_of = {name: least_budget(long_chain, name) for name in ("keep-all", "chen-sqrt", "revolve")}
for name, size_bytes in least_of.items():
    plan = oc.plan(long_chain, size_bytes, name, machine)
    print(f"      {name:<10} {size_bytes:5d} bytes, {plan.makespan_us:6.0f} us")
lesson.reveal("revolve / chen-sqrt, least budget", least_of["revolve"] / least_of["chen-sqrt"])

# %% [markdown]
# ## Stages that are not alike
#
# A network is no chain of equal stages: a batch norm is nearly free to run again, a convolution is
# not; early values are large, late ones small. `rotor` finds the best way for a chain with any
# sizes and times, by dynamic programming. Both take longer than in-core. For ResNet-18 at a budget
# of 50 %, **what share of `chen-sqrt`'s extra time is `rotor`'s?**

# %%
lesson.cell("ResNet-18")
model = oc.models.build("resnet18", num_classes=1000, stem="imagenet")
trace = oc.trace(model, (256, 3, 224, 224), threads=1)
gpu = oc.machine("v100-pcie")
names = ("chen-sqrt", "revolve", "rotor")
shares = (30, 40, 50, 60, 75)
base_us = oc.plan(trace, 1 << 40, "keep-all", gpu).makespan_us
extra = {}

# %%
lesson.predict("rotor / chen-sqrt, extra time at 50 %")

# %%
print(f"      {'budget':<10}", *(f"{share:4d} %" for share in shares))
for name in names:
    for share in shares:
        try:
            extra[name, share] = oc.plan(trace, f"{share}%", name, gpu).makespan_us / base_us - 1
        except oc.Infeasible:
            extra[name, share] = None
    row = (extra[name, share] for share in shares)
    print(f"      {name:<10}", *("     -" if value is None else f"{value:6.1%}" for value in row))
lesson.reveal("rotor / chen-sqrt, extra time at 50 %", extra["rotor", 50] / extra["chen-sqrt", 50])
lesson.picture(
    "11_recompute.svg",
    pictures.curves_svg(
        "ResNet-18: the price of computing again",
        [
            pictures.Curve(
                name,
                [
                    (share, None if extra[name, share] is None else 100 * extra[name, share])
                    for share in shares
                ],
            )
            for name in names
        ],
        axes=("budget, % between the least and the peak", "longer than in-core, %"),
    ),
)

# %% [markdown]
# ## Where there is no chain
#
# `rotor` needs a chain: places where a single value crosses from one stage to the next. A U-Net has
# none between its first and its last layers, since the last ones read again what the first ones
# made. Three planners need no chain:
#
# - `dtr` (2021) drops a value whenever room is needed: one that is large, cheap to compute again,
#   and unused for long.
# - `checkmate` (2020) writes the choice as an integer program: for each backward call, what runs
#   again, and what is kept until the next. If its search ends by itself, no choice of that kind is
#   better; if it is interrupted, `plan.notes["gap"]` says how far off it may be.
# - `checkmate-lp` solves the same program in fractions and rounds them. It is done sooner, and
#   proves nothing.
#
# Our network is a small U-Net. Its step has 40 calls; `checkmate` joins the calls of a step that
# has more than 30, so `exact=40` tells it to treat each by itself. **What share of the extra time
# of `dtr` is that of `checkmate` at 80 %?**

# %%
lesson.cell("a graph")


class SmallUNet(oc.nn.Module):
    """Down and up once, and a shortcut across."""

    def __init__(self, planes=8):
        super().__init__()
        self.first = oc.nn.Conv2d(3, planes, 3, padding=1)
        self.down = oc.nn.MaxPool2d(2)
        self.deep = oc.nn.Conv2d(planes, 2 * planes, 3, padding=1)
        self.up = oc.nn.Upsample(scale_factor=2)
        self.join = oc.nn.Conv2d(3 * planes, planes, 3, padding=1)
        self.last = oc.nn.Conv2d(planes, 2, 1)

    def forward(self, x):
        shortcut = relu(self.first(x))
        deep = relu(self.deep(self.down(shortcut)))
        return self.last(relu(self.join(concat([shortcut, self.up(deep)], 1))))


# %%
lesson.predict("checkmate / dtr, extra time at 80 %")

# %%
forked = oc.trace(SmallUNet(), (64, 3, 128, 128), threads=1, loss="mse")
forked_base_us = oc.plan(forked, 1 << 40, "keep-all", gpu).makespan_us
checkmate = "checkmate:exact=40"
forked_names = ("rotor", "dtr", "checkmate-lp:exact=40", checkmate)
forked_shares = (10, 25, 40, 80)
forked_extra, gaps = {}, {}
print(f"      {'budget':<21}", *(f"{share:4d} %" for share in forked_shares))
for name in forked_names:
    for share in forked_shares:
        try:
            plan = oc.plan(forked, f"{share}%", name, gpu)
            forked_extra[name, share] = plan.makespan_us / forked_base_us - 1
            if name == checkmate:
                gaps[share] = plan.notes["gap"]
        except oc.Infeasible:
            forked_extra[name, share] = None
    row, label = (forked_extra[name, share] for share in forked_shares), name.split(",")[0]
    print(f"      {label:<21}", *("     -" if value is None else f"{value:6.1%}" for value in row))
lesson.reveal(
    "checkmate / dtr, extra time at 80 %", forked_extra[checkmate, 80] / forked_extra["dtr", 80]
)
print("    gaps of checkmate:", ", ".join(f"{gap:.1%} at {share} %" for share, gap in gaps.items()))

# %% [markdown]
# `rotor` has no plan at any budget (-). A gap of 0 is a proof: of all choices of its kind none
# computes less. At 80 % `checkmate` has that proof, and `dtr` computes more; so does
# `checkmate-lp`, since rounding loses what the fractions had found. At 25 % the search ended at its
# number of nodes, and `dtr`'s list computes a little less: a better choice than `checkmate`'s may
# exist, but none of its kind whose calls take less by more than the gap. How far that number of
# nodes leads depends on the solver's version.
#
# ## Computing again is exact
#
# A call that runs twice must write the same bits twice. That needs care: batch norm updates its
# running statistics as it runs, dropout draws random numbers. In this library the update of the
# statistics is a call of its own that runs once, and dropout's numbers depend on the step and the
# call's place in it, not on what was drawn before. We run a plan of `rotor` for real and compare
# with in-core training. **How many of the gradients differ?**

# %%
lesson.cell("for real")
lesson.predict("gradients that differ")

# %%
oc.manual_seed(0)
small = oc.models.build("resnet18", num_classes=10, stem="cifar")
step = oc.trace(small, (4, 3, 32, 32))
rng = np.random.default_rng(0)
batch = (rng.standard_normal((4, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, 4))
recomputing = oc.plan(step, "50%", "rotor")
keeping = oc.plan(step, 1 << 40, "keep-all")
again, plain = (oc.execute(plan, small, batch) for plan in (recomputing, keeping))
different = sum(
    not np.array_equal(again.gradients[name], plain.gradients[name]) for name in plain.gradients
)
lesson.reveal("gradients that differ", different)
peaks = recomputing.peak_bytes / keeping.peak_bytes
print(f"    {recomputing.notes['runs_again']} calls ran again, in {peaks:.0%} of the memory")

# %% [markdown]
# ## Exercises
#
# `python 11_recompute.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. 100 stages in 10 segments: how many values are there at once, by the formula k + n / k?
# 2. At most 3 values are kept, the input among them, and each stage runs up to 3 times before its
#    last run. How many stages can be differentiated?
# 3. The forward pass takes 10 ms, the backward pass 20. If every forward call runs twice, by what
#    share does the step get longer? (such as 1 / 2)
# 4. A plan of `checkmate` computes for 320 us, and its program proves that no choice of its kind
#    takes less than 304. What does the note `gap` say?

# %%


def most_runs(length, kept):
    """How often `revolve` runs a stage at most, with `kept` values kept, the input among them."""
    steps = Splits(length).steps(kept - 1)  # the library counts them without the input
    return max(Counter(step.stage for step in steps if step.kind != Kind.BACKWARD).values())


lesson.cell("exercises")
lesson.exercise("1. values at once", lambda a: a == 20, None)
lesson.exercise("2. stages", lambda a: a == math.comb(3 + 3, 3), None)
lesson.exercise("3. longer by", lambda a: abs(a - 1 / 3) < 0.01, None)
lesson.exercise("4. the gap", lambda a: abs(a - (320 - 304) / 320) < 0.001, None)

# %%
assert swapping.makespan_us == 245
assert rerunning.notes["runs_again"] == 21 == 3 * roomier.notes["runs_again"]
assert best_k == math.isqrt(stages)
assert (held[4], held[1]) == (8, 17)
assert 0.1 < longer <= 1 / 3
assert segmented.notes["runs_again"] == (5 - 1) + (6 - 1), "the stages of two segments but the last"
assert segmented.peak_bytes < 0.7 * in_core.peak_bytes
assert timelines["chen-sqrt"].bytes_out == 0
assert least_of["revolve"] < least_of["chen-sqrt"] < least_of["keep-all"]
assert most_runs(20, kept=3) == 3 + 1, "the formula: 20 stages, three runs and the last one"
assert most_runs(21, kept=3) > 3 + 1
assert extra["rotor", 50] <= extra["chen-sqrt", 50]
for share in forked_shares:
    assert forked_extra["rotor", share] is None, "there is no chain"
    exact, greedy = forked_extra[checkmate, share], forked_extra["dtr", share]
    assert (exact is None) == (greedy is None)
    assert exact is None or 0 < exact <= greedy + gaps[share] * (1 + exact)
assert gaps[80] < 1e-9, "proved"
assert gaps[25] > 0, "not proved"
by_rounding = forked_extra["checkmate-lp:exact=40", 80]
assert forked_extra[checkmate, 80] < min(forked_extra["dtr", 80], by_rounding)
assert len(forked.calls) == 40
assert different == 0
assert recomputing.notes["runs_again"] > 0
assert again.loss == plain.loss
print("\nall asserts passed")
