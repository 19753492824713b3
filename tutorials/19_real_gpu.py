# %% [markdown]
# # 19 A real GPU
#
# **Goal:** meet the GPU behind the library: its driver, its page table, its streams; then train on
# it out-of-core, bit for bit as in-core. Without a GPU everything here still runs: over a driver
# written in Python that forgives nothing, with the kernels in the emulator of tutorial 18.
# **Prerequisites:** 04, 07, 18. **Minutes:** 25.
# **Paper:** 000, sections 3.3 and 4; CUDA driver API, "Virtual Memory Management".
#
# The executor knows nothing of GPUs. It walks the list, claims and frees blocks, and hands each
# call, copy and wait to a *device*. The cpu device does them with threads, the cuda device queues
# them on three CUDA streams. So what you learned about lists holds here too.

# %%
import ctypes
from contextlib import ExitStack

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.devices.cuda import open as gpus
from ooctrain.devices.cuda.device import CudaDevice
from ooctrain.testing.fake_gpu import fake_gpu

nn, pictures, units = oc.nn, oc.pictures, oc.units
lesson = Lesson("19 a real GPU")

# %% [markdown]
# ## Is there one?
#
# The driver is a library, libcuda, that comes with the kernel module of the operating system; no
# toolkit is needed to call it. To compile kernels Numba also needs numba-cuda. If something is
# missing, the cell names it and the command that installs it (`ooctrain doctor` says the same).

# %%
lesson.cell("is there a GPU?")


def usable_gpu():
    """A GPU that everything here works on, or None."""
    try:
        gpu = gpus.look_at_gpu()
        gpus.require_compiler(gpu)
    except oc.errors.DeviceUnavailable as error:
        print("    " + str(error).replace("\n", "\n    "))
        return None
    free, total = units.format_bytes(gpu.free_bytes), units.format_bytes(gpu.total_bytes)
    print(f"    {gpu.name}, {free} free of {total}")
    if gpu.mapping_problem:
        print(f"    it maps no memory ({gpu.mapping_problem})")
        return None
    return gpu


# While the fake is plugged in, code that opens a GPU gets it; nothing else knows of it. Of the
# streams that can go on, it runs the one that was made last (`max`).
plugged = ExitStack()
gpu = usable_gpu()
if gpu is None:
    plugged.enter_context(fake_gpu(choose=max))
    print("    -> from here on: the strict fake driver, and kernels in the emulator")

# %% [markdown]
# ## Its page table
#
# Tutorial 07 built a page table with `mmap`. Here are the driver's calls: `reserve` gives addresses
# with nothing behind them, `create` gives memory without an address, `map` brings them together.
# Two pieces of memory are filled through one range of addresses, then mapped the other way round
# behind another.

# %%
lesson.cell("two pieces of memory change places without being copied")
driver = gpus.open_cuda_driver()
piece = driver.granularity()
print(f"    memory comes in pieces of {units.format_bytes(piece)}")


def bytes_at(address, size):
    """The bytes of the host at an address, as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


handles = [driver.create(piece), driver.create(piece)]
stream, host = driver.create_stream(), driver.host_alloc(2 * piece)


def mapped(order):
    """An address range with the two pieces behind it, in an order."""
    address = driver.reserve(2 * piece)
    for place, number in enumerate(order):
        driver.map(address + place * piece, piece, handles[number])
    driver.set_access(address, 2 * piece)
    return address


def unmapped(address):
    """Takes the pieces away from a range, which must be idle, and gives the range back."""
    driver.synchronize_stream(stream)
    driver.unmap(address, piece)
    driver.unmap(address + piece, piece)
    driver.address_free(address, 2 * piece)


there = mapped((0, 1))
driver.fill(there, 1, piece, stream)
driver.fill(there + piece, 2, piece, stream)
unmapped(there)
again = mapped((1, 0))
driver.copy_out(host, again, 2 * piece, stream)
driver.synchronize_stream(stream)
seen = bytes_at(host, 2 * piece)[[0, piece]].tolist()
print(f"    filled with 1 and 2; in the other order they read {seen}")

# %% [markdown]
# ## Its streams
#
# A stream is a queue. The host puts work into it and does not wait: the host runs ahead, and the
# GPU does the work when its turn comes. Between streams there is no order but what *events* make.
# **Of eight pieces of work, how many are done when the host has queued the last?**

# %%
lesson.cell("the host runs ahead")
lesson.predict("pieces done when the last one is queued")

# %%
other = driver.create_stream()
events = [driver.create_event() for _ in range(8)]
for number, event in enumerate(events):
    driver.fill(again, 10 + number, 2 * piece, stream)
    driver.record_event(event, stream)
driver.wait_event(other, events[-1])
driver.copy_out(host, again, 2 * piece, other)
done = sum(driver.event_done(event) for event in events)
lesson.reveal("pieces done when the last one is queued", done)
driver.synchronize_stream(other)
last = int(bytes_at(host, 2 * piece)[0])
print(f"    the copy on the other stream waited for the last event: it read {last}")

# %%
unmapped(again)
for event in events:
    driver.destroy_event(event)
driver.destroy_stream(other)
driver.destroy_stream(stream)
driver.host_free(host)
for handle in handles:
    driver.release(handle)
kept = driver.held() if gpu is None else {}
driver.close()

# %% [markdown]
# ## The same list
#
# Now a network. Tracing for "cuda" chooses other algorithms for its convolutions and other
# workspaces; everything after that is as before. We train two steps in-core, and two with a budget
# of 25 %. **By how much do the losses differ?** (On a GPU, thousands of threads add up thousands of
# numbers.)

# %%
lesson.cell("training, in-core and within 25 %")
SHAPE = (32, 3, 64, 64) if gpu else (2, 3, 8, 8)
CLASSES = 5
rng = np.random.default_rng(0)
images, labels = rng.standard_normal(SHAPE, np.float32), rng.integers(0, CLASSES, SHAPE[0])


def network():
    """Two convolutions and a linear layer, always with the same weights."""
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(8 * (SHAPE[2] // 2) ** 2, CLASSES),
    )  # fmt: skip


def train(budget, planner, on="cuda"):
    """Trains two steps; returns their losses, the weights after them, the timeline of the second,
    and the phase of each call.
    """
    allocator = "va" if gpu or on == "cpu" else "va:chunk=4KiB"
    with oc.Trainer(
        network(), budget=budget, planner=planner, allocator=allocator, device=on,
        machine="cpu-generic",
    ) as trainer:  # fmt: skip
        losses = [trainer.step(images, labels) for _ in range(2)]
        phases = {call.name: call.phase for call in trainer.plan.trace.calls}
        return losses, trainer.model.state_dict(), trainer.timeline, phases


# %%
lesson.predict("difference of the losses")

# %%
whole_losses, whole_weights, whole, phases = train(None, "keep-all")
tight_losses, tight_weights, tight, _ = train("25%", "window")
lesson.reveal("difference of the losses", abs(whole_losses[1] - tight_losses[1]))
sizes = [units.format_bytes(n) for n in (whole.peak_bytes, tight.peak_bytes, tight.bytes_out)]
print("    peak {} and {}; moved {} out".format(*sizes))
cpu_losses, *_ = train(None, "keep-all", "cpu")
print(f"    second loss: {tight_losses[1]:.9f}, on the cpu device {cpu_losses[1]:.9f}")

# %% [markdown]
# Not a bit: kernels add in an order that depends on shapes alone (no atomics), and swapping moves
# bytes. The cpu device has kernels of its own, which add in another order; there the last digits
# may differ.
#
# ## In time
#
# Each piece of work lies between two events, and an event notes the time at which its stream
# reached it. The fake driver counts time in pieces of work done, and runs each piece as late as
# CUDA allows.

# %%
lesson.cell("a picture of the three streams")
lesson.predict("how many times longer the step takes")

# %%
unit = "" if gpu else " (each us is one piece of work of the fake driver)"
lesson.picture("19_streams.svg", pictures.timelines_svg(
    {f"in-core{unit}": whole, f"within 25 %{unit}": tight}, budget_bytes=tight.peak_bytes,
    phases=phases,
))  # fmt: skip
lesson.reveal("how many times longer the step takes", tight.makespan_us / whole.makespan_us)

# %% [markdown]
# The host queues each piece by a call of the driver, some thousands in a step of a large network.
# In every step they are the same. With `OOCTRAIN_LAUNCHER=graph` they are recorded once, and from
# then on the whole step is one call: a *graph* of CUDA (docs/gpu.md, "Whole steps"). What may
# change from step to step, such as the learning rate, must then lie in memory where a kernel looks
# it up. And a step that maps memory cannot be recorded: mapping is not a piece of work of a stream.

# %% [markdown]
# ## When it does not fit
#
# Every refusal of a driver becomes one error that says what was asked, what there is, and what to
# do. We ask for more than the device has.

# %%
lesson.cell("more than there is")
refused = None
greedy = gpus.open_cuda_driver()
try:
    CudaDevice(
        greedy, gpus.make_kernels, greedy.memory_info()[1] + units.MIB, piece_bytes=2 * units.MIB
    ).close()
except oc.errors.OutOfDeviceMemory as error:
    refused = error
    print("    " + str(error).replace("\n", "\n    "))

# %% [markdown]
# ## Exercises
#
# `python 19_real_gpu.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. Memory comes in pieces of 2 MiB. How many MiB does a block of 5 MiB take?
# 2. A link moves 50 GB/s. How many microseconds do 100 MB (10^8 bytes) take?
# 3. May a mapping be taken away as soon as the last kernel that uses it has been queued? (True or
#    False)

# %%
lesson.cell("exercises")
lesson.exercise("1. MiB", lambda v: v == 6, None)
lesson.exercise("2. microseconds", lambda v: v == 2000, None)
lesson.exercise("3. unmapping", lambda v: v is False, None)

# %%
assert seen == [2, 1]
assert last == 17
assert whole_losses == tight_losses
assert all((whole_weights[name] == tight_weights[name]).all() for name in whole_weights)
assert tight.peak_bytes < whole.peak_bytes
assert tight.bytes_in > 0, "values went out and came back"
assert np.allclose(tight_losses, cpu_losses, rtol=1e-3)
assert refused is not None
if gpu is None:
    assert done == 0
    assert not any(kept.values())
plugged.close()
print("\nall asserts passed")
