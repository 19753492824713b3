# %% [markdown]
# # 18 A CUDA kernel, step by step
#
# **Goal:** write a matrix product for a GPU, make it a hundred times less hungry for memory in
# three steps, and read in the compiler's output that it worked. No GPU is needed.
# **Prerequisites:** 05; what a matrix product is. **Minutes:** 35.
# **Paper:** none of the five; Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning"
# (2014); NVIDIA, CUDA programming guide, "Shared Memory".
#
# A GPU runs *blocks* of threads. The threads of a block may wait for each other and share a few
# KiB of fast memory; blocks know nothing of each other. A *kernel* is what one thread does. Here
# kernels run in the library's emulator: on the CPU, one thread after the other from barrier to
# barrier. If two threads touch the same word, one of them writing, and no barrier orders them, the
# emulator raises an error.

# %%
import re
from collections import Counter
from itertools import product
from time import perf_counter

import numpy as np
from lesson import Lesson

import ooctrain as oc
from ooctrain.layers.kernels.cuda.conv import conv2d, conv_gemm, conv_naive, conv_tf32, conv_tiled
from ooctrain.layers.kernels.cuda.runtime.shim import (
    compile_ptx,
    cuda,
    float32,
    kernel,
    uint32,
    why_no_ptx,
)
from ooctrain.testing import emulator

pictures = oc.pictures
lesson = Lesson("18 a CUDA kernel, step by step")
launcher = emulator.EmulatedLauncher()

# %% [markdown]
# ## First step: one thread for each result
#
# C = A B, with 32 x 32 numbers in each. A loop over results is not written, it is launched: 2 x 2
# blocks of 256 threads, and each thread finds out from its indices which result is its own. (The
# many `uint32` keep Numba from widening every index to 64 bits, which a GPU adds in two halves.)

# %%
lesson.cell("one thread for each result")
N, TILE = 32, 16
WORDS = TILE * TILE
THREADS = TILE * TILE
ZERO = np.float32(0)


@kernel("void(f4[::1], f4[::1], f4[::1])", threads=THREADS)
def naive(a, b, c):
    row = uint32(cuda.blockIdx.y * TILE + cuda.threadIdx.x // TILE)
    column = uint32(cuda.blockIdx.x * TILE + cuda.threadIdx.x % TILE)
    total = ZERO
    for k in range(N):
        total += a[uint32(row * uint32(N)) + uint32(k)] * b[uint32(k * N) + column]
    c[uint32(row * uint32(N)) + column] = total


rng = np.random.default_rng(0)
a, b = (rng.standard_normal((N, N), np.float32) for _ in range(2))


def multiply(one_kernel, by=launcher):
    """A B by a kernel."""
    c = np.zeros((N, N), np.float32)
    by.launch(one_kernel, (N // TILE, N // TILE), a, b, c)
    return c


started = perf_counter()
naive_error = abs(multiply(naive) - a @ b).max()
print(f"    right to {naive_error:.1e}, {perf_counter() - started:.2f} s with compiling")

# %% [markdown]
# It is right, and slow. An H200 does 67 million million float32 operations a second, and gets 1.2
# million million floats from its memory in that time. **How many floats does a thread load for
# each multiply-add?**

# %%
lesson.cell("how hungry is it?")
lesson.predict("floats loaded for each multiply-add")


# %%
class Counted:
    """A matrix in memory that counts how often a number is loaded from it."""

    def __init__(self):
        self.loads = 0

    def load(self, row, column):
        self.loads += 1


def hunger_of(in_tiles):
    """Floats that a block loads from memory for each multiply-add; its threads one by one."""
    left, right, adds = Counted(), Counted(), 0
    for first in range(0, N, TILE):
        for y, x in product(range(TILE), repeat=2):  # the threads of the block
            if in_tiles:  # each thread fetches one number of each tile, for all
                left.load(y, first + x)
                right.load(first + y, x)
            for k in range(TILE):
                adds += 1
                if not in_tiles:  # each thread fetches what it multiplies
                    left.load(y, first + k)
                    right.load(first + k, x)
    return (left.loads + right.loads) / adds


hunger = {"naive": hunger_of(in_tiles=False)}  # the compiler's output will confirm it below
lesson.reveal("floats loaded for each multiply-add", hunger["naive"])

# %% [markdown]
# ## Second step: share what is loaded
#
# The sixteen threads of a row all load the same row of A. Better: each thread fetches one number
# of A and one of B into *shared memory*, and then all use what all have fetched, sixteen times.
# Between fetching and using stands a **barrier**: no thread goes on before all have come. After
# using stands another: no thread may overwrite the tile while a slower thread still reads it. (The
# second one can be left out here, to see in a moment what happens. `wait_after_using` is a constant
# when the kernel is compiled, so it costs no branch.)

# %%
lesson.cell("a tile in shared memory")


def product_in_tiles(wait_after_using):
    """The kernel, with the second barrier or without it."""

    @kernel("void(f4[::1], f4[::1], f4[::1])", threads=THREADS)
    def tiled(a, b, c):
        a_tile = cuda.shared.array(WORDS, float32)
        b_tile = cuda.shared.array(WORDS, float32)
        thread = uint32(cuda.threadIdx.x)
        y, x = uint32(thread // uint32(TILE)), uint32(thread % uint32(TILE))
        row = uint32(uint32(cuda.blockIdx.y * TILE) + y)
        column = uint32(uint32(cuda.blockIdx.x * TILE) + x)
        total = ZERO
        for first in range(0, N, TILE):
            a_tile[thread] = a[uint32(row * uint32(N)) + uint32(first) + x]
            b_tile[thread] = b[uint32(uint32(uint32(first) + y) * uint32(N)) + column]
            cuda.syncthreads()
            for k in range(TILE):
                total += a_tile[uint32(y * uint32(TILE)) + uint32(k)] * b_tile[uint32(k * TILE) + x]
            if wait_after_using:
                cuda.syncthreads()
        c[uint32(row * uint32(N)) + column] = total

    return tiled


tiled = product_in_tiles(wait_after_using=True)
tiled_error = abs(multiply(tiled) - a @ b).max()
print(f"    right to {tiled_error:.1e}")

# %%
lesson.predict("floats loaded for each multiply-add, in tiles")

# %%
hunger["tiled"] = hunger_of(in_tiles=True)
lesson.reveal("floats loaded for each multiply-add, in tiles", hunger["tiled"])

# %% [markdown]
# ## A barrier too few
#
# The second barrier looks superfluous: all have read, haven't they? On a GPU the kernel without it
# gives the right result nearly always; on another GPU, or in a year, it does not. The emulator
# records which thread touched which word since the last barrier, and so it needs no luck.

# %%
lesson.cell("the second barrier left out")
hasty = product_in_tiles(wait_after_using=False)
caught = []
for order in (1, -1):
    try:
        multiply(hasty, emulator.EmulatedLauncher(order))
    except emulator.EmulationError as error:
        caught.append(error)
        print(f"    threads {'up' if order == 1 else 'down'}: {str(error).splitlines()[0]}")

# %% [markdown]
# ## Third and fourth step: registers, then tensor cores
#
# A tile of 16 x 16 still reads two words of *shared* memory for each multiply-add. So a thread
# takes 8 x 8 results instead of one: 16 numbers read serve 64 multiply-adds, and all sums stay in
# registers. A block then makes 128 x 128 results. That is `conv/conv_gemm.py`, for convolutions:
# the rows of A are pixels with all that their filter sees, gathered while they are fetched.
#
# In the fourth step, `conv/conv_tf32.py`, the multiply-adds are no longer done by the thread. 32
# threads together hand 16 x 8 and 8 x 8 numbers to a *tensor core*, and get 1024 multiply-adds for
# one instruction; copies go straight into shared memory without passing through registers. The
# price: factors keep 10 bits of mantissa instead of 23 (TF32). **How many times larger is the
# error?**

# %%
lesson.cell("the same convolution on all four steps of the ladder")
lesson.predict("error of TF32 over that of float32")

# %%
shape = conv2d.ConvShape(n=1, c=8, h=6, w=6, k=12, r=3, s=3, padding=(1, 1, 1, 1))
x = rng.standard_normal((shape.n, shape.h, shape.w, shape.c), np.float32)
w = rng.standard_normal((shape.k, shape.r, shape.s, shape.c), np.float32)
padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
fields = np.lib.stride_tricks.sliding_window_view(padded, (shape.r, shape.s), (1, 2))
exact = np.einsum("npqcrs,krsc->npqk", fields, w)
errors = {}
for algorithm in ("naive", "tiled", "implicit_gemm", "tf32"):
    y = np.zeros(exact.shape, np.float32)
    conv2d.forward(launcher, shape, algorithm, x, w, None, y, None)
    errors[algorithm] = abs(y - exact).max() / abs(exact).max()
    print(f"    {algorithm:<14} relative error {errors[algorithm]:.1e}")
lesson.reveal("error of TF32 over that of float32", round(errors["tf32"] / errors["naive"]))

# %% [markdown]
# ## Reading what the compiler made
#
# All this is worth nothing if the compiler puts the 64 sums into memory, or loads four bytes where
# sixteen were meant. NVVM needs no GPU: it turns a kernel into *PTX*, the assembler language of
# GPUs, which can be read and counted. **How many multiply-adds are there for each load from shared
# memory in the third step?**

# %%
lesson.cell("PTX: what is in the inner loops")
lesson.predict("multiply-adds for each load from shared memory")

# %%
ladder = {
    "naive": conv_naive._correlate,
    "tiled": conv_tiled._correlate,
    "implicit_gemm": conv_gemm._correlation_kernel(True, conv_gemm.WIDE),
    "tf32": conv_tf32._correlate,
}
WHAT = ("fma.rn.f32", "mma.sync", "ld.global", "cp.async.cg", "ld.shared", "ldmatrix", "bar.sync")
#: a line of PTX: perhaps a condition (@%p1), then the instruction with its suffixes, then operands
INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s[^;]*;", re.MULTILINE)


def count(text, start):
    """Instructions of a text whose name begins with `start`."""
    names = Counter(INSTRUCTION.findall(text))
    return sum(times for name, times in names.items() if name.startswith(start))


reason = why_no_ptx()
if reason:
    print(f"    {reason}: the compiler's output is not read here")
else:
    texts = {name: compile_ptx(k, max(k.capability, (7, 5))) for name, k in ladder.items()}
    counts = {name: tuple(count(text, what) for what in WHAT) for name, text in texts.items()}
    print(f"    {'':<14}" + "".join(f"{what.partition('.r')[0]:>12}" for what in WHAT))
    for name, numbers in counts.items():
        print(f"    {name:<14}" + "".join(f"{number:>12}" for number in numbers))
    adds, wide_loads = counts["implicit_gemm"][0], count(texts["implicit_gemm"], "ld.shared.v4")
    lesson.reveal("multiply-adds for each load from shared memory", adds / wide_loads)

# %% [markdown]
# Sixteen, because in the loop a load brings four numbers (`ld.shared.v4`, 32 of them; the others
# stand before and after it): the 64 multiply-adds of a step take four loads. The fourth step has 32
# instructions `mma.sync`, each doing for its *warp* (32 threads) what 1024 multiply-adds would.
#
# Here is the naive product of the beginning, as the GPU's assembler gets it: two loads, one
# multiply-add, over and over. The loop over k has been unrolled; its address arithmetic is gone.

# %%
lesson.cell("the inner loop of the first step")
if reason:
    print("    (no compiler here: skipped)")
else:
    first, second, third = (compile_ptx(k, (7, 5)) for k in (naive, tiled, hasty))
    lines = first.splitlines()
    place = next(i for i, line in enumerate(lines) if "fma.rn.f32" in line)
    print("\n".join(f"    {line.strip()}" for line in lines[place + 1 : place + 7]))
    in_doubles = [name for name, text in texts.items() if ".f64" in text or ".local" in text]
    print(f"    with float64 or spilled arrays: {in_doubles or 'none of the four'}")

# %% [markdown]
# The emulator ran our source. Whether the compiler kept our barriers, only its output can say. The
# compiler has unrolled the loop over the tiles, so the text has no branch, and we can read it from
# top to bottom. Between a load from shared memory and a later store to it (or the other way round)
# there must be a `bar.sync`: without one, another thread may still be before the load. So we look
# for a load and a store, one after the other, with no barrier between them.

# %%
lesson.cell("looking for barriers in what the compiler made")
SHARED = re.compile(r"\b(ld\.shared|st\.shared|bar\.sync)")


def unordered(text):
    """Accesses to shared memory of the other kind than the one before, without a barrier."""
    found, before = [], None
    for number, line in enumerate(text.splitlines(), 1):
        what, words = SHARED.search(line), " ".join(line.split())
        if what and {before, what[1]} == {"ld.shared", "st.shared"}:
            found.append(f"race: line {number}, {words} after {before}")
        before = what[1] if what else before
    return found


if reason:
    print("    (no compiler here: skipped)")
else:
    print(f"    with both barriers: {unordered(second) or 'no race'}")
    print(f"    without the second: {unordered(third)}")
    caught += unordered(third)

# %% [markdown]
# This simple look is not enough for real kernels: they branch, and a thread may load what it has
# stored itself. So the library's tests *run* the text, in an interpreter of PTX that is as strict
# as the emulator (docs/gpu.md, "PTX interpreter").

# %% [markdown]
# If you have a GPU, you can simply start a kernel: `shim.compiled(tiled)` is an ordinary kernel of
# Numba's, and `shim.compiled(tiled)[(2, 2), tiled.threads](a, b, c)` runs it, with `a`, `b`, `c`
# from `cuda.to_device` (`layers/kernels/cuda/runtime/shim.py`). Such a start costs the host 30 to
# 160 us. The library packs the arguments once and calls the driver itself, which costs 3 us
# (`devices/cuda/launches.py`, docs/gpu.md).

# %% [markdown]
# ## What it buys
#
# A tile of p x q results loads p + q numbers for p q multiply-adds. How fast a kernel *can* be is
# the smaller of two: what the multipliers do, and what memory feeds them. For an H200 (67 TFLOP/s
# in float32, 4.8 TB/s), if no cache helps:

# %%
lesson.cell("a picture of the roof")
PEAK_TFLOPS, FLOATS_PER_S = 67.0, 4.8e12 / 4


def attainable(multiply_adds_per_float):
    """TFLOP/s under the roof."""
    return min(PEAK_TFLOPS, 2 * multiply_adds_per_float * FLOATS_PER_S / 1e12)


tiles = {"naive": (1, 1), "16 x 16 tiles": (16, 16), "128 x 128 tiles": (128, 128)}
intensity = {name: p * q / (p + q) for name, (p, q) in tiles.items()}
ridge = PEAK_TFLOPS * 1e12 / (2 * FLOATS_PER_S)
slope = [ridge / 2 ** (i / 4) for i in range(24) if ridge / 2 ** (i / 4) >= 0.5]
limits = [
    pictures.Curve(
        "what the multipliers do", [(2.0**i, PEAK_TFLOPS) for i in range(-1, 8)], dashed=True
    ),
    pictures.Curve("what memory feeds", [(i, attainable(i)) for i in slope], dashed=True),
]
rungs = [
    pictures.Curve(name, [(i, attainable(i))], label=f"{name}: {attainable(i):.1f}")
    for name, i in intensity.items()
]
lesson.picture("18_roof.svg", pictures.curves_svg(
    "The roof of an H200: TFLOP/s in float32, without caches", [*limits, *rungs],
    axes=("multiply-adds for each float loaded", "TFLOP/s"), doubling="both",
))  # fmt: skip
print(f"    the two limits meet at {ridge:.0f} multiply-adds for each float")
for name, value in intensity.items():
    print(f"    {name:<16} {value:5.1f} multiply-adds a float, {attainable(value):5.1f} TFLOP/s")

# %% [markdown]
# The third step is under the roof's flat part: memory is no longer what holds it back. The fourth,
# with tensor cores, raises the flat part itself to 494. What a real GPU reaches is in
# `benchmarks/results/`.
#
# Six puzzles, d1 to d6 (`puzzles/`), are kernels for you to write, checked by this emulator. The
# first is one line, the last a tile of a convolution.
#
# ## Exercises
#
# `python 18_a_cuda_kernel_step_by_step.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. How many floats does a thread load for each multiply-add if tiles are 32 x 32?
# 2. Step three has two tiles of 128 x 8 floats, and two of each so that one is filled while the
#    other is used. How many KiB of shared memory is that?
# 3. If a thread took 4 x 4 results instead of 8 x 8, how many 16-byte loads from shared memory
#    would 64 multiply-adds need?

# %%
lesson.cell("exercises")
lesson.exercise("1. floats for each multiply-add", lambda v: v == 1 / 16, None)
lesson.exercise("2. KiB of shared memory", lambda v: v == 16, None)
lesson.exercise("3. loads", lambda v: v == 8, None)

# %%
assert max(naive_error, tiled_error) < 1e-5
assert (multiply(tiled) == multiply(tiled, emulator.EmulatedLauncher(order=-1))).all()
assert len(caught) == (2 if reason else 3)
assert all("race" in str(error) for error in caught)
assert max(errors["naive"], errors["tiled"], errors["implicit_gemm"]) < 1e-6
assert 1e-5 < errors["tf32"] < 1e-3
if not reason:
    assert adds == 16 * wide_loads
    assert counts["tf32"][1] > 0, "the fourth step uses tensor cores"
    assert count(first, "ld.global") == hunger["naive"] * count(first, "fma.rn.f32")
    assert count(second, "ld.global") == hunger["tiled"] * count(second, "fma.rn.f32")
    assert not in_doubles
    assert not unordered(second)
print("\nall asserts passed")
