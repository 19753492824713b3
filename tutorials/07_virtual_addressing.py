# %% [markdown]
# # 07 Virtual addressing
#
# **Goal:** build an allocator that has no holes, from `mmap` up; learn what it costs, and why that
# of the library costs next to nothing.
# **Prerequisites:** 06; Linux (the system call `memfd_create`). **Minutes:** 25.
# **Paper:** 000, section 4 (equations 1 and 2).
#
# Best fit failed because a block must be one piece of memory. But a program never sees memory, it
# sees *addresses*; page by page, the processor looks up in a table which memory is behind them. As
# long as a block's addresses are in a row, its pages can be anywhere.

# %%
import ctypes
import mmap
import os
import time

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.experiments.paper_000.fragmentation import replay_chunks

pictures, units = oc.pictures, oc.units
lesson = Lesson("07 virtual addressing")

# %% [markdown]
# ## One memory, two addresses
#
# A *memfd* is a file that exists only in memory: it plays the GPU's memory here. `mmap` makes a
# piece of it appear at an address. We map the same piece twice.

# %%
lesson.cell("one memory, two addresses")
memory = os.memfd_create("memory")
os.ftruncate(memory, 64 * units.KIB)
one, two = mmap.mmap(memory, 64 * units.KIB), mmap.mmap(memory, 64 * units.KIB)
one[0] = 42
print(f"    written through the first address, read through the second: {two[0]}")
seen = two[0]
one.close()
two.close()
os.close(memory)

# %% [markdown]
# ## A page table in forty lines
#
# Now the other way round: *one* row of addresses, pieces from anywhere. Memory is cut into chunks
# of equal size. A block of k chunks is an address range of its own (reserved: it has addresses and
# nothing behind them), into which any k free chunks are mapped. On a GPU the same calls are
# `cuMemAddressReserve`, `cuMemCreate`, `cuMemMap` and `cuMemSetAccess`.

# %%
lesson.cell("a page table in forty lines")
CHUNK = 64 * units.KIB
MAP_FIXED = 0x10  # Python's mmap module has all other constants
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class PageTable:
    """Blocks whose addresses are in a row and whose chunks are anywhere."""

    def __init__(self, size):
        self.memory = os.memfd_create("memory")
        os.ftruncate(self.memory, size)
        self.free_chunks = list(range(size // CHUNK))
        self.table = {}  # address of a block: its chunks
        self.maps = 0

    def allocate(self, size):
        """The address of a new block, or None."""
        count = -(-size // CHUNK)
        if count > len(self.free_chunks):
            return None
        nothing = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = libc.mmap(None, count * CHUNK, 0, nothing, -1, 0)
        self.table[address] = [self.free_chunks.pop(0) for _ in range(count)]
        for slot, chunk in enumerate(self.table[address]):
            self._map(address + slot * CHUNK, chunk)
        return address

    def free(self, address):
        """Takes the addresses away and keeps the chunks."""
        chunks = self.table.pop(address)
        libc.munmap(address, len(chunks) * CHUNK)
        self.free_chunks += chunks

    def _map(self, address, chunk):
        access, how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED
        libc.mmap(address, CHUNK, access, how, self.memory, chunk * CHUNK)
        self.maps += 1


def bytes_at(address, size):
    """The bytes at an address, as an array."""
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))


# %% [markdown]
# ## The two holes of tutorial 03
#
# Four blocks of 1 MiB fill 4 MiB; the first and the third go. A block of 2 MiB comes.

# %%
lesson.cell("two holes make one block")
pages = PageTable(4 * units.MIB)
blocks = [pages.allocate(units.MIB) for _ in range(4)]
for number, address in enumerate(blocks):
    bytes_at(address, units.MIB)[:] = number
pages.free(blocks[0])
pages.free(blocks[2])
large = pages.allocate(2 * units.MIB)
array = bytes_at(large, 2 * units.MIB)
array[:] = 99
untouched = [set(bytes_at(blocks[n], units.MIB).tolist()) for n in (1, 3)]
chunks = pages.table[large]
one_array = bool((array == 99).all())
print(f"    the block's chunks: {chunks[0]} to {chunks[15]}, then {chunks[16]} to {chunks[31]}")
print(f"    one array over both: {one_array}; the neighbours hold {untouched}")

# %% [markdown]
# ## The price
#
# Mapping is work for the operating system, and the first touch of a fresh page is more. **How much
# slower is it to allocate, write and free 1 MiB than only to write it?**

# %%
lesson.cell("what a mapping costs")
lesson.predict("allocate + write + free, over write")

# %%


def us(work, times=20):
    """The least time of some runs."""
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best * 1e6


def allocate_write_free():
    """What an allocator does that gives the addresses back each time."""
    address = pages.allocate(units.MIB)
    bytes_at(address, units.MIB).fill(1)
    pages.free(address)


pages.free(blocks[1])
write_us, all_us = us(lambda: array[: units.MIB].fill(1)), us(allocate_write_free)
price = all_us / write_us
lesson.reveal("allocate + write + free, over write", price)
print(f"    write {write_us:.0f} us, with mapping {all_us:.0f} us")

# %% [markdown]
# ## The danger
#
# A chunk that is given out again while a copy still works at its old address is silent
# corruption: two arrays over the same bytes. We do it on purpose.

# %%
lesson.cell("the same chunk in two blocks")
careless = PageTable(CHUNK)
old = bytes_at(careless.allocate(CHUNK), CHUNK)
careless.free_chunks += next(iter(careless.table.values()))  # "freed", but still mapped
new = bytes_at(careless.allocate(CHUNK), CHUNK)
new[:] = 1
old[0] = 77  # a copy that was still on its way
corrupted = int(new[0])
print(f"    somebody wrote 77 to the old address; the new block reads {corrupted}")

# %% [markdown]
# So a mapping may be *broken* only when its last user is done (the library waits for that event;
# paper 000's authors keep such ranges on a waiting list). But look at it the other way round: a
# chunk may well be *mapped* in several places, if at most one of them is in use. So old mappings
# can be kept, and the next time a block of that size is asked for, nothing needs to be mapped.
#
# ## What the library does
#
# A training step asks for the same blocks in the same order each time. We replay three steps of
# ResNet-18. `va-paper` is paper 000 to the letter (each free takes the addresses away), `va` keeps
# its mappings. **How many mappings does `va` make in the third step?**

# %%
lesson.cell("three steps of ResNet-18")
lesson.predict("mappings of va in the third step")

# %%
model = oc.models.build("resnet18", num_classes=10, stem="cifar")
trace = oc.trace(model, (64, 3, 32, 32), threads=1)
plan = oc.plan(trace, "25%", "window", "v100-pcie", oc.Granule(1, ranges=False))
log = oc.allocation_log(plan.trace, plan.schedule, plan.peak_bytes)
paper, ours = oc.alloc.replay(log, "va-paper:chunk=64KiB"), oc.alloc.replay(log, "va:chunk=64KiB")
print(f"    va-paper: {paper.maps_by_step} mappings in steps 1, 2, 3")
print(f"    va:       {ours.maps_by_step}")
lesson.reveal("mappings of va in the third step", ours.maps_by_step[2])

# %% [markdown]
# Two more lie between these. The paper's authors programmed it otherwise than they printed it
# (`va-nnabla`): a freed range stays mapped and serves again at its very size, and is taken apart
# when chunks are short. GMLake (2024) cuts blocks into pieces, stitches pieces that are free into a
# new range, and keeps both. The baseline of all of them never joins two segments of the driver
# (`best-fit-caching`).

# %%
for name in ("va-nnabla:chunk=64KiB", "gmlake:chunk=64KiB", "best-fit-caching"):
    other = oc.alloc.replay(log, name)
    reserved = units.format_bytes(other.stats.peak_reserved_bytes)
    print(f"    {name:<24} {other.maps_by_step} mappings, {reserved} reserved")
print(f"    va reserves {units.format_bytes(ours.stats.peak_reserved_bytes)}")

# %% [markdown]
# All that map chunks reserve the same. They differ in what a step costs once it repeats itself.
#
# ## How large should a chunk be?
#
# A block takes whole chunks, so it wastes less than one (equation 1), and N blocks waste less than
# N chunks (equation 2). Small chunks waste little and need many mappings. **How much does ResNet-18
# at batch 256 of ImageNet waste with chunks of 2 MiB, CUDA's least, in MiB?**

# %%
lesson.cell("chunk sizes")
lesson.predict("MiB wasted with chunks of 2 MiB")

# %%
costs = replay_chunks(
    [64 * units.KIB << n for n in range(9)],
    "va",
    model="resnet18",
    batch=256,
    budget_bytes=4 * units.GIB,
)
for cost in costs:
    chunk, waste = units.format_bytes(cost.chunk_bytes), units.format_bytes(cost.wasted_bytes)
    bound = units.format_bytes(cost.live_blocks * cost.chunk_bytes)
    print(f"      {chunk:>8}: {waste:>8} wasted, bound {bound:>8}, {cost.first_maps} mappings")
wasted = next(cost.wasted_bytes for cost in costs if cost.chunk_bytes == 2 * units.MIB) / units.MIB
lesson.reveal("MiB wasted with chunks of 2 MiB", wasted)


held = pages.table[large]
whole = [pictures.Piece(0, len(held), "the large block: in a row", kind=0)]
numbers = [pictures.Piece(place, place + 1, str(chunk), kind=1) for place, chunk in enumerate(held)]
table = pictures.strips_svg(
    "A block's addresses, and the chunk of memory behind each",
    [("addresses", whole), ("chunks", numbers)],
    extent=len(held),
    axis="place in the block, in chunks",
)
waste = [(cost.chunk_bytes, cost.wasted_bytes / units.GIB) for cost in costs]
bound = [(cost.chunk_bytes, cost.live_blocks * cost.chunk_bytes / units.GIB) for cost in costs]
curves = pictures.curves_svg(
    "Chunk size: what is wasted, and the bound of equation 2",
    [
        pictures.Curve("wasted, GiB", waste),
        pictures.Curve("N chunks, GiB", bound, dashed=True),
    ],
    axes=("chunk", "GiB"),
    doubling=True,
    x_number=lambda size: units.format_bytes(int(size)),
)
lesson.picture("07_chunks.svg", pictures.stacked_svg([table, curves]))

# %% [markdown]
# The paper chose 40 MB, because mapping cost time. Where mappings are kept, small chunks cost
# nothing: here 64 KiB. Very small variables share a region of their own in the library.
#
# ## Exercises
#
# `python 07_virtual_addressing.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. What does a block of 100 KiB waste with chunks of 64 KiB, in KiB?
# 2. An arena of 10 chunks holds three blocks of two and a half chunks each. How many chunks can the
#    next block have?
# 3. 300 blocks live at once, chunks have 2 MiB. What is the bound of equation 2, in MiB?

# %%
lesson.cell("exercises")
lesson.exercise("1. waste of 100 KiB", lambda a: a == 28, None)
lesson.exercise("2. chunks left", lambda a: a == 1, None)
lesson.exercise("3. the bound", lambda a: a == 600, None)

# %%
assert seen == 42
assert one_array, "sixteen chunks here, sixteen there, one range of addresses"
assert untouched == [{1}, {3}]
assert corrupted == 77
assert price > 1
assert ours.maps_by_step[2] == 0, "what is mapped stays mapped"
assert paper.maps_by_step[2] > 0, "the paper's allocator maps in every step"
assert all(cost.wasted_bytes < cost.live_blocks * cost.chunk_bytes for cost in costs)
assert [cost.wasted_bytes for cost in costs] == sorted(cost.wasted_bytes for cost in costs)
print("\nall asserts passed")
