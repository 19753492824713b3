# %% [markdown]
# # 14 Bands
#
# **Goal:** cut an image so that no row is computed twice, forward or backward; keep a few rows
# instead, and let planners do the rest.
# **Prerequisites:** 05, 09, 11. **Minutes:** 30.
# **Paper:** none; compare 003, sections 2.3 and 5 (halos are computed again).
#
# The tiles of tutorial 05 are independent of each other. That has a price: each reads the rows
# around it and computes, in every layer, rows that its neighbours compute too. But tiles run one
# after the other. What the tile above has computed is already there.

# %%
import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.rewrite.tile.halo import chain_reads, split_evenly
from ooctrain.step.rows import Window

pictures, units = oc.pictures, oc.units
lesson = Lesson("14 bands")

# %% [markdown]
# ## What a halo costs
#
# One column of 32 numbers, four layers that add three neighbours, four tiles. Untiled that is
# 4 x 32 = 128 sums. **How many sums do the tiles compute?**

# %%
lesson.cell("halos computed again")
ROWS, LAYERS, BANDS = 32, 4, 4
conv = Window(kernel=3, stride=1, pad_lo=1, pad_hi=1)

# %%
lesson.predict("sums of four tiles")

# %%
sums_of_tiles = 0
for tile in split_evenly(ROWS, BANDS):
    reads = chain_reads(tile, [conv] * LAYERS, ROWS)
    sums_of_tiles += tile.extent + sum(read.inside.extent for read in reads[1:])
lesson.reveal("sums of four tiles", sums_of_tiles)

# %% [markdown]
# ## The frontier
#
# Turn the question round. Do not ask what a tile of the *output* reads. Cut the *input*, and ask
# what can be computed from its first rows. With rows 0 to 7 of the input, the first layer can
# compute rows 0 to 6: row 7 needs row 8. The second layer can then compute rows 0 to 5. The border
# between "there" and "not yet" is the *frontier*; it recedes by one row in each layer.
# **Where is the frontier in the output of the fourth layer?**

# %%
lesson.cell("the frontier recedes")


def computable(rows):
    """How many sums of three neighbours can be computed from the first `rows` of 32 numbers."""
    return rows if rows in (0, ROWS) else rows - 1


# %%
lesson.predict("rows of the fourth layer's output, from 8 input rows")

# %%
frontiers = [[0, 8, 16, 24, 32]]
for _ in range(LAYERS):
    frontiers.append([computable(rows) for rows in frontiers[-1]])
for layer, frontier in enumerate(frontiers):
    print(f"      {f'layer {layer}' if layer else 'input'}: {frontier}")
lesson.reveal("rows of the fourth layer's output, from 8 input rows", frontiers[4][1])

# %% [markdown]
# Between two frontiers lies a *band*: what can be computed with 16 input rows, and could not with
# 8. In the picture each colour is a band. Each row of each layer has one colour, so each row is
# computed once. The bands are skewed: a band of the output lies a little higher than its input.

# %%
lesson.cell("a picture of bands")
strips = []
for layer, frontier in enumerate(frontiers):
    pieces = [
        pictures.Piece(frontier[t], frontier[t + 1], f"band {t}", kind=t) for t in range(BANDS)
    ]
    strips.append((f"output of layer {layer}" if layer else "input", pieces))
lesson.picture(
    "14_bands.svg",
    pictures.strips_svg(
        "Four bands through four 3 x 3 convolutions",
        strips,
        extent=ROWS,
        axis="row",
        legend=[f"band {t}" for t in range(BANDS)],
    ),
)

# %% [markdown]
# ## Kept rows
#
# A band still reads a few rows above its own: row 7 of the first layer's output is a sum of input
# rows 6, 7 and 8. Those were made by the band before, so we *keep* them when it is done. With
# frontiers a (of what is read) and b (of what is written), band t writes from row b(t) on, reads
# from row b(t) - 1 on, and has rows from a(t) = b(t) + 1 on. **How many rows are kept for each
# layer at each border?** The cell below runs the bands with nothing but kept rows and own rows.

# %%
lesson.cell("bands by hand")
lesson.predict("rows kept at a border, per layer")

# %%
rng = np.random.default_rng(0)
image = rng.standard_normal(ROWS)


def sums_of_three(column):
    """Sums of three neighbours, plus a bias; the ends are not padded."""
    return column[:-2] + column[1:-1] + column[2:] + 1


def padded(rows, lo, hi):
    """Rows lo to hi - 1 of a layer's input, with a zero at each end of the image."""
    return np.concatenate([np.zeros(int(lo == 0)), rows, np.zeros(int(hi == ROWS))])


untiled = [image]
for _ in range(LAYERS):
    untiled.append(sums_of_three(padded(untiled[-1], 0, ROWS)))

made = [[] for _ in range(LAYERS + 1)]  # all rows of each layer, band after band
kept = [np.zeros(0)] * LAYERS  # the rows that the next band needs of each layer's input
most_kept = 0
for t in range(BANDS):
    own = image[frontiers[0][t] : frontiers[0][t + 1]]
    for layer in range(LAYERS):
        made[layer].extend(own)
        end = frontiers[layer][t + 1]
        there = np.concatenate([kept[layer], own])  # rows end - len(there) to end - 1
        kept[layer] = there[-2:]
        most_kept = max(most_kept, len(kept[layer]))
        own = sums_of_three(padded(there, end - len(there), end))
    made[LAYERS].extend(own)
lesson.reveal("rows kept at a border, per layer", most_kept)
sums_of_bands = sum(len(rows) for rows in made[1:])
same = all(np.array_equal(a, b) for a, b in zip(made, untiled, strict=True))
print(f"    {sums_of_bands} sums; the same bits in every row: {same}")

# %% [markdown]
# ## Backward: gather
#
# An input row is read by three output rows, so its gradient is the sum of theirs: dx[r] = dy[r - 1]
# + dy[r] + dy[r + 1]. Tiles with recomputed halos *scatter*: each adds its part to dx, also in its
# halo, and a row near a border is complete only after both tiles. Bands *gather*: each row of dx is
# written once, from all the rows of dy that it needs.
#
# For that we go from the last band to the first. Band t of dx has rows a(t) to a(t + 1) - 1. Above,
# its first row needs dy[a(t) - 1]. That is row b(t), with which band t of dy begins, so it is
# there. Below, its last rows need two rows of dy that belong to band t + 1. That band has just run,
# and has kept them. **How many rows of dx are written twice?**

# %%
lesson.cell("gradients by hand")
lesson.predict("rows of dx that are written twice")

# %%
dy = rng.standard_normal(ROWS)
expected = np.convolve(dy, [1, 1, 1], "same")
(a, b), dx, writes = frontiers[:2], np.zeros(ROWS), np.zeros(ROWS, int)
kept_dy = np.zeros(1)  # below the image there is nothing
for t in reversed(range(BANDS)):
    own = dy[b[t] : b[t + 1]]
    there = np.concatenate([np.zeros(int(t == 0)), own, kept_dy])
    dx[a[t] : a[t + 1]] = np.convolve(there, [1, 1, 1], "valid")
    writes[a[t] : a[t + 1]] += 1
    kept_dy = own[:2]
lesson.reveal("rows of dx that are written twice", int((writes > 1).sum()))
print(f"    dx is right: {np.allclose(dx, expected)}")

# %% [markdown]
# A gradient row is complete when it is written, in one sum, in one order. That is why bands give
# the untiled *bits* of y and dx on any data. Only the gradients of weights are sums over bands.
# With stride, dilation, pooling and odd sizes the frontier needs more care;
# [docs/tiling.md](../docs/tiling.md) has the formula and the proofs.
#
# ## In the library
#
# `oc.tile(trace, (T, 1), halo="keep")` makes T bands. With `again=True` each band's forward calls
# run once more in backward, and nothing but kept rows, input and output outlives a band; so the
# forward pass runs twice, but no halo does. We compare the arithmetic with that of tiles.

# %%
lesson.cell("work and memory")
nn = oc.nn


def build():
    """Six convolutions in two scales, then a classifier."""
    oc.manual_seed(0)
    layers, channels = [], 3
    for width in (16, 16, 16, "pool", 32, 32, 32):
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def arithmetic(trace):
    """Operations of all convolutions of a step, gradients included."""
    specs = [
        ([trace.variables[v] for v in call.ins], [trace.variables[v] for v in call.outs])
        for call in trace.calls
    ]
    calls = zip(trace.calls, specs, strict=True)
    return sum(c.op.flops(ins, outs) for c, (ins, outs) in calls if "conv2d" in c.op.name)


model = build()
step = oc.trace(model, (1, 3, 256, 256), conv_algorithm="direct", threads=2)
steps = {
    "untiled": step,
    "tiles 8 x 8": oc.tile(step, (8, 8)),
    "bands of 16, again": oc.tile(step, (16, 1), halo="keep"),
    "bands of 16, once": oc.tile(step, (16, 1), halo="keep", again=False),
}

# %%
lesson.predict("work of bands that run again / untiled")

# %%
work = {name: arithmetic(trace) / arithmetic(step) for name, trace in steps.items()}
for name, trace in steps.items():
    print(
        f"      {name:18}: {len(trace.calls):5} calls, work {work[name]:.2f}, "
        f"peak {units.format_bytes(oc.trace_peak_bytes(trace)):>8}, "
        f"minimum {units.format_bytes(oc.trace_minimum_bytes(trace)):>8}"
    )
lesson.reveal("work of bands that run again / untiled", work["bands of 16, again"])

# %% [markdown]
# Forward, gradient of the input and gradient of the weight cost the same, so a second forward pass
# is about a third more. Even bands that run once cost a little more than the untiled step, and that
# is no halo: to gather 16 rows of dx a call reads 18 rows of dy, and work is counted by rows of dy.
# Thicker bands have less of this extra work.
#
# ## Planners decide
#
# With `again=False` backward reads what forward made. In-core that needs all the memory of the
# untiled step. But now every value is a *band*: small enough to be kept, swapped or computed again
# by itself, whichever is cheapest (tutorial 12). The planner `prefix` decides that, and knows
# nothing of tiles. We plan VGG-16 on an image of 1,024 pixels for a V100, in a quarter of the
# memory; untiled, no planner can do that. **How much slower than in-core is the step?**

# %%
lesson.cell("a planner that knows no tiles")
machine = oc.machine("v100-pcie")
vgg16 = oc.trace(oc.models.build("vgg16", stem="cifar"), (1, 3, 1024, 1024), threads=2)
in_core = oc.plan(vgg16, "100%", planner="keep-all", machine=machine)
budget = in_core.peak_bytes // 4
print(f"    budget {units.format_bytes(budget)}")
print(f"    untiled at least {units.format_bytes(oc.trace_minimum_bytes(vgg16))}")

# %%
lesson.predict("bands run once, by prefix / in-core")

# %%
times = {}
for name, planner in (
    ("tile:4x4::features.16", "belady"),
    ("bands_again:16::features.16", "belady"),
    ("bands:16::features.16", "prefix"),
):
    rewrites = (name, "share_storage")
    plan = oc.plan(vgg16, budget, planner=planner, machine=machine, rewrites=rewrites)
    times[name] = plan.makespan_us / in_core.makespan_us
    print(f"      {name:27} by {planner:6}: {times[name]:.2f} x in-core")
lesson.reveal("bands run once, by prefix / in-core", times["bands:16::features.16"])

# %% [markdown]
# Hardly slower. Most of what backward needs is swapped while other calls compute; what is cheap to
# compute again runs again; no halo runs twice.
#
# ## The same bits
#
# A step that runs in bands, swaps and computes again still has the bits of the untiled one. Only
# the gradients of the weights, which are sums over bands, may differ by rounding.

# %%
lesson.cell("executed")
x, y = rng.standard_normal((1, 3, 256, 256)).astype(np.float32), np.array([3])
plain = oc.execute(oc.plan(step, "100%", planner="keep-all"), model, (x, y))
small = oc.plan(step, "40%", planner="window", rewrites=("bands:16",))
banded = oc.execute(small, model, (x, y))
largest_error = max(
    float(np.abs(gradient - banded.gradients[name]).max() / np.abs(gradient).max())
    for name, gradient in plain.gradients.items()
)
print(f"    loss {plain.loss!r} and {banded.loss!r}")
print(f"    weight gradients, sums over bands, differ by {largest_error:.1e} of the largest")

# %% [markdown]
# ## Exercises
#
# `python 14_bands.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. By how many rows does the frontier recede behind a 5 x 5 convolution with stride 1?
# 2. A 2 x 2 pooling with stride 2, cut at an even row: how many rows of its input are kept?
# 3. A 7 x 7 convolution with stride 1: how many rows are kept at each border?

# %%
lesson.cell("exercises")
lesson.exercise("1. the frontier behind a 5 x 5 convolution", lambda a: a == 2, None)
lesson.exercise("2. rows kept for a 2 x 2 pooling", lambda a: a == 0, None)
lesson.exercise("3. rows kept for a 7 x 7 convolution", lambda a: a == 6, None)

# %%
assert sums_of_tiles > sums_of_bands == LAYERS * ROWS
assert frontiers[4] == [0, 4, 12, 20, 32]
assert most_kept == 2
assert same
assert np.allclose(dx, expected)
assert (writes == 1).all()
assert 1 < work["bands of 16, once"] < 1.1
assert work["tiles 8 x 8"] > work["bands of 16, again"]
assert oc.trace_minimum_bytes(steps["bands of 16, once"]) < oc.trace_minimum_bytes(step) / 2
assert times["bands:16::features.16"] < 1.1 < times["bands_again:16::features.16"]
assert plain.loss == banded.loss
assert largest_error < 1e-4
print("\nall asserts passed")
