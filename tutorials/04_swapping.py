# %% [markdown]
# # 04 Swapping
#
# **Goal:** see why *when* a variable moves matters more than *which*; understand the three
# streams.
# **Prerequisites:** 02, 03. **Minutes:** 20.
# **Paper:** 000, section 3 (adaptive window); 002, proposition 3 (the bound).
#
# A device can compute, copy out and copy in at the same time. A swap costs nothing if it happens
# beside a computation, and all of its time if the next computation waits for it.

# %%
from lesson import Lesson

import ooctrain as oc
from ooctrain.report.svg import timelines_svg
from ooctrain.units import format_bytes

lesson = Lesson("04 swapping")

# %% [markdown]
# ## A chain that we can compute by hand
#
# Eight stages; each writes 100 bytes, runs 10 us forward and 20 us backward. The link moves 20
# bytes per us in each direction at once. How long does the chain take in-core? Compute it, then
# look.

# %%
lesson.cell("a chain of eight stages")
stages = 8
lesson.predict("in-core makespan (us)", guess=8 * 30)
chain = oc.chain(
    x=[100] * (stages + 1),
    y=[100] * (stages + 1),
    u_forward=[10] * stages,
    u_backward=[20] * stages,
    extra_forward=[0] * stages,
    extra_backward=[0] * stages,
)
machine = oc.Machine(
    "toy", flops_per_us=1, memory_bytes_per_us=1, link_bytes_per_us=20, link="duplex"
)
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
lesson.predict("naive / in-core", guess=2)
naive = run("naive", 500)
lesson.reveal("naive / in-core", naive.makespan_us / in_core.makespan_us)

# %% [markdown]
# ## The window
#
# Paper 000 slides a window over the variable sequence. What enters the window is fetched; what a
# call has used and what does not come again within the window is sent away, but *nobody waits* for
# it until its memory is needed. One parameter, no model of time. **How close to in-core does it
# come?**

# %%
lesson.cell("window")
lesson.predict("window / in-core", guess=1.2)
window = run("window", 500)
lesson.reveal("window / in-core", window.makespan_us / in_core.makespan_us)
moved = timelines[next(reversed(timelines))]
print(f"    it moved {moved.bytes_out} bytes out and {moved.bytes_in} in, beside the computation")

# %% [markdown]
# ## A slow link
#
# Now the link is ten times slower. Bytes are bytes: no order can hide them all. The lower bound
# says what *no* schedule can beat; the distance to it is what a better planner could still gain.

# %%
lesson.cell("a link ten times slower")
slow = oc.Machine("slow toy", 1, 1, link_bytes_per_us=2, link="duplex")
lesson.predict("window / in-core on the slow link", guess=2)
window_slow = run("window", 500, slow)
ratio = window_slow.makespan_us / in_core.makespan_us
lesson.reveal("window / in-core on the slow link", ratio)
bound = oc.lower_bound(chain, 500, slow, recompute=False)
print(f"    lower bound ({bound.kind}): {bound.makespan_us:.0f} us")
phases = {call.name: call.phase for call in chain.calls}
lesson.picture("04_streams.svg", timelines_svg(timelines, budget_bytes=500, phases=phases))

# %% [markdown]
# Look at the picture: in the slow run the compute lane has holes, and under each hole a copy is
# still on its way.
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
lesson.predict("window / in-core, ResNet-50 over PCIe", guess=1.5)
for name in ("v100-pcie", "v100-32gb-nvlink"):
    base = oc.plan(trace, 1 << 40, planner="keep-all", machine=name)
    need, seconds = format_bytes(base.peak_bytes), base.makespan_us / 1e6
    print(f"    {name}: in-core needs {need}, {seconds:.2f} s a step")
    for planner in ("naive", "window", "window:size=3"):
        plan = oc.plan(trace, "8GiB", planner=planner, machine=name)
        results[planner, name] = plan.makespan_us / base.makespan_us
        print(f"      {planner:<14} {results[planner, name]:5.2f} times in-core")
lesson.reveal("window / in-core, ResNet-50 over PCIe", results["window", "v100-pcie"])

# %% [markdown]
# On NVLink the window hides nearly everything. Over PCIe it cannot: there are simply too many
# bytes. Recomputing is the way out there, in a later tutorial.
#
# ## Exercises
#
# 1. What is the least budget at which `window` still finds a schedule for the chain? (bytes; the
#    error of a smaller budget tells)
# 2. With a *shared* link (one transfer at a time), is the chain's window makespan at 500 bytes on
#    the slow machine longer, shorter, or equal? ("longer", "shorter", "equal")
# 3. How many bytes must be swapped in at least, if the in-core peak is P and the budget is M? (a
#    formula as text, such as "P+M")

# %%
lesson.cell("exercises")
try:
    oc.plan(chain, 1, planner="window", machine=machine)
    least = 1
except oc.Infeasible as error:
    least = error.minimum_bytes
lesson.exercise("1. the least budget", lambda a: a == least, None)
lesson.exercise("2. a shared link", lambda a: a == "longer", None)
lesson.exercise("3. bytes in", lambda a: str(a).replace(" ", "") == "P-M", None)

# %%
shared = oc.Machine("shared toy", 1, 1, link_bytes_per_us=2, link="shared")
assert in_core.makespan_us == 8 * 30
assert naive.makespan_us > 1.5 * in_core.makespan_us
assert window.makespan_us < 1.1 * in_core.makespan_us
assert window_slow.makespan_us >= bound.makespan_us >= in_core.makespan_us
assert moved.bytes_in >= in_core.peak_bytes - 500
assert oc.plan(chain, 500, "window", shared).makespan_us >= window_slow.makespan_us
assert results["window", "v100-32gb-nvlink"] < results["naive", "v100-32gb-nvlink"]
print("\nall asserts passed")
