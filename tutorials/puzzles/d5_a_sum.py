# %% [markdown]
# # d5 A sum without a race
#
# One block of 128 threads adds 1,024 numbers into y[0]. First each thread adds eight, then the 128
# sums are halved, and halved again: thread t adds the sum of thread t + 64, then of t + 32, ...
# Between two halvings all threads must wait, *all of them*: `cuda.syncthreads()` never stands
# below an `if` that only some threads pass.
#
# **Your work:** the sum, with no thread busier than in that tree. Forget a barrier to see what the
# emulator says. **Needs:** d4, tutorial 18.

# %%
import ooctrain as oc
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, float32, kernel


@kernel("void(f4[::1], f4[::1])", threads=128)
def add_all(x, y):
    sums = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    sums[t] = x[t]
    # eight numbers for each thread, then the tree
    if t == 0:
        y[0] = sums[0]


oc.puzzles.d5.check(add_all, picture="d5.svg")
