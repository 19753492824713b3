# %% [markdown]
# # d3 A copy
#
# A GPU runs *blocks* of threads; a *kernel* is what one thread does. Eight blocks of 128 threads
# copy 1,000 numbers: thread t of block b has the number 128 b + t. That makes 1,024 threads.
#
# **Your work:** copy x to y. The emulator forgives no stray index. A warp, 32 threads, reads
# memory in *sectors* of 32 bytes: neighbours should read neighbours. **Needs:** tutorial 18.

# %%
import ooctrain as oc
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, kernel


@kernel("void(f4[::1], f4[::1])", threads=128)
def copy(x, y):
    i = cuda.blockIdx.x * 128 + cuda.threadIdx.x
    y[i] = x[0]  # not yet


oc.puzzles.d3.check(copy, picture="d3.svg")
