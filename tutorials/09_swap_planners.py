# %% [markdown]
# # 09 Swap planners
#
# **Goal:** take a swap planner apart into its three decisions: what leaves, when it moves, how much
# at a time; see which of them is worth most, and what a better order of the calls adds.
# **Prerequisites:** 04. **Minutes:** 30.
# **Paper:** 002, sections 3 and 4 (greedy, dynamic program); 000 (window); 001 (LMS).
#
# About a dozen published planners do nothing but swap. They look very different, but they are
# different answers to the same three questions.

# %%
import random
from itertools import permutations

from lesson import Lesson

import ooctrain as oc
from ooctrain.step.builder import TraceBuilder
from ooctrain.testing.random_traces import FakeOp

pictures = oc.pictures
lesson = Lesson("09 swap planners")

# %% [markdown]
# ## What leaves: memory is a cache
#
# A call needs its values on the device, as a processor needs its lines in the cache. Two rules say
# which value leaves when room is needed. *Least recently used* looks back. *Belady's rule* looks
# ahead: the value that is needed last leaves first, and no rule has fewer misses. A training step
# reads the values of 8 layers forward, then backward. The cache has 4 places. **By what factor does
# the rule that looks back miss more often than the rule that looks ahead?**

# %%
lesson.cell("two caches")


def misses(accesses, places, rule):
    """How often a value is not there when it is accessed."""
    there, count = [], 0  # the least recently used first
    for now, value in enumerate(accesses):
        if value in there:
            there.remove(value)
        else:
            count += 1
            if len(there) == places:
                there.remove(rule(there, accesses[now:]))
        there.append(value)
    return count


def least_recently_used(there, future):
    """The rule that looks back: the first of the list, as the list is kept in order of use."""
    return there[0]


def belady(there, future):
    """The rule that looks ahead: the value whose next access is the farthest, or never comes."""
    return max(there, key=lambda value: future.index(value) if value in future else len(future))


layers = list(range(8))
there_and_back = layers + layers[::-1]

# %%
lesson.predict("misses looking back / ahead, there and back")

# %%
back, ahead = (misses(there_and_back, 4, rule) for rule in (least_recently_used, belady))
print(f"    looking back: {back} misses; looking ahead: {ahead}")
lesson.reveal("misses looking back / ahead, there and back", back / ahead)

# %% [markdown]
# No difference! On the way back, what was used last is needed first, so the rule that looks back
# happens to see the future. It is the shape of training that makes it so. Read the layers in the
# same order twice, as two *forward* passes do.

# %%
lesson.cell("the same layers, twice forward")
lesson.predict("misses looking back / ahead, twice forward")

# %%
round_and_round = layers + layers
back_twice, ahead_twice = (
    misses(round_and_round, 4, rule) for rule in (least_recently_used, belady)
)
print(f"    looking back: {back_twice} misses; looking ahead: {ahead_twice}")
lesson.reveal("misses looking back / ahead, twice forward", back_twice / ahead_twice)

# %% [markdown]
# ## When it moves
#
# The planner `lru` is demand paging, as CUDA's Unified Memory does it: a call that lacks something
# stops the step until it is there. (Its pages have 2 MiB; here they have one byte, as values have
# only 100.) `vdnn-all` (vDNN, 2016) sends out the input of every layer while that layer runs.
# `belady` moves the same bytes as `lru`, each as soon as it may. On the chain of tutorial 04 with a
# budget of 600 bytes: **how many times longer does `lru` take than `belady`?**

# %%
lesson.cell("the same bytes, at other times")
chain = oc.equal_stages(8)
machine = oc.Machine("toy", 1, 1, link_bytes_per_us=10, link="duplex")

# %%
lesson.predict("lru / belady, makespan")

# %%
timelines = {}
for name in ("lru:page_bytes=1", "vdnn-all", "belady"):
    plan = oc.plan(chain, 600, name, machine)
    timelines[name] = oc.simulate(plan.schedule, plan.trace, machine)
    moved = timelines[name].bytes_out
    print(f"      {name:<16} {plan.makespan_us:5.0f} us, {moved} bytes out")
paging, careful = timelines["lru:page_bytes=1"], timelines["belady"]
lesson.reveal("lru / belady, makespan", paging.makespan_us / careful.makespan_us)
phases = {call.name: call.phase for call in chain.calls}
lesson.picture("09_when.svg", pictures.timelines_svg(timelines, budget_bytes=600, phases=phases))

# %% [markdown]
# The picture shows it: with `lru` the link idles while a call runs, and no call runs while the link
# works. `vdnn-all` copies while it computes, but each layer waits for the copy beside the one
# before it, and it copies all inputs but the last, whether room is needed or not.
#
# ## Which, when stages are not alike
#
# In that chain it hardly matters which values leave, as all are alike. In a network it does. Paper
# 002's `greedy` sends away the first activations of the chain until there is room: they have the
# longest way round. `dynprog`, a dynamic program, looks for the set with the least idle time. Both
# move whole values. Over 40 random chains, at a budget of 25 %: **in which share of them is
# `dynprog` faster?**

# %%
lesson.cell("greedy against the dynamic program")


def random_chain(rng, stages=7):
    """A chain whose stages differ in size and time."""
    sizes = [rng.randint(10, 100) for _ in range(stages + 1)]
    times = [rng.randint(2, 12) for _ in range(stages)]
    return oc.chain(
        x=sizes,
        y=sizes,
        u_forward=times,
        u_backward=[2 * time for time in times],
        extra_forward=[0] * stages,
        extra_backward=[0] * stages,
    )


# %%
lesson.predict("share of chains on which dynprog wins")

# %%
half_duplex = oc.Machine("one way at a time", 1, 1, link_bytes_per_us=6, link="shared")
faster, slower, gains = 0, 0, []
for number in range(40):
    step = random_chain(random.Random(number))
    view = oc.chain_view(step, half_duplex)
    least, most = view.minimum()[0], view.peak()[0]
    budget = least + (most - least) // 4  # what "25%" means
    times = {
        name: oc.plan(step, budget, name, half_duplex).makespan_us for name in ("greedy", "dynprog")
    }
    faster += times["dynprog"] < times["greedy"]
    slower += times["dynprog"] > times["greedy"]
    gains.append(times["greedy"] / times["dynprog"])
lesson.reveal("share of chains on which dynprog wins", faster / 40)
print(f"    it loses on {slower}; greedy takes up to {max(gains):.2f} times as long")

# %% [markdown]
# Rarely, on chains like these, and then by up to an eighth. It may even lose: it plans in a model
# in which values leave in order and come back in order, and only then is the list written for the
# real machine. If values could be cut, `greedy` would be the best rule there is (paper 002 proves
# it).
#
# ## How much at a time
#
# A value need not move as a whole. `belady` moves exactly the excess, and cuts it into pieces, so
# that the first ones make room while the last ones still travel. A *granule* says how the allocator
# rounds sizes, and whether values may move in parts; with `ranges=False` they may not. ResNet-18 on
# a V100 over PCIe, at a budget of 50 %: **how many times longer does `belady` take with whole
# activations?**

# %%
lesson.cell("whole activations against pieces")
model = oc.models.build("resnet18", num_classes=1000, stem="imagenet")
trace = oc.trace(model, (256, 3, 224, 224), threads=1)

# %%
lesson.predict("whole / pieces, makespan")

# %%
whole = oc.plan(trace, "50%", "belady", "v100-pcie", oc.Granule(1, ranges=False))
pieces = oc.plan(trace, "50%", "belady", "v100-pcie")  # oc.Granule(1): any range of bytes
lesson.reveal("whole / pieces, makespan", whole.makespan_us / pieces.makespan_us)

# %% [markdown]
# ## All of them on one network
#
# The same network at four budgets, as multiples of the in-core step. Two names are new: `lms-auto`
# (paper 001) sends out each value that is read much later, and `window-cyclic` is tutorial 04's
# window, with what its paper leaves open (its size, say) chosen by simulation.

# %%
lesson.cell("planners against the budget")
names = ("lru", "vdnn-all", "lms-auto", "window-cyclic", "belady")
shares = (10, 25, 50, 75)
in_core = oc.plan(trace, 1 << 40, "keep-all", "v100-pcie").makespan_us
slowdown = {}
print(f"      {'budget':<14}", *(f"{share:4d} %" for share in shares))
for name in names:
    for share in shares:
        plan = oc.plan(trace, f"{share}%", name, "v100-pcie")
        slowdown[name, share] = plan.makespan_us / in_core
    print(f"      {name:<14}", *(f"{slowdown[name, share]:6.2f}" for share in shares))
lesson.picture(
    "09_planners.svg",
    pictures.curves_svg(
        "ResNet-18, batch 256, PCIe: times the in-core step",
        [
            pictures.Curve(name, [(share, slowdown[name, share]) for share in shares])
            for name in names
        ],
        axes=("budget, % between the least and the peak", "makespan / in-core"),
        y_low=0.9,
    ),
)

# %% [markdown]
# `vdnn-all` is a flat line: it moves everything, whatever the budget. Of the others, `lru` is the
# slowest, as its copies do not overlap with the computation (the question *when*). No planner is
# faster than `belady`: its copies overlap, and it moves parts of values where `lms-auto` and
# `window-cyclic` move whole ones (*how much*).
#
# ## In which order the calls run
#
# All of them run the calls in the program's order. Where a step has branches, other orders give the
# same results, and some of them hold less at once: what is not there need not move. In this step
# three branches each begin with 80 bytes and end with 10, and the program begins all of them before
# it finishes the first. `reorder` is not a planner but a *rewrite* of the step: it looks for an
# order that holds less, before any planner is asked. **How many times longer does `belady` take in
# the program's order than in that one, with a budget of 140 bytes?**

# %%
lesson.cell("two orders of the same calls")


def branches():
    """Three branches, all begun before any of them is finished."""
    builder = TraceBuilder()
    x = builder.variable("x", (10,), "uint8", kind="input")
    wide = [builder.variable(f"wide {n}", (80,), "uint8") for n in "abc"]
    narrow = [builder.variable(f"narrow {n}", (10,), "uint8") for n in "abc"]
    work = FakeOp()  # an operation that only takes time
    for n, out in zip("abc", wide, strict=True):
        builder.call(f"begin {n}", work, (x,), (out,), duration_ns=10_000)
    for n, begun, out in zip("abc", wide, narrow, strict=True):
        builder.call(f"finish {n}", work, (begun,), (out,), duration_ns=10_000)
    y = builder.variable("y", (10,), "uint8")
    builder.call("join", work, tuple(narrow), (y,), duration_ns=10_000)
    return builder.build()


# %%
lesson.predict("program's order / better order, makespan")

# %%
in_program_order = branches()
in_better_order = oc.apply_rewrites(in_program_order, ("reorder",))
held, taken_us = [], []
for step in (in_program_order, in_better_order):
    held.append(oc.trace_peak_bytes(step, oc.Granule(1)))
    taken_us.append(oc.plan(step, 140, "belady", machine, rewrites=()).makespan_us)
    names_in_order = ", ".join(call.name for call in step.calls)
    print(f"      {held[-1]} bytes in-core, {taken_us[-1]:.0f} us: {names_in_order}")
lesson.reveal("program's order / better order, makespan", taken_us[0] / taken_us[1])

# %% [markdown]
# The better order finishes a branch before it begins the next, and no value has to leave. A
# training step gains less: between its last forward and its first backward call nearly all
# activations are alive, in any order. What helps there is to run weight gradients early, as they
# are the last to read an activation. [docs/planners.md](../docs/planners.md) has the figures.
#
# ## Exercises
#
# `python 09_swap_planners.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. Layers 0 1 2 3, there and back, a cache of 2 places: how many misses has Belady's rule?
# 2. Layers 0 1 2, three times forward, 2 places, least recently used: how many misses?
# 3. On the chain at 600 bytes, what is the slowest link (in whole bytes per us) on which `belady`
#    still takes 240 us?
# 4. Three branches run one after the other. A begins with 4 bytes and ends with 3, B with 12 and 2,
#    C with 8 and 4; while a branch ends, both of its values are there, and what it ends with stays.
#    Which order holds least at once? (such as ABC)

# %%
lesson.cell("exercises")


def hidden(bytes_per_us):
    """Whether the link hides all transfers of the chain."""
    link = oc.Machine("toy", 1, 1, link_bytes_per_us=bytes_per_us, link="duplex")
    return oc.plan(chain, 600, "belady", link).makespan_us == 240


def most_held(order):
    """The most bytes at one time, if the branches run in this order."""
    wide_and_narrow, stays, most = {"A": (4, 3), "B": (12, 2), "C": (8, 4)}, 0, 0
    for branch in order:
        wide, narrow = wide_and_narrow[branch]
        most = max(most, stays + wide + narrow)
        stays += narrow
    return most


best_order = "".join(min(permutations("ABC"), key=most_held))
slowest = next(rate for rate in range(1, 20) if hidden(rate))
lesson.exercise("1. misses there and back", lambda a: a == 6, None)
lesson.exercise("2. misses three times forward", lambda a: a == 9, None)
lesson.exercise("3. the slowest link", lambda a: a == slowest, None)
lesson.exercise("4. the order of branches", lambda a: str(a).upper() == best_order, None)

# %%
assert back == ahead == 12
assert back_twice > ahead_twice
assert misses([0, 1, 2, 3, 3, 2, 1, 0], 2, belady) == 6
assert misses([0, 1, 2] * 3, 2, least_recently_used) == 9
assert paging.bytes_out == careful.bytes_out, "the same bytes"
assert paging.makespan_us > careful.makespan_us == 240
assert timelines["vdnn-all"].bytes_out == 700
assert 0 < faster / 40 < 0.2, "rarely"
assert slower > 0, "it may lose"
assert 1.1 < max(gains) < 1 + 1 / 8
assert whole.makespan_us > 1.1 * pieces.makespan_us
for share in shares:
    *others, best = (slowdown[name, share] for name in names if name != "vdnn-all")
    assert others[0] == max(others), "lru is the slowest"
    assert best <= min(others) * 1.001, "and none is faster than belady"
assert len({round(slowdown["vdnn-all", share], 3) for share in shares}) == 1
assert held[1] < 140 < held[0], "in the better order nothing has to move"
assert taken_us[0] > 1.2 * taken_us[1]
assert sorted(map(most_held, permutations("ABC")))[:2] == [14, 17], "one order is the best"
print("\nall asserts passed")
