# %% [markdown]
# # 02 Trace a training step
#
# **Goal:** read a whole training step as data: calls, variables, and how long each variable lives.
# **Prerequisites:** 01. **Minutes:** 15.
# **Paper:** 000, section 3 (function sequence and variable sequence).
#
# Before we can decide what to move out of memory we must know what is in it, and when. A trace
# tells us without running anything: it takes milliseconds and no memory, for any batch size.

# %%
import time

from lesson import Lesson

import ooctrain as oc

pictures, units = oc.pictures, oc.units
lesson = Lesson("02 trace a training step")

# %% [markdown]
# ## Ten calls or a hundred?
#
# LeNet has two convolutions, two pools and three linear layers. **How many calls does one training
# step make**, with the backward pass and the updates of SGD? Guess before you look.

# %%
lesson.cell("trace LeNet")
lesson.predict("calls in a LeNet step")

# %%
model = oc.models.build("lenet", num_classes=10, in_channels=1)
trace = oc.trace(model, (64, 1, 28, 28))
lesson.reveal("calls in a LeNet step", len(trace.calls))

for call in trace.calls[:8]:
    outs = ", ".join(trace.variables[v].name for v in call.outs)
    print(f"      {call.phase:<9}{call.name:<24} -> {outs}")
print(f"      ... and {len(trace.calls) - 8} more")

# %% [markdown]
# Three kinds of calls are easy to forget. The *loss* is a call. Each layer has up to three
# backward calls (gradient of the input, of the weight, of the bias). And each parameter has an
# update, placed right after its gradient, so that the gradient can be freed at once.
#
# ## The variable sequence
#
# Paper 000 flattens the step: for each call, the variables it touches, one after the other. The
# same variable comes again and again; the distance between two occurrences is the time in which it
# is *not* needed. The longer that is, the more swapping the variable out is worth.

# %%
lesson.cell("how far apart are a variable's uses?")
sequence = trace.variable_sequence()
gaps = sorted(
    (
        (b - a, trace.variables[v])
        for v in range(len(trace.variables))
        for a, b in zip(trace.uses[v], trace.uses[v][1:], strict=False)
    ),
    key=lambda pair: -pair[0],
)
print(f"    {len(sequence)} occurrences of {len(trace.variables)} variables")
for gap, variable in gaps[:5]:
    size = units.format_bytes(variable.nbytes)
    print(f"      {variable.name:<20} {size:>9}  rests for {gap} calls ({variable.kind})")

# %% [markdown]
# The longest rests belong to the first layers: what is used first in the forward pass is needed
# last in the backward pass.
#
# ## Memory by hand
#
# Take the smallest step that shows it all: eight equal stages, each value of 100 bytes
# ([docs/one_page.md](../docs/one_page.md)). Stage i reads x_i and writes x_(i+1); its backward call
# reads both, and the gradient y_(i+1), and writes y_i. **How many bytes are there at the fullest
# moment, if nothing leaves before its last use?**

# %%
lesson.cell("eight stages by hand")
lesson.predict("bytes at the fullest moment")

# %%
eight = oc.equal_stages(8)
by_hand = oc.plan(eight, "100%", planner="keep-all", machine=oc.toy_machine())
lesson.reveal("bytes at the fullest moment", by_hand.peak_bytes)
names = [v.name for v in eight.variables]
for call in eight.calls[7:11]:
    ins, outs = (" ".join(names[v] for v in vs) for vs in (call.ins, call.outs))
    print(f"      {call.name:<5}{ins} -> {outs}")

# %% [markdown]
# Nine values x0 to x8 wait when the last stage begins its backward pass, and y8 and y7 join them.
# From then on each backward call lets go of one x and one y.
#
# ## Memory over time
#
# If nothing is ever moved, a variable occupies memory from the call that writes it to the call that
# reads it last. Adding up gives the curve below. **Where is its peak: in the forward pass, at the
# loss, or late in the backward pass?** Guess as a share of the calls: 0 is the first, 1 the last.
# (The *machine* says how long each call takes: it only changes the time axis, not the heights.)

# %%
lesson.cell("the memory curve of ResNet-18 in-core")
lesson.predict("place of the peak")

# %%
resnet = oc.models.build("resnet18", num_classes=10, stem="cifar")
step = oc.trace(resnet, (128, 3, 32, 32))
machine = oc.machine("v100-pcie")
plan = oc.plan(step, "100%", planner="keep-all", machine=machine)
timeline = oc.simulate(plan.schedule, plan.trace, machine)
peak_us = max(timeline.ledger, key=lambda point: point[1])[0]
before = sum(e.end_us <= peak_us for e in timeline.events if e.stream == "C")
place = before / len(plan.trace.calls)
lesson.reveal("place of the peak", place)
loss_place = [call.phase for call in plan.trace.calls].index("loss") / len(plan.trace.calls)
print(
    f"    peak {units.format_bytes(timeline.peak_bytes)}; the loss has the place {loss_place:.2f}"
)

phases = {call.name: call.phase for call in plan.trace.calls}
lesson.picture(
    "02_memory_curve.svg",
    pictures.timelines_svg({"ResNet-18 in-core": timeline}, phases=phases, layers=True),
)

# %% [markdown]
# Up in the forward pass, down in the backward pass: the curve is a tent. In the picture forward
# calls are blue and backward calls brown; the top lane names the layers, once on the way up and
# once, in reverse, on the way down. The dashed line is the loss. The top of the tent is just behind
# it, as the first gradients come before the first activations can go. The curve never falls to
# zero, as the *persistent* variables, parameters and momentum, are there before, during and after
# the step.
#
# ## Batch 1440 on a laptop
#
# Paper 000 trains ResNet-50 at batch 1440 on a GPU with 16 GB. We cannot run that here, but we can
# trace it. **How much memory would it need in-core, in GiB?**

# %%
lesson.cell("trace ResNet-50 at batch 1440")
lesson.predict("GiB in-core")

# %%
started = time.perf_counter()
resnet50 = oc.models.build("resnet50", num_classes=1000, stem="imagenet")
large = oc.trace(resnet50, (1440, 3, 224, 224), threads=2)
seconds = time.perf_counter() - started
in_core = oc.plan(large, 1 << 50, planner="keep-all", machine="v100-16gb-nvlink")
lesson.reveal("GiB in-core", in_core.peak_bytes / 2**30)
print(f"    {len(large.calls)} calls, traced in {seconds:.2f} s without allocating an array")

# %% [markdown]
# ## Exercises
#
# `python 02_trace_a_training_step.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. Which variable of LeNet rests longest? (its name)
# 2. An update of SGD with momentum reads a "param", a "wgrad" (its gradient), and a variable of
#    which third kind? (look at `trace.variables[v].kind` for each v in `call.ins`)
# 3. How many calls of LeNet's step are *impure*, that is, must run exactly once?

# %%
lesson.cell("exercises")
impure = sum(not call.pure for call in trace.calls)
update = next(call for call in trace.calls if call.phase == "update")
(third,) = {trace.variables[v].kind for v in update.ins} - {"param", "wgrad"}
lesson.exercise("1. the longest rest", lambda a: a == gaps[0][1].name, None)
lesson.exercise("2. kind of the third variable", lambda a: a == third, None)
lesson.exercise("3. impure calls", lambda a: a == impure, None)

# %%
assert by_hand.peak_bytes == 11 * 100
assert len(trace.calls) > 30
assert {c.phase for c in trace.calls} == {"forward", "loss", "backward", "update"}
forward_calls = sum(call.phase == "forward" for call in trace.calls)
assert all(trace.uses[v.id][0] < forward_calls / 2 for _, v in gaps[:5]), "the first layers"
assert loss_place <= place < loss_place + 0.1, "the tent's top is just behind the loss"
assert impure == 10, "one update for each of LeNet's ten parameters"
assert in_core.peak_bytes > 7 * 2**34, "more than seven times the paper's 16 GB"
print("\nall asserts passed")
