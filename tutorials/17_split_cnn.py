# %% [markdown]
# # 17 Split-CNN
#
# **Goal:** cut images into patches that a network processes independently; see on real digits what
# the zeros at the borders of the patches change, and how much memory the cut saves.
# **Prerequisites:** 05, 14. **Minutes:** 25.
# **Paper:** 004, sections 3 and 6.3.
#
# The bands of tutorial 14 compute what the whole network computes: a band fetches from its
# neighbours the rows that its windows need. Split-CNN fetches nothing. Each patch of the image goes
# through the first layers by itself, and where a window reaches over the edge of its patch, it sees
# zeros. So no row is kept for a neighbour, and none is computed twice. The price: the split network
# is another network, with other results.

# %%
import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.split.boundaries import allowed, lower_bound, paddings, sizes, upper_bound
from ooctrain.step.rows import Window

pictures, units = oc.pictures, oc.units
lesson = Lesson("17 split-CNN")
nn = oc.nn
SIDE = 16

# %% [markdown]
# ## Zeros at a border
#
# Take a digit of 16 x 16 pixels and one 3 x 3 convolution with padding 1, and cut the digit into
# four patches of 8 x 8 pixels. A pixel of the output changes if its window crosses a cut. These are
# the rows just above and just below the horizontal cut, and the columns on both sides of the
# vertical one. **How many of the 256 pixels differ from the unsplit convolution?**

# %%
lesson.cell("one layer on one digit")
digits = oc.data.digits(image_size=SIDE, channels=1)
digit = np.array(digits[0][0])[None]
HALVES = (slice(0, SIDE // 2), slice(SIDE // 2, SIDE))


def layers(count):
    """Convolutions of one channel, 3 x 3, whose taps are all positive."""
    oc.manual_seed(1)
    made = [nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(count)]
    for conv in made:
        conv.weight.copy_(np.abs(conv.weight.numpy()) + np.float32(0.1))
    return made


def whole(x, convs):
    """All layers on the image."""
    for conv in convs:
        x = conv(x)
    return x.numpy()


def in_patches(image, convs):
    """All layers on each of 2 x 2 patches, which are then laid side by side."""
    strips = [
        np.concatenate([whole(oc.tensor(image[:, :, i, j]), convs) for j in HALVES], 3)
        for i in HALVES
    ]
    return np.concatenate(strips, 2)


def differing(count):
    """Pixels that differ after this many layers, of an image without zeros."""
    image, convs = np.abs(digit) + np.float32(1), layers(count)
    difference = np.abs(whole(oc.tensor(image), convs) - in_patches(image, convs))
    return int((difference > 1e-3 * difference.max()).sum())


# %%
lesson.predict("pixels that differ")

# %%
one_layer = differing(1)
lesson.reveal("pixels that differ", one_layer)

# %% [markdown]
# ## It spreads
#
# The next layer reads these changed rows, so one more row changes on each side of the cut. (Pooling
# does not help: it halves the image, and each later layer still changes one more row on each side.)
# **What share of the pixels differs after four layers, in percent?**

# %%
lesson.cell("several layers")
lesson.predict("percent that differ after 4 layers")

# %%
counts = {n: 100 * differing(n) / SIDE**2 for n in range(1, 8)}
by_rule = {n: 100 * (1 - ((SIDE - 2 * n) / SIDE) ** 2) for n in counts}
lesson.picture(
    "17_damage.svg",
    pictures.curves_svg(
        "Pixels that differ from the unsplit network, one cut each way",
        [
            pictures.Curve("16 x 16, measured", list(counts.items())),
            pictures.Curve(
                "224 x 224, by the rule", [(n, 100 * (1 - (1 - n / 112) ** 2)) for n in counts]
            ),
        ],
        axes=("3 x 3 convolutions", "% of the pixels"),
    ),
)
lesson.reveal("percent that differ after 4 layers", counts[4])

# %% [markdown]
# After n layers the share is 1 - ((16 - 2 n) / 16)^2. In a photograph of 224 x 224 pixels the same
# four layers change 7 % of the pixels. The smaller the image, the larger the effect, so we look at
# small ones.
#
# ## Where to cut
#
# A layer has kernel size k, stride s and padding p. Let O be the first output row of a part. The
# window of output O begins at row O s - p of the input (equation 1, `lower_bound`); the window of
# output O - 1 ends just before row (O - 1) s + k - p (equation 2, `upper_bound`). If the input is
# cut between these two rows, no row is lost. **A 3 x 3 convolution of stride 2 and padding 1: how
# many cuts are allowed before output 4?**

# %%
lesson.cell("bounds")
strided, pooling, shortcut = Window(3, 2, 1, 1, 1), Window(2, 2), Window(1, 2)

# %%
lesson.predict("allowed cuts")

# %%
low, high = allowed(strided, 4)
for name, window in (("3 x 3 / 2", strided), ("2 x 2 / 2", pooling), ("1 x 1 / 2", shortcut)):
    bounds = lower_bound(window, 4), upper_bound(window, 4)
    print(f"      {name}: lb {bounds[0]}, ub {bounds[1]}, cut anywhere in {allowed(window, 4)}")
lesson.reveal("allowed cuts", high - low + 1)

# %% [markdown]
# 2 x 2 pooling with stride 2 allows one cut, and needs no padding there: its results do not change.
# The 1 x 1 shortcut of a residual block, with stride 2, skips every second row. Its lower bound is
# greater than its upper bound, so no cut lies between them; the part then begins at its first
# window. The 3 x 3 branch beside the shortcut allows the same cut, so both branches share it.
#
# ## The equation in print
#
# The image has padding p_b at its upper edge, and the input is cut before row I. The first window
# of the next part may begin above the cut; rows of zeros replace what it misses there. Their number
# is p = I + p_b - O s. The paper prints (O - 1) s instead of O s. **With the printed formula, how
# many output rows does the lower half of 16 rows have?**

# %%
lesson.cell("the paddings")
window = Window(3, 1, 1, 1, 1)

# %%
lesson.predict("rows of the lower half, as printed")

# %%
outputs = inputs = (0, SIDE // 2)
right = paddings(window, outputs, inputs)
rows = sizes(inputs, SIDE)[1]
as_printed = inputs[1] + window.pad_lo - (outputs[1] - 1) * window.stride
print(f"      right: {right[1]}, {rows + sum(right[1]) - 2} rows")
lesson.reveal("rows of the lower half, as printed", rows + as_printed + right[1][1] - 2)

# %% [markdown]
# ## What it saves
#
# `oc.split` does this for a whole network. It chooses the boundaries where the patches are joined
# again, and works backwards from there, layer by layer. We split three quarters of the convolutions
# of VGG-16 into 2 x 2 patches, with batch 64. No schedule needs less memory than the largest call
# of the step. **By what factor does the split reduce this least memory?**

# %%
lesson.cell("the least memory")
shape = (64, 3, 224, 224)
vgg = oc.models.build("vgg16")
split_vgg = oc.split(vgg, 0.75, (2, 2))
print(f"      {split_vgg.shape_of(shape)}")
least = {}

# %%
lesson.predict("least whole / least split")

# %%
for name, model in (("whole", vgg), ("split", split_vgg)):
    step = oc.trace(model, shape, threads=2)
    plan = oc.plan(step, "0%", planner="belady", machine="p100-nvlink")
    least[name] = plan.peak_bytes
    print(f"      {name}: {len(step.calls)} calls, at least {units.format_bytes(plan.peak_bytes)}")
lesson.reveal("least whole / least split", least["whole"] / least["split"])

# %% [markdown]
# The factor is less than 4, since parameters, gradients, momentum and the linear layers are as
# large as before. If you know the budget and not the depth, `oc.split(model, fit="2GiB")` looks for
# the least depth and the fewest patches that fit.
#
# ## What it learns
#
# Another network learns something else. We train a small network on real digits three times from
# the same weights: whole, in patches, and in patches whose boundaries are drawn at random for each
# step, so that the network cannot get used to a border (section 3.3). All three are tested whole.
# **At which step do the losses of whole and split first differ?** (Steps count from 0.)

# %%
lesson.cell("training")
STEPS, BATCH = 30, 32


def network():
    """Four convolutions with norms."""
    oc.manual_seed(0)
    made, channels = [], 1
    for number, width in enumerate((8, 8, 16, 16)):
        made += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
        made += [nn.MaxPool2d(2)] if number % 2 else []
    return nn.Sequential(*made, nn.Flatten(), nn.Linear(256, 10))


test = oc.data.digits(train=False, image_size=SIDE, channels=1)
losses, accuracy = {}, {}

# %%
lesson.predict("first step with another loss")

# %%
for name, split in (
    ("whole", lambda model: model),
    ("split", lambda model: oc.split(model, 0.5, (2, 2))),
    ("stochastic", lambda model: oc.split(model, 0.5, (2, 2), stochastic=True)),
):
    batches = iter(oc.data.DataLoader(digits, BATCH, shuffle=True, seed=0))
    with oc.Trainer(split(network()), threads=1) as trainer:
        losses[name] = [trainer.step(*next(batches)) for _ in range(STEPS)]
        accuracy[name] = trainer.evaluate(oc.data.DataLoader(test, 120)).accuracy
    print(f"      {name:10}: last loss {losses[name][-1]:.3f}, {accuracy[name]:.1%} of the test")
first = next(i for i in range(STEPS) if losses["whole"][i] != losses["split"][i])
lesson.reveal("first step with another loss", first)

# %% [markdown]
# The last training losses of "whole" and "split" are nearly the same. Tested whole, the split
# network makes more mistakes: it has got used to the zeros at its borders. With random boundaries
# it makes fewer. This is one short run with one seed, and other seeds give other numbers: `ooctrain
# reproduce split-accuracy` trains several seeds, tests whole and in patches, and prints the spread.
#
# ## Exercises
#
# `python 17_split_cnn.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. A 5 x 5 convolution with padding 2, cut once between two rows: how many rows of its output
#    differ?
# 2. 16 rows are pooled 2 x 2 with stride 2. There are 15 places between two rows. At how many of
#    them can one cut without any padding?
# 3. A 1 x 1 shortcut of stride 2: at which input row does the part begin whose first output row
#    is 5?

# %%
lesson.cell("exercises")
lesson.exercise("1. rows that differ", lambda a: a == 4, None)
lesson.exercise("2. natural cuts", lambda a: a == sum(r % 2 == 0 for r in range(1, 16)), None)
lesson.exercise("3. first row", lambda a: a == allowed(shortcut, 5)[0], None)

# %%
assert one_layer == SIDE * 4 - 4 == 60
assert counts[4] == by_rule[4] == 75
assert (low, high) == (7, 8)
assert allowed(shortcut, 4) == (8, 8)
assert rows + sum(right[1]) - 2 == 8
assert rows + as_printed + right[1][1] - 2 == 9
assert least["whole"] > 1.5 * least["split"]
assert first == 0
assert min(accuracy.values()) > 0.5
print("\nall asserts passed")
