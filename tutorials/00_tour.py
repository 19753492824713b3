# %% [markdown]
# # 00 Tour
#
# **Goal:** train a real network in less memory than it needs, and see each stage on the way.
# **Prerequisites:** Python and a little PyTorch. **Minutes:** 10.
# **Paper:** 000, figure 2 (what a scheduler does).
#
# A step is trained *in-core* if every value stays in the device's memory until its last use.
# *Out-of-core*, some values leave for the host's memory and come back: they are *swapped*.
#
# The whole library in one sentence: *a training step is a straight-line list; correctness and
# memory are decided by the order of the list alone, speed by the streams it runs on.* (A *stream*
# is a queue of work: one computes, one copies out, one copies in, all at once.)
#
# If you like to see all the code of an idea at once, read the six files of `pocket/` first: the
# same system in NumPy alone, without kernels, options and devices.

# %%
from dataclasses import replace

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.sched.schedule import SwapIn

pictures, units = oc.pictures, oc.units
lesson = Lesson("00 tour")

# %% [markdown]
# ## 1. A model and its data
#
# Names are PyTorch's. The digits are real: 1,797 scans of handwriting, by 13 people.

# %%
lesson.cell("a model and real digits")
oc.manual_seed(0)
model = oc.models.build("resnet18", num_classes=10, stem="cifar")
digits = oc.data.load("digits", train=True)
x, y = next(iter(oc.data.DataLoader(digits, 32, shuffle=True)))
print(f"    images {x.shape} {x.dtype}, labels {y[:8]} ...")

# %% [markdown]
# ## 2. Trace: the step as a list of calls
#
# To decide what may leave, one must know which call reads what, and when. A *trace* says so: the
# model runs on shapes instead of numbers, and each call of the step is written down, of the forward
# pass, the loss, the backward pass and the update.

# %%
lesson.cell("trace")
trace = oc.trace(model, x.shape)
print(f"    {len(trace.calls)} calls over {len(trace.variables)} variables")
for call in trace.calls[:4]:
    print(f"      {call.name}")

# %% [markdown]
# ## 3. Plan: the list with swaps, within a budget
#
# A *planner* adds instructions to the list: `out` copies a value to the host, `free` gives its
# memory back, `in` fetches it again. (`run` and `end` are where a call begins and ends.) The
# planner `keep-all` lets nothing leave; `window` is paper 000's, and tutorial 04 explains it. The
# budget "25%" is a quarter of the way from the least that whole calls need to what in-core
# needs, so it is more than a quarter of what in-core needs. **What share of the in-core peak will
# that be?**

# %%
lesson.cell("plan")
lesson.predict("budget / in-core peak")

# %%
in_core = oc.plan(trace, "100%", planner="keep-all")
plan = oc.plan(trace, "25%", planner="window")
lesson.reveal("budget / in-core peak", plan.peak_bytes / in_core.peak_bytes)
for index in range(8):
    print(f"      {plan.schedule.describe(index, plan.trace)}")
print(f"      ... {len(plan.schedule)} instructions in all")

# %% [markdown]
# ## 4. Verify: a proof, not a hope
#
# The verifier knows no planner. It walks the list and checks every rule: nothing is read that is
# not there, nothing is lost, the budget holds at every instruction. We leave out the last `SwapIn`;
# the verifier says where the list goes wrong.

# %%
lesson.cell("verify, then break it")
oc.verify(plan, trace, "25%")
print("    the plan is legal")
instructions = plan.schedule.instructions
*_, last_fetch = (i for i, step in enumerate(instructions) if isinstance(step, SwapIn))
without_it = instructions[:last_fetch] + instructions[last_fetch + 1 :]
broken = replace(plan.schedule, instructions=without_it)
try:
    oc.verify(broken, plan.trace, plan.peak_bytes)
    caught = None
except oc.ScheduleError as error:
    caught = error
    print("   ", str(error).replace("\n", "\n    "))

# %% [markdown]
# ## 5. Simulate: how long would it take elsewhere?
#
# The simulator gives each instruction a beginning and an end on a machine that we need not have.
# The picture shows, for each of two machines, the three streams; below them the bytes on the
# device, which never rise above the budget.

# %%
lesson.cell("simulate on two machines")
timelines = {}
for name in ("v100-pcie", "v100-32gb-nvlink"):
    timelines[name] = oc.simulate(plan.schedule, plan.trace, oc.machine(name))
    print(f"    {name:<17} {units.format_us(timelines[name].makespan_us)} a step")
phases = {call.name: call.phase for call in plan.trace.calls}
lesson.picture(
    "00_tour.svg", pictures.timelines_svg(timelines, budget_bytes=plan.peak_bytes, phases=phases)
)

# %% [markdown]
# ## 6. Execute: for real, on an arena of exactly that many bytes
#
# Data really moves between two memories: what has left is gone until it is fetched again. **How
# many of the 11,173,962 gradients differ from in-core?**

# %%
lesson.cell("execute")
lesson.predict("differing gradients")

# %%
small = oc.execute(plan, model, (x, y))
full = oc.execute(in_core, model, (x, y))
differing = sum(int((small.gradients[n] != full.gradients[n]).sum()) for n in full.gradients)
lesson.reveal("differing gradients", differing)
print(f"    loss {small.loss:.6f} and {full.loss:.6f}")
print(f"    moved out {units.format_bytes(small.timeline.bytes_out)}, in-core moved none")

# %% [markdown]
# ## 7. Train
#
# `Trainer` does all of this once, and then runs the list for each batch.
#
# Its "25%" is another number of bytes than that of section 3, as a percentage lies between the
# least and the peak of *one* step, and this is another step. `oc.trace` assumes SGD with momentum
# where it is told nothing; the optimizer below has none. A momentum is a second copy of all
# parameters that rests on the device, so without it both ends are lower. **How much less is this
# 25 %, in MiB?**

# %%
lesson.cell("train five steps within the budget")
lesson.predict("MiB less than in section 3")

# %%
with oc.Trainer(
    model, optimizer=oc.optim.SGD(model.parameters(), lr=0.02), budget="25%"
) as trainer:
    losses = [trainer.step(x, y) for _ in range(5)]
    peak = trainer.timeline.peak_bytes
    predicted = trainer.plan.peak_bytes
print("    losses", " ".join(f"{loss:.3f}" for loss in losses))
lesson.reveal("MiB less than in section 3", round((plan.peak_bytes - predicted) / units.MIB))
resting = (trace.variables[v] for v in trace.initial)
momentum = sum(v.nbytes for v in resting if "momentum" in v.name)
print(f"    the momentum alone has {units.format_bytes(momentum)}")
print(f"    peak predicted {units.format_bytes(predicted)}, measured {units.format_bytes(peak)}")

# %% [markdown]
# ## Exercises
#
# `python 00_tour.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. Which rule did the broken list violate? (its code, as printed above)
# 2. How many bytes lie between the predicted and the measured peak?
# 3. Plan the step with `planner="naive"`, which waits for every copy. How many times longer is its
#    step on "v100-pcie" than the window's? (`.makespan_us`; to the nearest whole number)

# %%
lesson.cell("exercises")
naive = oc.plan(trace, "25%", planner="naive", machine="v100-pcie")
times = round(naive.makespan_us / timelines["v100-pcie"].makespan_us)
lesson.exercise("1. the rule", lambda a: a == caught.rule, None)
lesson.exercise("2. the difference", lambda a: a == peak - predicted, None)
lesson.exercise("3. naive against window", lambda a: a == times, None)

# %%
assert plan.peak_bytes < 0.75 * in_core.peak_bytes
assert caught.rule == "R201", "a call reads what is not there"
assert sum(gradient.size for gradient in full.gradients.values()) == 11_173_962
assert differing == 0
assert small.timeline.bytes_in > 0, "and yet values went out and came back"
assert small.loss == full.loss
assert all(np.array_equal(small.state[n], full.state[n]) for n in full.state)
assert losses[-1] < losses[0]
assert peak == predicted
print("\nall asserts passed")
