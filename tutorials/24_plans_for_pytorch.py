# %% [markdown]
# # 24 Plans for PyTorch
#
# **Goal:** stay in PyTorch, and let a plan decide what its loop keeps between forward and backward:
# see what autograd saves, what can go wrong when it is taken away, and apply a plan that changes no
# bit.
# **Prerequisites:** 04, 11, 22. **Minutes:** 20. It needs PyTorch (`pip install torch`).
# **Paper:** none.
#
# A training loop of your own, a logger, an optimizer that nobody else has: sometimes only the
# memory is the problem, and everything else should stay. What does a planner need of such a loop?
# Names for what autograd saves, and a place to step in.

# %%
import copy
import sys

import numpy as np
from lesson import Lesson

import ooctrain as oc

lesson = Lesson("24 plans for PyTorch")
try:
    import torch
    from torch import nn
except ImportError:
    print("PyTorch is not installed here; `pip install torch`, and run this again")
    sys.exit(0)
units = oc.units

# %% [markdown]
# ## What autograd saves
#
# Each operation of the forward pass saves what its gradient will read. PyTorch hands every such
# tensor to a pair of hooks, if there is one: `pack` when it is saved, `unpack` when backward asks
# for it. Here `pack` only notes what it sees.
#
# A hook that copies each of them to the host moves some tensors more than once: the input of a
# block is saved by its convolution, and again by the product. **How many of the saved tensors are
# one that was saved before?** Go through a block: the convolution, the norm and the product save
# what they read, the sigmoid what it has made. And the loss is two calls: a logarithm of a softmax,
# which saves what it has made, and a mean, which saves what it reads.


# %%
lesson.cell("what autograd saves")


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = torch.sigmoid(self.norm(self.conv(x))) * x
        return nn.functional.dropout(out, 0.1, self.training)


torch.manual_seed(0)
BATCH, SIDE = 16, 32
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), *(Block(16) for _ in range(6)),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
)  # fmt: skip
x, y = torch.randn(BATCH, 3, SIDE, SIDE), torch.arange(BATCH) % 10
own = {value.untyped_storage().data_ptr() for value in (*net.parameters(), *net.buffers(), x)}
saved = []


def noted(tensor):
    """Activations only: parameters stay where they are, whatever anybody plans."""
    if tensor.untyped_storage().data_ptr() not in own:
        saved.append(tensor)
    return tensor


with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
    nn.functional.cross_entropy(net(x), y)
one = 16 * BATCH * SIDE * SIDE * 4
print(f"    {len(saved)} tensors are saved; one of 16 channels has {units.format_bytes(one)}")

# %%
lesson.predict("tensors that are saved once more")

# %%
places = [tensor.untyped_storage().data_ptr() for tensor in saved]
lesson.reveal("tensors that are saved once more", len(places) - len(set(places)))
in_all = sum(
    tensor.untyped_storage().nbytes() for tensor in dict(zip(places, saved, strict=True)).values()
)
print(f"    different ones: {len(set(places))}, {units.format_bytes(in_all)} in all")
saved.clear()

# %% [markdown]
# ## What can go wrong
#
# To let a tensor go and compute it again, one runs the call once more. For a dropout that is a new
# draw: another mask, and a gradient of a network that never was. Nothing fails, nothing is printed.
# A dropout of one half drops 10,000 ones twice. **How many percent of them differ between `first`
# and `again`**, about?

# %%
lesson.cell("what can go wrong")
ones = torch.ones(10_000)
state = torch.get_rng_state()
first = nn.functional.dropout(ones, 0.5)
again = nn.functional.dropout(ones, 0.5)
torch.set_rng_state(state)
rightly = nn.functional.dropout(ones, 0.5)

# %%
lesson.predict("percent of the elements that differ")

# %%
differ = round(100 * (first != again).double().mean().item())
lesson.reveal("percent of the elements that differ", differ)
assert torch.equal(first, rightly)

# %% [markdown]
# So the generator's state is kept beside each draw. Batch norm moves its running statistics when it
# runs, so they must not move twice; what runs under autocast must run again under autocast; and a
# tensor that is changed in place after it was saved is no longer what the plan has a name for.

# %% [markdown]
# ## A plan, applied
#
# `from_torch` gives the planner the list of calls. `applied` runs the network by that list, with
# PyTorch's own operations on its own parameters, and asks the plan for each tensor that is saved:
# keep it, copy it to the host, or let it go and compute it again. The loop is as it was.

# %%
lesson.cell("a plan, applied")
step = oc.trace(oc.from_torch(net, x.shape), x.shape, optimizer=None)


def two_steps(network):
    """Of a loop that knows nothing of plans."""
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [value.clone() for value in network.state_dict().values()]


plain_losses, plain = two_steps(copy.deepcopy(net))
reports = {}
for planner, budget in (("window", "0%"), ("dtr", "50%"), ("combined", "10%")):
    plan = oc.plan(step, budget, planner=planner, rewrites=())
    twin = copy.deepcopy(net)
    with oc.interop.torch.applied(plan, twin) as report:
        losses, values = two_steps(twin)
    same = losses == plain_losses and all(map(torch.equal, values, plain))
    reports[planner] = report
    print(f"    {planner:>8} {budget:>4}: the same bits: {same}; {str(report).split(';')[0]}")
    assert same

# %% [markdown]
# `window` swaps, `dtr` computes again, `combined` does what takes least time. What the plan wanted
# and autograd does not have is in `report.not_matched`: our batch norm saves other tensors than
# PyTorch's, and a view is never moved, since its base may live on.
#
# On a GPU the copies lie in pinned memory, run on a stream of their own, and come back one ahead of
# where backward is. On a CPU host and device are one memory, so here one sees what is moved, not
# what is won; `python -m benchmarks interop` measures both beside `save_on_cpu`, checkpoints and
# the compiler's budget.

# %% [markdown]
# ## Exercises
#
# `python 24_plans_for_pytorch.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. Two calls save the same tensor, and the plan swaps it. How many copies go to the host?
# 2. `z = y.view(-1)`; a call saves `z`, and the plan swaps `y`. Is `z` moved, "yes" or "no"?
# 3. Three runs of calls are computed again, one behind the other in the network. In which order
#    does backward ask for them: as three numbers, such as 123?

# %%
lesson.cell("exercises")
lesson.exercise("1. copies of a tensor that is saved twice", lambda a: a == 1, None)
lesson.exercise("2. whether a view is moved", lambda a: str(a).lower() == "no", None)
lesson.exercise("3. the order of regions in backward", lambda a: a == 321, None)

# %%
assert reports["window"].moved_bytes > 0
assert reports["window"].runs_again == 0
assert reports["dtr"].moved_bytes == 0
assert reports["dtr"].runs_again > 0
assert np.isfinite(plain_losses).all()
print("\nall asserts passed")
