# %% [markdown]
# # d4 A transpose in tiles
#
# y[c, r] = x[r, c] for 64 x 64 numbers. A warp that reads along a row writes down a column: every
# number in a sector of its own, eight times too many. So a block of 256 threads brings a tile of
# 32 x 32 into *shared memory*, waits, and writes it out along the rows of y:
#
#     tile = cuda.shared.array(words, float32)     cuda.syncthreads()
#
# Block (bx, by) has the tile with rows 32 by, ... and columns 32 bx, ...; a thread moves four
# numbers. Shared memory has 32 *banks*, word w lies in bank w % 32, and a warp that wants two
# words of one bank waits: make a row of the tile one word longer than it must be.
#
# **Your work:** no sector and no turn of a bank too many. **Needs:** d3, tutorial 18.

# %%
import ooctrain as oc
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, float32, kernel


@kernel("void(f4[::1], f4[::1])", threads=256)
def transpose(x, y):
    tile = cuda.shared.array(32 * 32, float32)
    row, column = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    top, left = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    for r in range(row, 32, 8):
        tile[r * 32 + column] = x[(top + r) * 64 + left + column]
    # and now out again


oc.puzzles.d4.check(transpose, picture="d4.svg")
