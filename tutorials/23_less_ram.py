# %% [markdown]
# # 23 Less RAM
#
# **Goal:** train the same network while the memory limit of the process falls, and let the
# operating system count what is held.
# **Prerequisites:** 04, 11. **Minutes:** 20.
# **Paper:** none; compare 000, section 3 (whose host memory is another one than the device's).
#
# So far a budget was one of the *device*: on a GPU that is a memory of its own. On the cpu device
# the *arena* (the device's memory) and the *host slab* (where swapped values lie) are pieces of the
# same RAM. What does your computer gain if a tensor moves from one to the other?

# %%
import time

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.devices.cpu.process_memory import MemoryWatch, held

nn, pictures, units = oc.nn, oc.pictures, oc.units
lesson = Lesson("23 less ram")

# %% [markdown]
# ## A network
#
# Ten convolutions on 12 images of 96 x 96 pixels: each output is as large as the others, so what
# forward keeps is ten times one of them.

# %%
lesson.cell("a network")
IMAGES, SIDE, CHANNELS = 12, 96, 32


def network():
    oc.manual_seed(0)
    layers, channels = [], 3
    for _ in range(10):
        layers += [nn.Conv2d(channels, CHANNELS, 3, padding=1), nn.ReLU()]
        channels = CHANNELS
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 5))


rng = np.random.default_rng(0)
x = rng.standard_normal((IMAGES, 3, SIDE, SIDE), np.float32)
y = np.arange(IMAGES) % 5
step = oc.trace(network(), x.shape)
in_core_peak = oc.trace_peak_bytes(oc.apply_rewrites(step, ("fuse", "share_storage")))
print(f"    in-core peak: {units.format_bytes(in_core_peak)}")

# %% [markdown]
# ## Swapping to the same RAM
#
# `window` plans the step at a budget of 30 %, and swaps to the host what does not fit. **How large
# are arena and slab together, as a multiple of the in-core peak?**

# %%
lesson.cell("swapping to the same RAM")
swapped = oc.plan(step, "30%", "window", "cpu-generic")

# %%
lesson.predict("arena and slab of a swapping plan / in-core peak")

# %%
both = (swapped.peak_bytes + swapped.host_peak_bytes) / in_core_peak
device, host = map(units.format_bytes, (swapped.peak_bytes, swapped.host_peak_bytes))
print(f"    device {device}, host {host}")
lesson.reveal("arena and slab of a swapping plan / in-core peak", both)

# %% [markdown]
# At every moment each value that is still to be read is in the arena or in the slab. So no list
# that runs each call once, by any planner, needs less than the in-core peak in both together: on
# this device swapping saves no RAM. What saves RAM is to hold a value *nowhere* and to compute it
# again (tutorial 11).
#
# ## One budget for the process
#
# `memory=` is a limit for all that the process holds: its own share (interpreter, libraries,
# kernels), batches on their way, host slab, arena. The library divides it, and *promises* how much
# the process will hold at most; here `dtr` plans, which computes again what is cheap for its size.
# `MemoryWatch` asks the operating system up to ten times a second what is held (`smaps_rollup` in
# Linux's /proc). A page that several processes share counts as a part of one.

# %%
lesson.cell("one budget for the process")
network()(oc.tensor(x[:1]))  # loads the kernels
trained = []


def train(memory):
    """Trains three steps within a limit; notes the promise, the count, a step's time, losses."""
    model = network()
    with oc.Trainer(model, memory=memory, planner="dtr") as trainer:
        promise = trainer.prepare(x.shape).promise  # what the process holds by itself is measured
        with MemoryWatch() as watch:
            losses, began = [trainer.step(x, y)], time.process_time()
            losses += [trainer.step(x, y) for _ in range(2)]
            used_s = (time.process_time() - began) / 2
        reruns = trainer.plan.notes.get("runs_again", 0)
    trained.append((promise, watch.most_bytes, used_s, losses, reruns))
    print(
        f"      {units.format_bytes(promise.promised_bytes):>8} promised, counted "
        f"{units.format_bytes(watch.most_bytes)}: arena {units.format_bytes(promise.arena_bytes)}, "
        f"slab {units.format_bytes(promise.slab_bytes)}; {reruns} calls run again, "
        f"{used_s * 1e3:.0f} ms of processor time"
    )
    return promise


own = held().counted_bytes
print(f"      {units.format_bytes(own):>8} held before the first step")
roomy = train("4GiB")

# %% [markdown]
# The limit is 4 GiB; what the step does not need is neither promised nor taken. Now the limit
# falls, until arena and slab have half of what they took. **By what factor is the step slower
# then?** (To compute all that the forward pass keeps once more would be one forward pass, a third
# of a step.)

# %%
lesson.cell("a falling limit")
needed = roomy.arena_bytes + roomy.slab_bytes
besides = roomy.promised_bytes - needed

# %%
lesson.predict("time of a step in half / in-core")

# %%
for share in (0.85, 0.65, 0.5):
    train(besides + int(share * needed))
slower = trained[-1][2] / trained[0][2]
lesson.reveal("time of a step in half / in-core", slower)

# %% [markdown]
# The measured time varies each time that you run this; the number of calls that run again does not.
# Whatever the limit, the losses have the same bits.
#
# ## What was promised, and what was held
#
# The picture shows the promises along its axis, and above each what the system counted. No run
# holds more than was promised (the dashed line). What lies between is much the same for each:
# upper bounds for batches, stacks and Python's objects, and pages of libraries, which count less
# while other processes use them too.

# %%
lesson.cell("promised and held")
limits = [promise.promised_bytes / units.MIB for promise, *_ in trained]
counted = [most / units.MIB for _, most, *_ in trained]
points = sorted(zip(limits, counted, strict=True))
lesson.picture(
    "23_less_ram.svg",
    pictures.curves_svg(
        "The same step in less memory",
        [
            pictures.Curve("counted by the system", points),
            pictures.Curve("promised", [(x, x) for x, _ in points], dashed=True),
        ],
        axes=("promised, MiB", "held by the process at most, MiB"),
    ),
)
between = [limit - most for limit, most in points]
print(f"    between them: {min(between):.0f} to {max(between):.0f} MiB")

# %% [markdown]
# ## Too little
#
# Below some limit `dtr` has no list, however the memory is divided. The refusal names a limit that
# is enough. We try it, with 8 MiB more, as the process itself may have grown meanwhile.

# %%
lesson.cell("too little")
try:
    train(besides + needed // 20)
    least = 0
except oc.Infeasible as refused:
    least = refused.minimum_bytes
    print(f"    [{refused.code}] {refused.what}; {units.format_bytes(least)} is enough")
    train(least + 8 * units.MIB)

# %% [markdown]
# ## Exercises
#
# `python 23_less_ram.py --check 1 ANSWER` checks your answer to the first one.
# `ooctrain plan resnet18 --batch 64 --image-size 32 --memory 700MiB` shows how a memory is divided,
# `ooctrain train` with `--memory` shows the parts and the count, and `ooctrain explain OOC-124`
# says what "too little" means.
#
# 1. A step's in-core peak is 800 MiB, its arena 300 MiB, and each call runs once. How many MiB has
#    its slab at least? (`ooctrain plan ... --budget 300MiB --planner window` prints "host peak".)
# 2. A memory of 1000 MiB; the process itself takes 200, batches, values, list and threads 50, the
#    inputs in the slab 10. How large can the arena be? (`ooctrain train ... --memory 1000MiB`)
# 3. Four micro-batches (`--accumulate 4`) of a network *with* batch norm: are they the same step,
#    "yes" or "no"?

# %%
lesson.cell("exercises")
lesson.exercise("1. the slab's least, MiB", lambda a: a == 800 - 300, None)
lesson.exercise("2. the arena, MiB", lambda a: a == 1000 - 200 - 50 - 10, None)
lesson.exercise("3. the same step?", lambda a: a.lower() == "no", None)

# %%
assert both >= 1
assert all(most <= promise.promised_bytes for promise, most, *_ in trained)
assert len({tuple(losses) for *_, losses, _ in trained}) == 1  # the same bits
runs_again = [reruns for *_, reruns in trained]
assert runs_again[0] == 0 < runs_again[1]
assert runs_again == sorted(runs_again)
arenas = [promise.arena_bytes for promise, *_ in trained]
assert arenas == sorted(arenas, reverse=True)
assert arenas[3] < 0.5 * arenas[0]
assert besides + needed // 20 < least
assert len(trained) == 5, "the limit that the refusal named was enough"
print("\nall asserts passed")
