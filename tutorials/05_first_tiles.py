# %% [markdown]
# # 05 First tiles
#
# **Goal:** cut an image into tiles, train on them, and get the same bits as without tiles.
# **Prerequisites:** 03. **Minutes:** 20.
# **Paper:** 003, sections 2.3 and 4.3 (fused tiling; table 4 is corrected here).
#
# Swapping cannot help when a single call needs more than the budget: the call must become smaller.
# A convolution looks only at a small neighbourhood, so we can compute its output piece by piece.

# %%
import re
from unittest import mock

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.engine.incore import run_trace
from ooctrain.rewrite.tile import halo, row_rules
from ooctrain.step.rows import Window

pictures, units = oc.pictures, oc.units
lesson = Lesson("05 first tiles")

# %% [markdown]
# ## The halo
#
# To compute some rows of a convolution's output one must read the same rows of its input and a few
# more on both sides: the *halo*. Take three 3 x 3 convolutions on top of each other, on 32 rows. We
# want the output rows 8 to 15. **How many input rows must be read?**

# %%
lesson.cell("the halo grows with depth")
conv = Window(kernel=3, stride=1, pad_lo=1, pad_hi=1)

# %%
lesson.predict("input rows for 8 output rows")

# %%
reads = halo.chain_reads(halo.Span(8, 16), [conv, conv, conv], extent=32)
lesson.reveal("input rows for 8 output rows", reads[0].inside.extent)
for layer, read in enumerate(reads, 1):
    padding = f"pads {read.pad_lo} before, {read.pad_hi} after"
    print(f"      layer {layer} reads rows {read.inside}, {padding}")

# %% [markdown]
# ## At the border
#
# Each layer adds one row on each side. So the top tile (rows 0 to 7) would read rows -3 to 10. Rows
# -3 to -1 do not exist. It is tempting to pad the tile once with three rows of zeros and go on. We
# try it on one column of 32 numbers, with layers that add three neighbours and a bias. **How many
# of the 32 results are wrong?**

# %%
lesson.cell("padded once, instead of at each layer")


def sums_of_three(column):
    """Sums of three neighbours, plus a bias of 1; the ends are not padded."""
    return np.convolve(column, [1, 1, 1], "valid") + 1


# %%
lesson.predict("wrong results, padded once")

# %%
column = np.arange(32)
exact, padded_once = column, np.pad(column, 3)
for _ in range(3):
    exact, padded_once = sums_of_three(np.pad(exact, 1)), sums_of_three(padded_once)
wrong_rows = np.flatnonzero(exact != padded_once)
lesson.reveal("wrong results, padded once", len(wrong_rows))
print(f"    they are rows {wrong_rows.tolist()}")

# %% [markdown]
# It is **wrong**, at both ends: the first layer then also produces rows -2 and -1 (bias
# included), and the second layer reads them where the untiled network reads zeros; rows 32 and 33
# do the same at the other end. The exact rule: at each layer, clip what is read to the rows that
# exist, and pad only what was clipped.

# %%
lesson.cell("at the border each layer pads for itself")
border = halo.chain_reads(halo.Span(0, 8), [conv, conv, conv], extent=32)
for layer, read in enumerate(border, 1):
    padding = f"pads {read.pad_lo} before, {read.pad_hi} after"
    print(f"      layer {layer} reads rows {read.inside}, {padding}")

# %% [markdown]
# The picture shows, for two tiles, which rows of each layer's input are read: blue the tile's own
# rows, orange the halo. The top tile has a halo on one side only: no rows come before row 0.

# %%
lesson.cell("a picture of halos")


def read_rows(name, reads, tile):
    """One strip for each layer, the last layer's output below."""
    strips = []
    for layer, read in enumerate(reads, 1):
        lo, hi = read.inside.lo, read.inside.hi
        pieces = [
            pictures.Piece(tile.lo, tile.hi),
            pictures.Piece(lo, tile.lo, kind=1),
            pictures.Piece(tile.hi, hi, kind=1),
        ]
        strips.append((f"{name}, layer {layer}", [p for p in pieces if p.lo < p.hi]))
    return [*strips, (f"{name}, output", [pictures.Piece(tile.lo, tile.hi, f"rows {tile}")])]


inner, top = (
    read_rows("inner tile", reads, halo.Span(8, 16)),
    read_rows("top tile", border, halo.Span(0, 8)),
)
lesson.picture(
    "05_halos.svg",
    pictures.strips_svg(
        "Rows that a tile reads through three 3 x 3 convolutions",
        [*inner, *top],
        extent=32,
        axis="row",
        legend=("the tile's own rows", "halo"),
    ),
)

# %% [markdown]
# An image has two dimensions, and the halo is a frame around the tile: every layer reads one row
# and one column more on each side. **How many input pixels are read for 8 x 8 output pixels?**

# %%
lesson.cell("the same in two dimensions")
lesson.predict("input pixels for 8 x 8 output pixels")

# %%
spans = [*(read.inside for read in reads), halo.Span(8, 16)]
lesson.reveal("input pixels for 8 x 8 output pixels", spans[0].extent ** 2)
squares = [
    pictures.Area(
        16 + span.lo, 16 + span.hi, span.lo, span.hi, f"{span.extent} x {span.extent}", kind
    )
    for kind, span in enumerate(spans)
]
lesson.picture(
    "05_halo_2d.svg",
    pictures.areas_svg(
        "A tile of 8 x 8 outputs, and what each of three layers reads for it",
        squares,
        axes=("column", "row"),
        legend=("layer 1 reads", "layer 2 reads", "layer 3 reads", "the tile"),
        y_top=23,
        square=True,
    ),
)

# %% [markdown]
# One formula covers stride and pooling, too: with kernel k, stride s and padding p the output rows
# [lo, hi) read the input rows [lo * s - p, (hi - 1) * s - p + k). The number of rows alone,
# hi - lo, is not enough: what must be clipped depends on where the tile begins.
#
# ## Tiling a training step
#
# `oc.tile` rewrites the *trace*: for each tile it cuts a slice out of the input, runs the chain of
# layers on it, and inserts the result into the output. In the backward pass each tile runs its
# forward calls once more (they are pure, so that is exact), and adds its part to the gradients.
# Planners see an ordinary trace. **By what factor does a 4 x 4 grid shrink the in-core peak?**

# %%
lesson.cell("a small network on a large image")
nn = oc.nn


def build():
    """Three convolutions, then a classifier."""
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


model = build()
trace = oc.trace(model, (1, 3, 256, 256), conv_algorithm="direct", threads=2)
untiled = oc.plan(trace, "100%", planner="keep-all")

# %%
lesson.predict("untiled peak / tiled peak")

# %%
rows = []
for grid in ((2, 2), (4, 4), (8, 8)):
    plan = oc.plan(oc.tile(trace, grid=grid), "100%", planner="keep-all")
    rows.append((grid, plan))
    print(
        f"      {grid}: {len(plan.trace.calls):5} calls, "
        f"peak {units.format_bytes(plan.peak_bytes):>8}, "
        f"minimum {units.format_bytes(oc.trace_minimum_bytes(plan.trace)):>8}, "
        f"simulated time {plan.makespan_us / untiled.makespan_us:.2f} x untiled"
    )
print(f"      untiled: peak {units.format_bytes(untiled.peak_bytes)}")
tiled = rows[1][1]
factor = untiled.peak_bytes / tiled.peak_bytes
lesson.reveal("untiled peak / tiled peak", factor)

# %% [markdown]
# Not sixteen times: the input, the chain's output and the parameters are not tiled. And it is not
# free: the tiles run their forward pass twice, halos are computed by several tiles, and each of
# the many small calls takes time to start. But the *minimum* fell too: what the largest single call
# needs, and no swapping can lower that. Tutorial 14 gets rid of the halos that several tiles
# compute.
#
# ## The same bits?
#
# Float addition is not associative: a gradient that is summed tile by tile may differ in the last
# bit. With small whole numbers every sum is exact, so *any* difference is a bug. This is how the
# library tests tiles; a halo that is one row short cannot hide in rounding.


# %%
lesson.cell("whole numbers make it exact")
rng = np.random.default_rng(0)
model.load_state_dict(
    {
        name: rng.integers(-2, 3, value.shape).astype(np.float32)
        for name, value in model.state_dict().items()
    }
)
x = rng.integers(-2, 3, (1, 3, 256, 256)).astype(np.float32)
y = np.array([3])


def convolution_gradients(plan):
    """The gradients of the three convolutions after one real step."""
    gradients = oc.execute(plan, model, (x, y)).gradients
    return {name: gradients[name] for name in ("0.weight", "0.bias", "2.weight", "5.weight")}


whole, pieces = convolution_gradients(untiled), convolution_gradients(tiled)
differing = sum(int((whole[name] != pieces[name]).sum()) for name in whole)
largest = max(float(np.abs(gradient).max()) for gradient in whole.values())
print(f"    {differing} values differ; the largest gradient is {largest:g}")

# %% [markdown]
# Why is even the backward pass exact? Logits this large make the softmax exactly 0 or 1, and the
# mean over 128 x 128 pixels divides by a power of two, which floats do without rounding. With
# ordinary data the sums round, and the two differ in the last bits;
# `tests/properties/test_tiled_gradients.py` has the bound as a formula.
#
# ## The law, row by row
#
# The law of tiling is a test of 25 lines, `tests/test_tiled_equals_untiled.py` in a checkout. This
# cell takes its steps one by one. It cuts the step into *bands*: tiles as wide as the image that
# keep their halo instead of computing it again (tutorial 14), so that even gradients of images have
# the untiled bits on ordinary data. It runs both traces, asks for every variable, and compares band
# "0.out[h 0:7]" with rows 0 to 6 of "0.out", and so on for each layer and each gradient.

# %%
lesson.cell("every row of every layer")
small = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1))
step = oc.trace(small, (1, 2, 24, 8), "mse", None, threads=2, conv_algorithm="direct")
initial = [step.variables[v] for v in step.initial]
values = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in initial}


def everything(trace):
    """All variables of a trace after one run in memory."""
    return run_trace(trace, values, {}, wanted=[v.name for v in trace.variables], threads=2)


def first_difference():
    """Where the step in three bands first differs from the untiled one, in words."""
    bands = oc.tile(step, grid=(3, 1), halo="keep")
    expected, got = everything(step), everything(bands)
    for v in bands.variables:
        band = re.fullmatch(r"(.*)\[h (\d+):\d+\]", v.name)
        if band and band[1] in expected and v.kind != "wgrad":  # weights: a sum over bands
            for row in range(v.shape[2]):
                a, b = expected[band[1]][:, :, int(band[2]) + row], got[v.name][:, :, row]
                if not np.array_equal(a, b):
                    numbers = f"expected {a[a != b][0]:g}, got {b[a != b][0]:g}"
                    return f"{band[1]}, row {int(band[2]) + row}: {numbers}"
    return "no difference"


with_halo = first_difference()
print(f"    {with_halo}")

# %% [markdown]
# Now we remove one halo row: the last row that a band reads below its own becomes padding. The
# first of three bands reads the image rows 0 to 7. **In which row of the first layer's output does
# the law see it?**

# %%
lesson.cell("one halo row removed")
lesson.predict("first wrong row")

# %%


def one_row_less(rows, window, extent):
    """`read_span` with a slip: below, it reads one row less and pads one more."""
    read = halo.read_span(rows, window, extent)
    if window.kernel == 1 or read.inside.hi == extent:
        return read
    return halo.Read(halo.Span(read.inside.lo, read.inside.hi - 1), read.pad_lo, read.pad_hi + 1)


with mock.patch.object(row_rules, "read_span", one_row_less):
    without_halo = first_difference()
lesson.reveal("first wrong row", int(re.search(r"row (\d+)", without_halo)[1]))
print(f"    {without_halo}")

# %% [markdown]
# It names layer, row and numbers. With the image rows 0 to 7 the layer can compute rows 0 to 6, so
# the first band ends there, and its last row is the one that reads the missing one.
#
# ## What it is for
#
# An image of 10,240 x 10,240 pixels, the same network, and a GPU with 16 GiB: in-core it does not
# fit. We make it harder and allow only 6 GiB. Swapping cannot help, since one call alone needs
# more. **How many GiB does the step take in 8 x 8 tiles?**

# %%
lesson.cell("an image that cannot be trained in-core")
lesson.predict("GiB in 8 x 8 tiles")

# %%
SIDE, GPU = 10_240, "v100-pcie"
huge = oc.trace(model, (1, 3, SIDE, SIDE), conv_algorithm="direct", threads=2)
in_core = oc.plan(huge, 1 << 40, planner="keep-all", machine=GPU)
try:
    oc.plan(huge, "6GiB", planner="belady", machine=GPU)
    refusal = None
except oc.Infeasible as error:
    refusal = error
    print("   ", str(error).replace("\n", "\n    "))
fits = oc.plan(oc.tile(huge, grid=(8, 8)), "6GiB", planner="belady", machine=GPU)
lesson.reveal("GiB in 8 x 8 tiles", fits.peak_bytes / units.GIB)
print(f"    in-core {units.format_bytes(in_core.peak_bytes)}")
slower = fits.makespan_us / in_core.makespan_us
print(f"    in tiles {fits.makespan_us / 1e6:.2f} s, {slower:.2f} times what in-core would take")

# %% [markdown]
# ## Exercises
#
# `python 05_first_tiles.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. How many input rows do 8 output rows of a 5 x 5 convolution with stride 2 read, away from
#    borders?
# 2. Through a chain of n 3 x 3 convolutions with stride 1, T output rows read how many input rows?
#    (a formula as text in T and n)
# 3. What is the largest number of tiles along one axis of an image with 256 rows, behind a pooling
#    of 2, if each tile has at least one output row?

# %%
lesson.cell("exercises")
FORMULAS = ("T+2n", "T+2*n", "2n+T", "2*n+T", "T+n*2", "n*2+T")
stride2 = Window(kernel=5, stride=2, pad_lo=2, pad_hi=2)
answer = halo.chain_reads(halo.Span(10, 18), [stride2], extent=64)[0].inside.extent
lesson.exercise("1. rows of a strided convolution", lambda a: a == answer, None)
lesson.exercise("2. rows of a chain", lambda a: str(a).replace(" ", "") in FORMULAS, None)
lesson.exercise("3. most tiles", lambda a: a == 128, None)

# %%
assert reads[0].inside.extent == 14
assert [span.extent for span in spans] == [14, 12, 10, 8]
assert wrong_rows.tolist() == [0, 1, 30, 31]
assert [read.pad_lo for read in border] == [1, 1, 1]
assert answer == 8 * 2 + (5 - 2)
assert factor > 2.5
assert oc.trace_minimum_bytes(tiled.trace) < oc.trace_minimum_bytes(untiled.trace)
assert [p.peak_bytes for _, p in rows] == sorted((p.peak_bytes for _, p in rows), reverse=True)
assert differing == 0
assert largest > 0
assert in_core.peak_bytes > 16 * units.GIB
assert refusal is not None
assert fits.peak_bytes < 6 * units.GIB < refusal.minimum_bytes
assert with_halo == "no difference"
assert without_halo.startswith("0.out, row 6: expected ")
print("\nall asserts passed")
