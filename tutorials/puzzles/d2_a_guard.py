# %% [markdown]
# # d2 A guard
#
# Threads come in *warps* of 32, so there are often more of them than numbers: 64 threads for 50
# numbers. A thread whose number is too large must touch nothing. On a GPU it would read or write
# what belongs to somebody else, without a word; the emulator names the thread and the place.
#
# **Your work:** y[i] = a[i] + b[i] for 50 numbers, and an `if` for the 14 threads that have
# nothing to do. **Needs:** d1.

# %%
import ooctrain as oc
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, kernel


@kernel("void(f4[::1], f4[::1], f4[::1])", threads=64)
def add(a, b, y):
    i = cuda.threadIdx.x
    y[i] = a[i]  # not yet


oc.puzzles.d2.check(add, picture="d2.svg")
