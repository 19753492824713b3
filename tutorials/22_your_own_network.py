# %% [markdown]
# # 22 Your own network
#
# **Goal:** take a network that is written in PyTorch, train it here within a quarter of the memory
# between its least and its in-core peak, and take the weights back.
# **Prerequisites:** 02, 04. **Minutes:** 20. It needs PyTorch (`pip install torch`).
# **Paper:** none.
#
# Nobody rewrites a network to try a memory planner. What does a planner need to know of a network?
# A list of calls, and what each reads and writes. PyTorch can write such a list of your own code.

# %%
import sys

import numpy as np
from lesson import Lesson

import ooctrain as oc

lesson = Lesson("22 your own network")
try:
    import torch
    from torch import nn
except ImportError:
    print("PyTorch is not installed here; `pip install torch`, and run this again")
    sys.exit(0)
units = oc.units

# %% [markdown]
# ## A network, as people write them
#
# Residual blocks that change tensors in place, a dropout that is called as a function, and a branch
# that asks for the mode: all three are common, and all three can go wrong on the way.

# %%
lesson.cell("a network")


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = self.norm(self.conv(x))
        out += x
        return nn.functional.relu_(out)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(16) for _ in range(6)))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.blocks(self.stem(x)).mean((2, 3))
        x = nn.functional.dropout(x, 0.1, self.training)
        return self.head(x) if self.training else self.head(x).softmax(1)


torch.manual_seed(0)
net = Net()
parameters = sum(parameter.numel() for parameter in net.parameters())
print(f"    {parameters} parameters, in {len(list(net.modules()))} parts")

# %% [markdown]
# ## The list that PyTorch writes
#
# `torch.export` runs `forward` once without computing anything, and notes each call. The names of
# tensors that begin with `p_` are parameters, with `b_` buffers. **How many of the calls write into
# what they read** (their names end in `_`)? Count them in the code: in each block, what is changed
# in place? Mind that batch norm counts its batches.

# %%
lesson.cell("the list")
BATCH = 32
exported = torch.export.export(net, (torch.empty(BATCH, 3, 32, 32),), strict=False)
calls = [node for node in exported.graph.nodes if node.op == "call_function"]
for node in calls[:7]:
    print(f"    {node.name} = {node.target}({', '.join(map(str, node.all_input_nodes))})")
print(f"    ... {len(calls)} calls")

# %%
lesson.predict("calls that change a tensor in place")

# %%
in_place = [node for node in calls if str(node.target).split(".")[1].endswith("_")]
lesson.reveal("calls that change a tensor in place", len(in_place))

# %% [markdown]
# ## The same network here
#
# A call of our list never changes what it reads: only so can it be run again, moved, or cut into
# tiles. So `add_(out, x)` becomes `add(out, x)`, and what reads `out` later reads the sum. That is
# right as long as no *view* of `out` is read later; such a network is refused. Counting batches is
# the business of our batch norm. The rest is a table: each call of PyTorch, and a function of ours.

# %%
lesson.cell("the same network")
model = oc.from_torch(net, (BATCH, 3, 32, 32))
assert list(model.state_dict()) == list(net.state_dict())
rng = np.random.default_rng(0)
x, y = rng.standard_normal((BATCH, 3, 32, 32), np.float32), np.arange(BATCH) % 10
step = oc.trace(model, x.shape)
own = [call.name for call in step.calls if call.phase == "forward" and "blocks.0" in call.name]
print(f"    calls of the first block: {', '.join(own)}")

# %% [markdown]
# Both modes came over: PyTorch wrote one list in training and one in evaluation. **By how much do
# the two libraries differ in evaluation**, at most, in a probability?

# %%
lesson.cell("evaluation")


def difference():
    """In evaluation, where nothing is drawn."""
    with torch.no_grad(), oc.no_grad():
        theirs = net.eval()(torch.from_numpy(x)).numpy()
        ours = model.eval()(oc.tensor(x)).numpy()
    net.train()
    model.train()
    return float(np.abs(ours - theirs).max())


# %%
lesson.predict("largest difference of a probability")

# %%
before = difference()
lesson.reveal("largest difference of a probability", before)

# %% [markdown]
# Not zero: the sums of a convolution run in another order. Within *this* library the order is
# fixed, so a budget changes no bit. We train twice, in-core and in a quarter.

# %%
lesson.cell("a quarter of the memory")
start, results = model.state_dict(), []
for budget in (None, "25%"):
    model.load_state_dict(start)
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with oc.Trainer(model, optimizer=optimizer, budget=budget) as trainer:
        losses = [float(trainer.step(x, y)) for _ in range(5)]
        peak = trainer.timeline.peak_bytes
    results.append((losses, peak, model.state_dict()))
    print(
        f"    budget {budget!s:>4}: {units.format_bytes(peak)} at the peak, loss {losses[-1]:.4f}"
    )
(in_core, in_core_peak, values), (within, peak, found) = results

# %% [markdown]
# ## And back
#
# The weights go into the network that they came from; its own code runs on.

# %%
lesson.cell("and back")
oc.to_torch(model, net)
after = difference()
print(f"    largest difference after five steps here: {after:.1e}")

# %% [markdown]
# ## What cannot be done
#
# What this library has no function for is refused before anything is trained, all of it at once.
# `oc.interop.torch.register` takes one of your own. [The page](../docs/howto/from_torch.md) has the
# whole list.

# %%
lesson.cell("what cannot be done")


class Cumulative(nn.Module):
    def forward(self, x):
        half = x[:, :1]
        x = torch.cumsum(x * 2.0, 1)
        x.mul_(half)
        return x.sort(1)[0].flatten(1)


try:
    oc.from_torch(Cumulative(), (4, 3, 8, 8))
    refused = ""
except oc.OoctrainError as error:
    refused = error.numbers
    print(f"    [{error.code}] {refused}")

# %% [markdown]
# ## Exercises
#
# `python 22_your_own_network.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. `y = x.view(-1); x.add_(1); return y * 2`: does `y` have the old values or the new ones, "old"
#    or "new"?
# 2. And if the importer simply wrote `add` for `add_`: "old" or "new"?
# 3. A network was imported with images of 224 x 224. Which extents of a batch may change later, by
#    their numbers in (N, C, H, W) from 0 on?

# %%
lesson.cell("exercises")
lesson.exercise("1. in PyTorch", lambda a: a.lower() == "new", None)
lesson.exercise("2. by a naive importer", lambda a: a.lower() == "old", None)
lesson.exercise("3. the extents that may change", lambda a: a in (0, (0,), [0]), None)

# %%
assert len(in_place) == 6 * 3
assert before < 1e-5
assert in_core == within
assert all(np.array_equal(values[name], found[name]) for name in values)
assert peak < in_core_peak
assert after < 1e-4
assert "cumsum.default" in refused
assert "sort.default" in refused
print("\nall asserts passed")
