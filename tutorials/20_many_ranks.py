# %% [markdown]
# # 20 Many ranks, the same bits
#
# **Goal:** see how several processes train one network together, and why the result has the same
# bits as that of a single process.
# **Prerequisites:** 02, 04, 10. **Minutes:** 25.
# **Paper:** 004, section 6.5, figure 11.
#
# A **rank** is a process that trains together with others. Each rank has the whole neural network
# and takes an equal part of every batch; before the update the ranks add up their gradients. This
# sum is the hard part: it has to travel between machines, and its last bits can depend on chance.
# In this tutorial the ranks are threads of one process, so it runs everywhere; the last experiment
# starts real processes.

# %%
import subprocess
import sys
from dataclasses import replace

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.cli.launch import find_mpiexec
from ooctrain.sched.timeline import hidden_us
from ooctrain.testing.thread_ranks import on_ranks

nn, pictures = oc.nn, oc.pictures
lesson = Lesson("20 many ranks")

# %% [markdown]
# ## A sum that depends on who is first
#
# Floating-point addition rounds, so the order of a sum matters. MPI, the library that connects the
# ranks, may add in the order in which messages arrive. We add four random numbers, one of each
# rank, 10,000 times. **What percentage of the sums changes in its last bits if the number of rank 3
# is added first?**

# %%
lesson.cell("the order of a sum")
lesson.predict("sums that change, percent")

# %%
rng = np.random.default_rng(0)
gradients = rng.standard_normal((4, 10_000)).astype(np.float32)


def added(order):
    total = gradients[order[0]].copy()
    for rank in order[1:]:
        total += gradients[rank]
    return total


in_rank_order, third_first = added([0, 1, 2, 3]), added([3, 0, 1, 2])
changed = 100 * np.mean(in_rank_order != third_first)
lesson.reveal("sums that change, percent", changed)

# %% [markdown]
# If every run gave other bits, no test could compare them with those of one rank. So we always add
# in rank order: rank 0, then 1, then 2, ... A single rank with `accumulate=4`, which takes the four
# parts of a batch one after the other, adds them in this order, too.
#
# ## In rank order, without sending more
#
# It would be simple to send everything to everybody: each of 4 ranks would then receive 3 times as
# many bytes as its gradients have. There is a way that moves less. The gradients are cut into 4
# parts. Rank r receives part r from every other rank, adds the four, and sends the sum to all.
# **How many bytes does each of 4 ranks receive for each byte of its gradients?**

# %%
lesson.cell("each part to its rank, each sum to every rank")
lesson.predict("bytes received for each byte of gradients")

# %%
parts = gradients.reshape(4, 4, -1)  # of rank s, for rank r
received = 0.0
sums = []
for rank in range(4):
    arrived = [parts[sender, rank] for sender in range(4)]  # all-to-all
    received += 3 / 4  # of its own part nothing travels
    total = arrived[0].copy()
    for part in arrived[1:]:
        total += part
    sums.append(total)
whole = np.concatenate(sums)  # allgather
received = received / 4 + 3 / 4
lesson.reveal("bytes received for each byte of gradients", received)
print("    the same bits as in rank order:", bool((whole == in_rank_order).all()))

# %% [markdown]
# For k ranks it is 2 (k - 1) / k. Both exchanges are *non-blocking*: a rank starts them and goes on
# computing.
#
# ## Two calls of the trace
#
# The gradients of the last layers are complete long before the backward pass ends. So gradients are
# sent in **buckets**: as soon as enough bytes are complete, the call `bucket0.start` sends them. A
# later call, `bucket0.finish`, waits for the sum, and the updates of these parameters follow. For
# the planner both are ordinary calls. Between them the bucket lies in a buffer of the host, so the
# gradients need no device memory during that time. **How many messages does a step of this small
# network send, with buckets of 16 KiB?** (Besides the buckets there are messages for the labels,
# the loss, and the statistics of batch norm.)

# %%
lesson.cell("what is sent when")
BATCH = 16
images = rng.standard_normal((3, BATCH, 3, 16, 16)).astype(np.float32)
labels = rng.integers(0, 10, (3, BATCH))


def network():
    oc.manual_seed(0)
    convolution = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    deeper = [
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Dropout(0.2),
    ]
    return nn.Sequential(*convolution, *deeper, nn.Flatten(), nn.Linear(32 * 64, 10))


def train(ranks, parts=1, **how):
    """Three steps; losses, all values, and the step as it was planned."""
    mine = slice(None) if ranks is None else ranks.part_of(BATCH)
    settings = {"accumulate": parts, "threads": 1, "ranks": ranks, **how}
    with oc.Trainer(network(), **settings) as trainer:
        losses = [trainer.step(x[mine], y[mine]) for x, y in zip(images, labels, strict=True)]
        return losses, trainer.state_arrays(), trainer.prepared


# %%
lesson.predict("messages of a step")

# %%
two = on_ranks(2, lambda ranks: train(ranks), bucket="16KiB")
trace = two[0][2].plan.trace
sent = [call.name for call in trace.calls if call.name.endswith(".start")]
print("   ", ", ".join(sent))
lesson.reveal("messages of a step", len(sent))

# %% [markdown]
# Each rank normalises with the statistics of its own part of the batch, as `accumulate` does; the
# running statistics are then updated with those of all ranks, in rank order. The dropout mask of an
# image depends on its number in the whole batch, so it does not matter which rank takes the image.
#
# ## The same bits
#
# **How many of the arrays that last from step to step (weights, momentum, statistics) differ from
# those of one rank with `accumulate=2`?** To make it harder, the two ranks train with a budget of
# 40 %; the single rank may use all of its memory.

# %%
lesson.cell("the bits of one rank")
lesson.predict("arrays that differ")

# %%
tight = {"budget": "40%", "planner": "belady"}
two = on_ranks(2, lambda ranks: train(ranks, **tight), bucket="16KiB")
losses, expected, _ = train(None, parts=2)
differing = [
    name for found in two for name, value in expected.items() if (found[1][name] != value).any()
]
lesson.reveal("arrays that differ", len(differing))
print(f"    {len(expected)} arrays on each rank; losses {two[0][0]}")

# %% [markdown]
# ## What the network costs
#
# The simulator knows the network between the ranks (`Machine.network_bytes_per_us`). While a
# message travels, the step goes on computing; the time of a message that costs no waiting is
# **hidden**. Here is the same step over 10 Gbit/s and over 0.5 Gbit/s. In the picture, the long bar
# in the second `compute` lane is a call `bucket0.finish` that waits for its message.

# %%
lesson.cell("two networks")
plan = two[0][2].plan
timelines = {}
for name, bytes_per_us in (("10 Gbit/s", 1250.0), ("0.5 Gbit/s", 62.5)):
    machine = replace(oc.machine("cpu-generic"), network_bytes_per_us=bytes_per_us)
    timelines[name] = line = oc.simulate(plan, plan.trace, machine)
    share = hidden_us(line) / line.busy_us("N")
    print(f"    {name}: step {line.makespan_us:.0f} us, messages {line.busy_us('N'):.0f} us, "
          f"{share:.0%} of that time hidden")  # fmt: skip
phases = {call.name: call.phase for call in plan.trace.calls}
lesson.picture(
    "20_ranks.svg",
    pictures.timelines_svg(timelines, budget_bytes=plan.peak_bytes, phases=phases),
)

# %% [markdown]
# ## Real ranks
#
# `ooctrain train lenet --ranks 2` starts two ranks on this machine. On several machines the
# launcher of MPI starts them: `mpiexec -n 64 python -m mpi4py -m ooctrain train ...`. In a program
# of your own:
#
# ```python
# ranks = oc.distributed.world()
# loader = oc.data.DataLoader(data, 64, drop_last=True, share=ranks.part_of)
# trainer = oc.Trainer(model, ranks=ranks)
# ```
#
# `--verify` trains once more on one rank, and compares every bit.

# %%
lesson.cell("real ranks")
try:
    find_mpiexec()
    words = "train lenet --batch 32 --steps 3 --threads 1 --budget 60% --ranks 2 --verify"
    command = [sys.executable, "-m", "ooctrain", *words.split()]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    real = shown.returncode == 0 and "the same bits as in-core" in shown.stdout
    print("    ooctrain", words)
    lines = [line for line in shown.stdout.splitlines() if line.startswith(("ranks", "result"))]
    print(*(f"    {line}" for line in lines), sep="\n")
except oc.OoctrainError as error:
    real = None
    print(f"    not run here: {error.what}; {error.fix}")

# %% [markdown]
# ## Exercises
#
# `python 20_many_ranks.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. How many MiB does each of 4 ranks receive for a bucket of 1 MiB?
# 2. A batch has 96 images. What is the smallest number of ranks above 4 that can share it equally?
# 3. How many times does a step on 8 ranks update the running statistics of one batch norm?

# %%
lesson.cell("exercises")
lesson.exercise("1. MiB received for a bucket of 1 MiB", lambda a: a == 2 * 3 / 4, None)
lesson.exercise("2. the smallest number of ranks above 4", lambda a: a == 6, None)
lesson.exercise("3. how often statistics are updated", lambda a: a == 8, None)

# %%
assert 0 < changed < 100
assert received == 1.5
assert (whole == in_rank_order).all()
assert sent[-1] != "bucket0.start"
assert not differing
assert all(found[0] == losses for found in two)
assert timelines["0.5 Gbit/s"].makespan_us > timelines["10 Gbit/s"].makespan_us
assert real is not False
print("\nall asserts passed")
