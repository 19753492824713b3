# %% [markdown]
# # 16 Bigger than memory
#
# **Goal:** train on an image that the device cannot hold, read from a file row by row.
# **Prerequisites:** 09, 14. **Minutes:** 25.
# **Paper:** none; compare 003 (whose images fit on the device).
#
# Bands (tutorial 14) let the inner tensors of a network be larger than memory. What remains is
# what lies at their ends: the image itself. A slide of a pathologist has 20,480 x 20,480 pixels,
# 1.2 GiB as bytes and 4.7 GiB as float32. Why should a band of it wait for the rest?

# %%
import tempfile
from pathlib import Path

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.step.blocks import block_of, tensor_of

nn, pictures, units = oc.nn, oc.pictures, oc.units
lesson = Lesson("16 bigger than memory")

# %% [markdown]
# ## An image in a file
#
# We write an image of 512 x 512 pixels; a real one would lie there already. `RowImage` opens a file
# and reads nothing. It takes `.npy` files and TIFF, in stripes or tiles. The rows of an image that
# lies channels-last, (H, W, C), are one piece of its file.

# %%
lesson.cell("an image in a file")
SIDE = 512
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "slide.npy"
rng = np.random.default_rng(0)
np.save(path, rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))
image = oc.data.RowImage(path)
print(f"    {image}: {units.format_bytes(path.stat().st_size)} in the file")
window = image.rows(0, 100, 104)
print(f"    rows 100 to 104: {window.shape}, of which pixel 0 is {np.asarray(window)[0, :, 0, 0]}")

# %%
lesson.predict("the image as float32, in MiB")

# %%
floats = int(np.prod(image.shape)) * 4 / 2**20
lesson.reveal("the image as float32, in MiB", floats)

# %% [markdown]
# Bytes travel as bytes: `nn.FromBytes` is the model's first layer, so they become floats on the
# device, band by band, and a planner may compute that again instead of keeping it.
#
# ## What the device must hold
#
# A small network in the style of VGG. **How much memory does the untiled step need at least, in
# MiB, whatever is swapped and recomputed?** (One call's tensors must be there together: the
# convolution of 8 channels into 8.)

# %%
lesson.cell("the least memory")


def network():
    oc.manual_seed(0)
    layers, channels = [nn.FromBytes(127.5, 127.5)], 3
    for outputs in (8, 8, 16):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


model = network()
step = oc.trace(model, image.shape, optimizer=None, threads=2, conv_algorithm="direct")
BANDS = ("bands:16:0:15", "share_storage")
banded = oc.apply_rewrites(step, BANDS)

# %%
lesson.predict("least memory of the untiled step, MiB")

# %%
least = {"untiled": oc.trace_minimum_bytes(step), "in bands": oc.trace_minimum_bytes(banded)}
for name, size in least.items():
    print(f"      {name:8}: least {units.format_bytes(size)}")
print(f"      in core : {units.format_bytes(oc.trace_peak_bytes(step))}")
lesson.reveal("least memory of the untiled step, MiB", least["untiled"] / 2**20)

# %% [markdown]
# ## Blocks
#
# In the rewritten step there is no variable `input`. There are 16, one for each band, and the call
# of a band reads as many *blocks* as its rows lie in. A block is a variable like any other: so
# planner, verifier, simulator and executor need to know nothing new. Inside the call almost nothing
# is copied. Rows whose windows lie in one block are computed from a view of it; only where a window
# lies over a border are the few rows copied next to each other.
#
# A second segment, with bands of its own, begins behind the second pooling. What lies between the
# two segments lies in the blocks of the first one; nothing is ever put together. **From how many
# values does the third band of the second segment read its rows?**

# %%
lesson.cell("blocks")
two = oc.apply_rewrites(step, ("bands:16:0:10", "bands:5:11:15", "share_storage"))
inputs = [v.name for v in two.variables if v.kind == "input" and block_of(v.name)]
print(f"    the image: {inputs[0]}, {inputs[1]}, ... {len(inputs)} blocks")

# %%
lesson.predict("values that hold the rows of one band")

# %%
reads = [call for call in two.calls if call.name.startswith("11.fwd")]
names = [two.variables[v].name for v in reads[2].ins]
border = [name for name in names if tensor_of(name) == "10.out"]
print(f"    {reads[2].name} reads {', '.join(border)}")
lesson.reveal("values that hold the rows of one band", len(border))
wholes = {"input", "10.out", "10.out.grad"} & {v.name for v in two.variables}
print(f"    put together as a whole: {', '.join(wholes) or 'nothing'}")

# %% [markdown]
# Who has no rule for rows gets a whole: here the average over the whole image reads the output of
# the last pooling, and that is put together, band by band.
#
# ## Planners at work
#
# The budget is 3 MiB: as large as the image would be as float32, and an eighth of what the untiled
# step needs at least. Which planner is fastest? Everything is a band, so all of them can.

# %%
lesson.cell("planners at work")
BUDGET = 3 << 20
plans = {
    name: oc.plan(step, BUDGET, planner=name, machine="cpu-generic", rewrites=BANDS)
    for name in ("naive", "window", "belady", "prefix")
}
in_core = oc.plan(step, "100%", planner="keep-all", machine="cpu-generic")

# %%
lesson.predict("time of belady in 3 MiB / in core")

# %%
for name, plan in plans.items():
    copied = oc.simulate(plan, plan.trace, "cpu-generic").bytes_in
    print(
        f"      {name:7}: {plan.makespan_us / in_core.makespan_us:5.2f} x in core, "
        f"{units.format_bytes(copied):>8} copied in, peak {units.format_bytes(plan.peak_bytes)}"
    )
slower = plans["belady"].makespan_us / in_core.makespan_us
lesson.reveal("time of belady in 3 MiB / in core", slower)

# %% [markdown]
# ## Bands over time
#
# One row for each layer, time to the right: which band is at work? Forward the bands go down the
# image, each through all layers; backward they come up again. That is why an image can be read from
# its file once, from top to bottom.

# %%
lesson.cell("bands over time")
timeline = oc.simulate(plans["belady"], plans["belady"].trace, "cpu-generic")
BANDS_MADE, strips = 16, []
for layer in ("1", "6", "11"):
    for kind, title in (("fwd", "forward"), ("grad_weight", "backward")):
        pieces = []
        for event in timeline.events:
            block = block_of(event.name)
            if event.stream == "C" and block and block.tensor == f"{layer}.{kind}":
                band = len(pieces) if kind == "fwd" else BANDS_MADE - 1 - len(pieces)
                start_ms, end_ms = event.start_us / 1e3, event.end_us / 1e3
                pieces.append(pictures.Piece(start_ms, end_ms, event.name, kind=band % 6))
        strips.append((f"conv {layer} {title}", pieces))
lesson.picture(
    "16_bands_over_time.svg",
    pictures.strips_svg(
        "A step in 16 bands within 3 MiB",
        strips,
        extent=timeline.makespan_us / 1e3,
        axis="ms",
    ),
)

# %% [markdown]
# ## Executed
#
# A step within 3 MiB of "device" memory, blocks read from the file, compared with the untiled step
# in core on the whole image. The loss has the same bits; gradients of weights are sums over bands.

# %%
lesson.cell("executed")
label = np.array([3])
plan = oc.plan(step, BUDGET, planner="belady", rewrites=BANDS, allocator="va:chunk=16KiB")
found = oc.execute(plan, model, (image, label), allocator="va:chunk=16KiB")
whole = np.asarray(image.rows(0, 0, SIDE))
expected = oc.execute(oc.plan(step, "100%", planner="keep-all"), model, (whole, label))
print(f"    loss {found.loss!r} and {expected.loss!r}")
peak_bytes = found.timeline.peak_bytes
print(
    f"    peak {units.format_bytes(peak_bytes)}, as planned {units.format_bytes(plan.peak_bytes)}"
)
largest_error = max(
    float(np.abs(gradient - found.gradients[name]).max() / np.abs(gradient).max())
    for name, gradient in expected.gradients.items()
)
print(f"    gradients differ by {largest_error:.1e} of the largest")
folder.cleanup()

# %% [markdown]
# ## Exercises
#
# `python 16_bigger_than_memory.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. An image of 20,480 x 20,480 x 3 bytes is cut into 80 blocks. How many bytes has a block?
# 2. It becomes float32 before it is copied to the device instead of after. By what factor does more
#    travel?
# 3. A band reads rows 120 to 190 of a tensor whose blocks end at 64, 128, 192, ... From how many
#    blocks?

# %%
lesson.cell("exercises")
lesson.exercise("1. bytes of a block", lambda a: a == 20480 // 80 * 20480 * 3, None)
lesson.exercise("2. how much more travels", lambda a: a == 4, None)
lesson.exercise("3. blocks under rows 120 to 190", lambda a: a == 2, None)

# %%
assert floats == 3
assert least["in bands"] < BUDGET < least["untiled"] / 4
assert len(inputs) == 16
assert not wholes
assert len(border) > 1
assert all(plan.peak_bytes <= BUDGET for plan in plans.values())
assert found.loss == expected.loss
assert peak_bytes == plan.peak_bytes <= BUDGET
assert largest_error < 1e-4
print("\nall asserts passed")
