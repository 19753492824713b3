# %% [markdown]
# # 04 Swapping
#
# **Goal:** see why *when* a variable moves matters more than *which*; understand the three
# streams.
# **Prerequisites:** 02, 03. **Minutes:** 20.
# **Paper:** 000, section 3 (adaptive window); 002, proposition 3 (the bound).
#
# A device has three *streams*, queues that work at the same time: one computes, one copies from
# the device to the host, one copies back. A swap that overlaps with computation is free; one that
# the next computation waits for costs its full duration.

# %%
from lesson import Lesson

import ooctrain as oc

pictures, units = oc.pictures, oc.units
lesson = Lesson("04 swapping")

# %% [markdown]
# ## A chain that we can compute by hand
#
# This is the step of [docs/one_page.md](../docs/one_page.md), which shows it whole.
#
# Eight stages; each writes 100 bytes, runs 10 us forward and 20 us backward. The *link* between
# device and host moves 20 bytes per us in each direction at once (a *duplex* link). The *makespan*
# is the time from the first instruction's beginning to the last one's end. **What is it in-core?**
# Compute it, then look.

# %%
lesson.cell("a chain of eight stages")
lesson.predict("in-core makespan (us)")

# %%
chain = oc.equal_stages(8)  # of 100 bytes, 10 us forward and 20 us backward each
machine = oc.toy_machine(20)
timelines = {}


def run(planner, budget, on=machine):
    """Plans and simulates the chain; remembers the timeline for the picture."""
    plan = oc.plan(chain, budget, planner=planner, machine=on)
    timelines[f"{planner}, {budget} bytes, {on.name}"] = oc.simulate(plan.schedule, plan.trace, on)
    return plan


in_core = run("keep-all", 10_000)
lesson.reveal("in-core makespan (us)", in_core.makespan_us)
print(f"    in-core peak: {in_core.peak_bytes} bytes")

# %% [markdown]
# ## Naive: everything waits for everything
#
# Before each call its inputs come in; after it everything goes out; nothing overlaps. It is
# correct, and it is what one writes first. **How many times slower is it?**

# %%
lesson.cell("naive")
lesson.predict("naive / in-core")

# %%
naive = run("naive", 500)
lesson.reveal("naive / in-core", naive.makespan_us / in_core.makespan_us)

# %% [markdown]
# ## The window
#
# Paper 000 slides a window over the variable sequence. What enters the window is fetched; what a
# call has used and what does not occur again within the window is sent away, but *nobody waits* for
# that copy until its memory is needed. There is one parameter, the size of the window, and no model
# of time. **How close to in-core does it come?**

# %%
lesson.cell("window")
lesson.predict("window / in-core")

# %%
window = run("window", 500)
lesson.reveal("window / in-core", window.makespan_us / in_core.makespan_us)
moved = timelines[f"window, 500 bytes, {machine.name}"]
print(f"    it moved {moved.bytes_out} bytes out and {moved.bytes_in} in, while it computed")

# %% [markdown]
# ## A slow link
#
# Now the link is ten times slower. Bytes are bytes: no order can hide them all. The lower bound
# says what *no* schedule can beat; the distance to it is what a better planner could still gain.

# %%
lesson.cell("a link ten times slower")
slow = oc.toy_machine(2)

# %%
lesson.predict("window / in-core on the slow link")

# %%
window_slow = run("window", 500, slow)
ratio = window_slow.makespan_us / in_core.makespan_us
lesson.reveal("window / in-core on the slow link", ratio)
bound = oc.lower_bound(chain, 500, slow, recompute=False)
print(f"    lower bound ({bound.kind}): {bound.makespan_us:.0f} us")
phases = {call.name: call.phase for call in chain.calls}
lesson.picture("04_streams.svg", pictures.timelines_svg(timelines, budget_bytes=500, phases=phases))

# %% [markdown]
# Look at the picture: naive has holes everywhere, as nothing overlaps; the window on the fast link
# waits for its first input (5 us; in-core it is on the device from the start) and for nothing else;
# on the slow link there are holes again, and under each a copy is still on its way.
#
# ## A real network
#
# ResNet-50 at batch 256 on a V100 in 8 GiB, over PCIe and over NVLink, which is six times as
# fast. In-core it would need more than the smaller of the two GPUs has. **How many times longer
# than in-core does the window take over PCIe?**

# %%
lesson.cell("ResNet-50, batch 256")
model = oc.models.build("resnet50", num_classes=1000, stem="imagenet")
trace = oc.trace(model, (256, 3, 224, 224), threads=2)
results = {}

# %%
lesson.predict("window / in-core, ResNet-50 over PCIe")

# %%
for name in ("v100-pcie", "v100-32gb-nvlink"):
    base = oc.plan(trace, 1 << 40, planner="keep-all", machine=name)
    need, seconds = units.format_bytes(base.peak_bytes), base.makespan_us / 1e6
    print(f"    {name}: in-core needs {need}, {seconds:.2f} s a step")
    for planner in ("naive", "window", "window:size=3"):
        plan = oc.plan(trace, "8GiB", planner=planner, machine=name)
        results[planner, name] = plan.makespan_us / base.makespan_us
        print(f"      {planner:<14} {results[planner, name]:5.2f} times in-core")
    floor = oc.lower_bound(base.trace, "8GiB", name, recompute=False)
    results["bound", name] = floor.makespan_us / base.makespan_us
    print(f"      {'lower bound':<14} {results['bound', name]:5.2f} times in-core")
lesson.reveal("window / in-core, ResNet-50 over PCIe", results["window", "v100-pcie"])

# %% [markdown]
# On NVLink the window hides nearly everything. Over PCIe it cannot: the bound says that there are
# simply too many bytes for any planner that only swaps. Computing values again, instead of moving
# them, is the way out there (tutorial 11).
#
# ## Write it yourself
#
# `window` takes 245 us; the bound is 240. Puzzle a2 (`python puzzles/a2_swap_in_time.py`)
# asks you to write such a list by hand, in text, and draws each attempt.
#
# ## Exercises
#
# `python 04_swapping.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. What is the least budget at which `window` still finds a schedule for the chain? (bytes; the
#    error of a smaller budget tells)
# 2. Give the slow machine a *shared* link (one transfer at a time, `link="shared"`). Is the
#    window's makespan at 500 bytes longer, shorter, or equal? ("longer", "shorter", "equal"; think
#    of when bytes go out, and when they come in)
# 3. How many bytes must be swapped in at least, if the in-core peak is P and the budget is M? (a
#    formula as text, such as "P+M")

# %%
lesson.cell("exercises")
try:
    oc.plan(chain, 1, planner="window", machine=machine)
    least = 1
except oc.Infeasible as error:
    least = error.minimum_bytes
shared = oc.toy_machine(2, "shared")
longer_by = oc.plan(chain, 500, "window", shared).makespan_us - window_slow.makespan_us
change = "equal" if longer_by == 0 else "longer" if longer_by > 0 else "shorter"
lesson.exercise("1. the least budget", lambda a: a == least, None)
lesson.exercise("2. a shared link", lambda a: a == change, None)
lesson.exercise("3. bytes in", lambda a: str(a).replace(" ", "") == "P-M", None)

# %%
assert in_core.makespan_us == 8 * 30
assert in_core.peak_bytes == 1100
assert naive.makespan_us > 1.5 * in_core.makespan_us
assert window.makespan_us < 1.1 * in_core.makespan_us
assert window_slow.makespan_us >= bound.makespan_us >= in_core.makespan_us
assert moved.bytes_in >= in_core.peak_bytes - 500
assert oc.plan(chain, least, "window", machine).peak_bytes <= least
assert change == "equal", "bytes go out in the forward pass and come in in the backward pass"
assert results["window", "v100-32gb-nvlink"] < 1.1
assert results["naive", "v100-pcie"] > results["window", "v100-pcie"] > 2
assert 2 < results["bound", "v100-pcie"] <= results["window", "v100-pcie"]
print("\nall asserts passed")
