# %% [markdown]
# # d1 A map
#
# A *kernel* is a function that many threads run at once. Each has a number of its own, and there is
# no loop: what a loop would do for i = 0, 1, 2, ... thread i does. Arrays come in as arguments, the
# result goes out through the last one, and nothing is returned.
#
# **Your work:** 32 threads, 32 numbers: y[i] = x[i] + 10. The line above the function gives the
# types of its arrays, float32, and the number of threads; it stays as it is. You get two numbers:
# pieces of memory that are moved (d3 explains sectors), and how often one thread touches memory.
# **Needs:** nothing.

# %%
import ooctrain as oc
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, float32, kernel


@kernel("void(f4[::1], f4[::1])", threads=32)
def add_ten(x, y):
    i = cuda.threadIdx.x  # this thread's number: 0, 1, ..., 31
    y[i] = float32(10)  # not yet


oc.puzzles.d1.check(add_ten, picture="d1.svg")
