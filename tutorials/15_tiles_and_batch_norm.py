# %% [markdown]
# # 15 Tiles and batch norm
#
# **Goal:** see what a norm in training mode asks of bands: a barrier, and a sum that is carried
# from band to band with the bits of the untiled one.
# **Prerequisites:** 14. **Minutes:** 25.
# **Paper:** none; batch norm is Ioffe and Szegedy (2015), its exact sums are Chan, Golub and
# LeVeque (1983). Other tilers freeze the statistics.
#
# A band of tutorial 14 goes through all layers at once, because a row of any layer needs only a few
# rows of the layer before. Batch norm in training mode breaks that. It subtracts the mean of *all*
# rows and divides by their deviation, so its first output row needs the last input row.

# %%
import re
from itertools import pairwise

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.engine.incore import run_trace

pictures, units = oc.pictures, oc.units
lesson = Lesson("15 tiles and batch norm")

# %% [markdown]
# ## Why not each band by itself?
#
# It runs, and it trains something else: bands at the top of a photograph are sky, those at the
# bottom are grass, and after a norm per band both look alike. Even the mean of the band means is
# wrong, since a band of few rows counts as much as one of many. Our image has 32 rows and gets
# brighter from top to bottom; the bands have 2, 10, 10 and 10 rows. **The mean of all rows is 15.5.
# What is the mean of the four band means?**

# %%
lesson.cell("the mean of band means")
lesson.predict("mean of band means")

# %%
rows = np.arange(32.0)
cuts = [0, 2, 12, 22, 32]
bands = [rows[lo:hi] for lo, hi in pairwise(cuts)]
mean_of_means = float(np.mean([band.mean() for band in bands]))
lesson.reveal("mean of band means", mean_of_means)

# %% [markdown]
# So bands must add up one sum together, and count pixels, not bands.
#
# ## The barrier
#
# Nothing behind the norm can begin before its sum is complete. That is a *barrier*: all bands go
# through the layers before it, then all bands go through the layers behind it. Between the two, the
# norm's input exists in bands, all of them, and planners decide what to do with each: keep it, swap
# it, or compute it again. We look at the trace of two convolutions with norms. **The layers fall
# into how many groups of calls, forward?**

# %%
lesson.cell("levels of calls")
nn = oc.nn
ROWS, BANDS = 24, 4


def build():
    """Two convolutions, each with a norm and a ReLU, and one convolution more."""
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 3, 3, padding=1),
    )  # fmt: skip


model = build()
step = oc.trace(model, (1, 3, ROWS, 40), "mse", None, threads=2, conv_algorithm="direct")
banded = oc.tile(step, (BANDS, 1), "0", "mean_error", halo="keep", again=False)

# %%
lesson.predict("levels going forward")

# %%
forward = [call.name for call in banded.calls if call.phase in ("forward", "loss")]
totals = [name for name in forward if name in ("1.stats", "4.stats")]
levels = len(totals) + 1
for name in forward[:12]:
    print(f"      {name}")
print(f"      ... {len(forward)} calls, with the totals {totals}")
lesson.reveal("levels going forward", levels)

# %% [markdown]
# `1.stats[h 0:3]` adds the first rows of the convolution's output to a *state*; the next band reads
# that state and adds its own rows; `1.stats`, after the last band, makes mean and deviation of it.
# The picture shows the order of the calls, forward and backward. Backward there are barriers, too:
# the gradient of a norm's input needs two sums over all rows (dgamma and dbeta), and bands come
# from the bottom. **How many levels does backward have?**

# %%
lesson.cell("a picture of barriers")
layers = {"conv 1": "0", "norm 1, ReLU": "12", "conv 2": "3", "norm 2, ReLU": "45", "conv 3": "6"}
position, strips = 0, {name: [] for name in layers}
tops = np.linspace(0, ROWS, BANDS + 1)[1:]
for call in banded.calls:
    place = re.fullmatch(r"(\d)\.\w+\[h (\d+):(\d+)\]", call.name)
    if place is None:
        continue
    middle = (int(place[2]) + int(place[3])) / 2
    band = int(np.searchsorted(tops, middle))
    layer = next(name for name, numbers in layers.items() if place[1] in numbers)
    strips[layer].append(pictures.Piece(position, position + 1, "", kind=band))
    position += 1
lesson.picture(
    "15_barriers.svg",
    pictures.strips_svg(
        "Which layer works on which band, call by call",
        list(strips.items()),
        extent=position,
        axis="call",
        legend=[f"band {t}" for t in range(BANDS)],
    ),
)

# %%
lesson.predict("levels going backward")

# %%
names = [call.name for call in banded.calls if call.phase == "backward"]
sums = [name for name in names if name in ("1.grad_reduce", "4.grad_reduce")]
lesson.reveal("levels going backward", len(sums) + 1)

# %% [markdown]
# ## A sum that is carried
#
# Which sum? Floats are rounded after each addition, so the order matters. The kernel adds blocks of
# at most 128 pixels in float32 and blocks to an accumulator in float64. If each band made a sum of
# its own, and these were added in the end, blocks would begin elsewhere: other roundings, other
# bits. If the *accumulator* is carried from band to band, it sees the same numbers in the same
# order as in the untiled step, provided that no block crosses a border. So blocks are defined by
# rows: a piece of one row, or several whole rows, and a band sums whole blocks. (The few rows of a
# block that is not complete wait for the next band, like the kept rows of a halo.)
#
# We do it by hand, with 6,000 numbers and borders at random. **Of 100 ways to cut, how many give
# the untiled bits if each band makes its own float32 sum?**

# %%
lesson.cell("two ways to add")
BLOCK = 100
rng = np.random.default_rng(0)
numbers = rng.standard_normal(6000).astype(np.float32) + np.float32(3)


def add_blocks(values, accumulator):
    """Adds whole blocks, each summed in float32, to an accumulator in float64."""
    for first in range(0, len(values), BLOCK):
        block = np.float32(0)
        for value in values[first : first + BLOCK]:
            block += value
        accumulator += float(block)
    return accumulator


whole = add_blocks(numbers, 0.0)
own, carried = 0, 0
for _ in range(100):
    borders = sorted({0, len(numbers), *rng.integers(1, len(numbers), 5).tolist()})
    pairs = list(pairwise(borders))
    own += sum(add_blocks(numbers[lo:hi], 0.0) for lo, hi in pairs) == whole
    accumulator = 0.0
    for lo, hi in pairs:  # rounded down to whole blocks; what is left waits
        accumulator = add_blocks(numbers[lo // BLOCK * BLOCK : hi // BLOCK * BLOCK], accumulator)
    carried += accumulator == whole

# %%
lesson.predict("equal to the bit, a sum for each band")

# %%
lesson.reveal("equal to the bit, a sum for each band", own)
print(f"    equal to the bit, the sum carried: {carried} of 100")

# %% [markdown]
# ## Sums of squares
#
# The variance is the mean of the squares minus the square of the mean. In float32 that is a trap:
# where the mean is large, two large numbers are subtracted and only their rounding is left. The
# kernel takes the squared deviations from each block's own mean, which are small, and adds the rest
# in float64. **Numbers around 1,000 with variance 1: what does float32 give?**

# %%
lesson.cell("cancellation")
far = (1000 + rng.standard_normal(100_000)).astype(np.float32)

# %%
lesson.predict("variance by float32 sums of squares")

# %%
square, mean = np.float32(0), np.float32(0)
for part in far.reshape(100, -1):
    square += (part * part).sum(dtype=np.float32)
    mean += part.sum(dtype=np.float32)
mean, square = mean / np.float32(far.size), square / np.float32(far.size)
by_squares = float(square - mean * mean)
lesson.reveal("variance by float32 sums of squares", by_squares)

# %% [markdown]
# ## The same bits
#
# The step in bands against the untiled one: the loss, the running statistics, which move once a
# step and not once a band, and the gradients. Sums over rows are carried, so gradients of gamma,
# beta and of biases have the untiled bits. Gradients of the convolutions' weights are sums over
# bands. **How many of the step's results differ in any bit?**

# %%
lesson.cell("compared")
values = {}
for v in (step.variables[i] for i in step.initial):
    drawn = rng.standard_normal(v.shape)
    values[v.name] = (np.abs(drawn) if v.kind == "state" else drawn).astype(v.dtype)
scalars = {"lr": 0.1, "step": 0, "seed": 0}
expected, got = (run_trace(trace, values, scalars, threads=2) for trace in (step, banded))

# %%
lesson.predict("results that differ")

# %%
different = [name for name in expected if not np.array_equal(expected[name], got[name])]
for name in expected:
    print(f"      {name:24} {'differs' if name in different else 'same bits'}")
lesson.reveal("results that differ", len(different))

# %% [markdown]
# ## Recomputation has no barrier
#
# The barrier belongs to the *first* forward pass. When a band is computed once more for backward,
# mean and deviation are known, and a norm with known statistics is pointwise: the band runs
# straight through it. Computing the statistics again would cost a pass over all bands for each.
# **With `again=True`, how many calls sum statistics in backward?**

# %%
lesson.cell("computed again")
again = oc.tile(step, (BANDS, 1), "0", "mean_error", halo="keep", again=True)
once_more = [call.name for call in again.calls if ".again" in call.name]

# %%
lesson.predict("sums of statistics in backward")

# %%
statistics_again = sum("stats" in name for name in once_more)
print(f"    computed again: {once_more[0]}, {once_more[1]}, ... {len(once_more)} calls")
lesson.reveal("sums of statistics in backward", statistics_again)

# %% [markdown]
# ## VGG-16 with batch norm, 4,096 x 4,096 pixels
#
# A quarter of the in-core memory is close to the least that the untiled step can do with: nearly
# everything is sent away and fetched again, whole tensors at a time. In 16 bands the same planner,
# `prefix`, keeps some bands, swaps some and computes others again. The times are predicted by the
# simulator for a V100 on PCIe. **How much slower than in-core are the bands?**

# %%
lesson.cell("a network with batch norm")
machine = oc.machine("v100-pcie")
vgg = oc.trace(oc.models.build("vgg16_bn"), (1, 3, 4096, 4096), threads=2)
plain = ("share_storage",)
in_core = oc.plan(vgg, "100%", planner="keep-all", machine=machine, rewrites=plain)
budget = in_core.peak_bytes // 4

# %%
lesson.predict("bands by prefix / in-core")

# %%
times = {}
for name, rewrites in (
    ("untiled", plain),
    ("16 bands", ("bands:16:features.0:features.43", "share_storage")),
):
    plan = oc.plan(vgg, budget, planner="prefix", machine=machine, rewrites=rewrites)
    times[name] = plan.makespan_us / in_core.makespan_us
    print(f"      {name:8}: {len(plan.trace.calls):5} calls, {times[name]:.2f} x in-core")
print(f"    in-core {units.format_bytes(in_core.peak_bytes)}, budget {units.format_bytes(budget)}")
lesson.reveal("bands by prefix / in-core", times["16 bands"])

# %% [markdown]
# ## Exercises
#
# `python 15_tiles_and_batch_norm.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. A network with five batch norms in a row of layers: into how many levels do its forward calls
#    fall?
# 2. A band of one row has mean 4, one of three rows has mean 8. What is the mean of all four rows?
# 3. Instance norm sums each image by itself. A batch has 8 images: how many barriers does one
#    instance norm need going forward?

# %%
lesson.cell("exercises")
lesson.exercise("1. levels of five batch norms", lambda a: a == 6, None)
lesson.exercise("2. mean of all rows", lambda a: a == 7, None)
lesson.exercise("3. barriers of one instance norm", lambda a: a == 1, None)

# %%
assert mean_of_means != rows.mean()
assert levels == len(sums) + 1 == 3
assert carried == 100 > own
assert abs(by_squares - 1) > 0.01
assert set(different) <= {"grad:0.weight", "grad:3.weight", "grad:6.weight", "loss"}
assert statistics_again == 0
assert once_more
assert times["16 bands"] < 1.15 < times["untiled"]
print("\nall asserts passed")
