# %% [markdown]
# # 17 Split-CNN
#
# **Goal:** cut a network into patches that know nothing of each other, see what the zeros at their
# borders do, on real digits, and what it saves.
# **Prerequisites:** 05, 14. **Minutes:** 25.
# **Paper:** 004, sections 3 and 6.3.
#
# The bands of tutorial 14 compute what the whole network computes: a band fetches the rows that its
# windows want from its neighbours. Split-CNN fetches nothing. Each patch of the image goes through
# the first layers by itself, and where a window looks over the edge of its patch, it sees zeros.
# Nothing has to be kept for a neighbour, and nothing is computed twice. But it is another network.

# %%
import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.split.boundaries import allowed, lower_bound, paddings, sizes, upper_bound
from ooctrain.step.op import Window

pictures, units = oc.pictures, oc.units
lesson = Lesson("17 split-CNN")
nn = oc.nn
SIDE = 16

# %% [markdown]
# ## Zeros at a border
#
# A digit of 16 x 16 pixels, one 3 x 3 convolution with padding 1, four patches of 8 x 8. A pixel of
# the output differs if its window crosses the cut. That is one row above the cut and one below it,
# and as many columns. **How many of the 256 pixels differ from the unsplit convolution?**

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
# The next layer reads the wrong rows, and makes one more of them wrong on each side. Pooling halves
# the image, not the number of wrong rows per layer. **What share of the pixels differs after four
# layers, in percent?**

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
# The rule is 1 - ((16 - 2 n) / 16)^2. On photographs of 224 x 224 the same layers touch a few
# percent, which is why the paper may split three quarters of a network. It is also why small images
# show the price best.
#
# ## Where to cut
#
# Let O be the first output row of a part. The window of output O begins at row O s - p of the input
# (equation 1, `lower_bound`); that of output O - 1 ends before row (O - 1) s + k - p (equation 2,
# `upper_bound`). Between the two the input may be cut, and no row is lost. **A 3 x 3 convolution
# of stride 2 and padding 1: how many cuts are allowed before output 4?**

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
# Pooling 2 x 2 with stride 2 has one cut, and needs no padding there: it is split for nothing. The
# 1 x 1 shortcut of a residual block skips every second row: its bounds are the wrong way round,
# and the part begins at its first window. The 3 x 3 branch beside it allows that very cut, so both
# branches share it.
#
# ## The equation in print
#
# A cut at I leaves the next part with too few rows above its first window; padding makes up for
# them: p = I + p_b - O s. The paper prints (O - 1) s. **With the printed formula, how many output
# rows does the lower half of 16 rows have?**

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
# `oc.split` does it for a whole network: boundaries are chosen where the patches are joined, and
# each layer hands them on. VGG-16, batch 64, three quarters of the convolutions in 2 x 2 patches.
# No schedule can do with less memory than its largest call needs. **By what factor does the split
# lower that least memory?**

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
# Parameters, gradients and momentum do not shrink with the patches, and nor do the linear layers.
#
# ## What it learns
#
# Another network learns something else. We train a small one on real digits from the same weights:
# whole, in patches, and in patches whose boundaries are drawn anew for each step, so that the
# network cannot get used to a border (section 3.3). All three are tested whole. **At which step do
# the losses of whole and split first differ?** (Steps count from 0.)

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
# In training the split network does as well as the whole one; tested whole it fails more often: it
# has learned to use its borders. One short run says nothing more than that; the seed matters too.
# `ooctrain reproduce split-accuracy` trains several seeds, tests whole and in patches, and prints
# the spread.
#
# ## Exercises
#
# `python 17_split_cnn.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. A 5 x 5 convolution with padding 2, cut once between two rows: how many rows of its output
#    differ?
# 2. 16 rows are pooled 2 x 2 with stride 2. After how many of the 15 inner rows can one cut without
#    any padding?
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
