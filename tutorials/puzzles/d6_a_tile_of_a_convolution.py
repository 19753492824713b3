# %% [markdown]
# # d6 A tile of a convolution
#
# A 3 x 3 convolution is a matrix product whose left matrix is never written down: row p is pixel p
# with all that its filter sees, 3 * 3 * 4 = 36 terms. That is *implicit GEMM*:
#
#     y[p, k] = sum over r, s, c of x[h + r, v + s, c] * w[k, r, s, c]      pixel p = 8 h + v
#
# x is padded, (10, 10, 4); w is (16, 3, 3, 4); y is (8, 8, 16); all flat. A block of 256 threads
# makes 16 pixels x 16 filters, block b the pixels from 16 b on. It goes through the 36 terms
# twelve at a time: 16 x 12 numbers of x, gathered, and 16 x 12 of w come into shared memory, then
# each thread adds twelve products to its own sum.
#
# **Your work:** load each number once for a tile, not once for a product. **Needs:** d5, tutorial
# 18.

# %%
import ooctrain as oc
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, float32, kernel


@kernel("void(f4[::1], f4[::1], f4[::1])", threads=256)
def convolve(x, w, y):
    pixel, k = cuda.blockIdx.x * 16 + cuda.threadIdx.x // 16, cuda.threadIdx.x % 16
    h, v = pixel // 8, pixel % 8
    total = float32(0)
    for term in range(36):  # right, and sixteen times too hungry
        r, s, c = term // 12, term // 4 % 3, term % 4
        total += x[((h + r) * 10 + v + s) * 4 + c] * w[k * 36 + term]
    y[pixel * 16 + k] = total


oc.puzzles.d6.check(convolve, picture="d6.svg")
