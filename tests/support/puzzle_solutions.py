"""A solution of each puzzle, and plausible wrong attempts with the message for each.

`SOLUTIONS` is {name: answer}, `WRONG` has (name, answer, words of the message). The library has
none of this: a solution that could be imported is no puzzle. Read next: `../unit/test_puzzles.py`.
"""

from __future__ import annotations

import random

import numpy as np

from ooctrain.layers.kernels.cuda.runtime.shim import cuda, float32, kernel

A1 = """
run F0; run F1; run F2; run F3; run loss
run B3; free x4; free y4
run B2; free x3; free y3
run B1; free x2; free y2
run B0; free x1; free y1; free y0
"""
A2 = """
run F0; out x0
run F1; out x1; free x0
run F2; out x2
run F3; out x3; free x1
run F4; out x4; free x2
run F5; out x5; free x3
run F6; free x4
run F7; free x5
run loss
run B7; free x8; free y8; in x5
run B6; free x7; free y7; in x4
run B5; free x6; free y6; in x3
run B4; free x5; free y5; in x2
run B3; free x4; free y4; in x1
run B2; free x3; free y3; in x0
run B1; free x2; free y2
run B0; free x1; free y1; free y0
"""


def on_demand(text):
    """The list of a2 with each copy right before its use."""
    for i in range(6):
        text = text.replace(f"; in x{i}\n", "\n").replace(f"run B{i};", f"in x{i}; run B{i};")
    return text


A3 = """
run F0; run F1; free x1; run F2; free x2; run F3; free x3; run F4; free x4; run F5; run loss
run B5; free x6; free y6
run F0; run F1; free x1; run F2; free x2; run F3; free x3
run B4; free x5; free y5
run F0; run F1; free x1; run F2; free x2
run B3; free x4; free y4
run F0; run F1; free x1
run B2; free x3; free y3
run F0
run B1; free x2; free y2
run B0; free x1; free y1; free y0
"""
A4 = """
run F0; out x0; free x0
run F1
run F2; out x2; free x2
run F3; out x3; free x3
run F4; run F5; run loss
run B5; free x6; free y6
run B4; free x5; free y5
in x3; run B3; free x4; free y4
in x2; run B2; free x3; free y3
run B1; in x0; free x2; free y2
run add; free s1
run B0; free x1; free t1; free y0
"""
A5 = """
run F0; out x0; free x0
run F1; out x1; free x1
run F2; out x2; free x2
run F3; run F4; run F5; run loss
run B5; free x6; free y6
run B4; in x2; free x5; free y5
run B3; in x1[0:40]; free x4; free y4
run B2; in x1[40:100]; free x3; free y3
in x1[100:200]
run B1; in x0; free x2; free y2
run B0; free x1; free y1; free y0
"""
A6 = """
run F0; out x0[0:50]
run F1; free x0[0:50]; out x0[50:100]
run F2; free x0[50:100]; out x1[0:50]
run F3; free x1[0:50]; out x1[50:100]
run F4; free x1[50:100]
run F5; out x2[0:50]
run loss; free x2[0:50]
run B5; free x6; free y6
run B4; in x2[0:50]; in x1[0:50]; free x5; free y5
run B3; in x1[50:100]; in x0[0:50]; free x4; free y4
run B2; in x0[50:100]; free x3; free y3
run B1; free x2; free y2
run B0; free x1; free y1; free y0
"""


def choose(holes, size):
    fitting = [(length, i) for i, (_, length) in enumerate(holes) if length >= size]
    return min(fitting)[1] if fitting else None


def first_fit(holes, size):
    return next((i for i, (_, length) in enumerate(holes) if length >= size), None)


def give_back(holes, offset, size):
    for hole in list(holes):
        if hole[0] == offset + size or sum(hole) == offset:
            holes.remove(hole)
            offset, size = min(offset, hole[0]), size + hole[1]
    return sorted([*holes, (offset, size)])


def melts_one_way(holes, offset, size):
    for hole in list(holes):
        if hole[0] == offset + size:
            holes.remove(hole)
            size += hole[1]
    return sorted([*holes, (offset, size)])


def map_pages(table, free, first, pages):
    for page in range(first, first + pages):
        table[page] = free.pop()


def unmap_pages(table, free, first, pages):
    free.extend(table.pop(page) for page in range(first, first + pages))


def unmap_and_lose(table, free, first, pages):
    for page in range(first, first + pages):
        del table[page]


def translate(table, address):
    return table[address // 16] * 16 + address % 16


def lowest_places(blocks, order):
    offsets = {}
    for i in sorted(range(len(blocks)), key=lambda i: order(blocks[i])):
        size, begin, end = blocks[i]
        beside = [j for j in offsets if blocks[j][1] < end and begin < blocks[j][2]]
        at = 0
        for j in sorted(beside, key=offsets.get):
            if offsets[j] - at >= size:
                break
            at = max(at, offsets[j] + blocks[j][0])
        offsets[i] = at
    return [offsets[i] for i in range(len(blocks))]


def largest_first(blocks):
    return lowest_places(blocks, lambda block: (-block[0], block[1]))


def pack(blocks):
    tried = [
        largest_first(blocks),
        lowest_places(blocks, lambda block: (-block[0].bit_length(), block[1] - block[2])),
        lowest_places(blocks, lambda block: (block[1] - block[2], -block[0])),
    ]
    return min(tried, key=lambda at: max(a + b[0] for a, b in zip(at, blocks, strict=True)))


def frontier(there, kernel, stride, padding, rows):
    count = (rows + 2 * padding - kernel) // stride + 1
    if there == rows:
        return count
    return max(0, min(count, (there + padding - kernel) // stride + 1))


def bold_frontier(there, kernel, stride, padding, rows):
    return min(there // stride, (rows + 2 * padding - kernel) // stride + 1)


def shy_frontier(*layer):
    return max(0, frontier(*layer) - 1)


def kept(there, done, kernel, stride, padding, rows):
    if done == (rows + 2 * padding - kernel) // stride + 1:
        return there, there
    return min(there, max(0, done * stride - padding)), there


def kept_too_few(there, done, kernel, stride, padding, rows):
    return max(0, there - 1), there


def gather(row, kernel, stride, padding, rows):
    count = (rows + 2 * padding - kernel) // stride + 1
    first = max(0, -(-(row + padding - kernel + 1) // stride))
    end = min(count, (row + padding) // stride + 1)
    return (first, end) if first < end else (0, 0)


def gather_as_forward(row, kernel, stride, padding, rows):
    return max(0, row * stride - padding), row * stride - padding + kernel


def carry(state, rows):
    total, squares = state if state is not None else np.zeros((2, 8), np.float32)
    for row in rows:
        total, squares = total + row, squares + row * row
    return total, squares


def finish(state, count):
    mean = state[0] / np.float32(count)
    return mean, state[1] / np.float32(count) - mean * mean


def carry_sums_of_bands(state, rows):
    total, squares = state if state is not None else np.zeros((2, 8), np.float32)
    return total + rows.sum(0), squares + (rows * rows).sum(0)


def finish_with_n_minus_1(state, count):
    mean, variance = finish(state, count)
    return mean, variance * count / (count - 1)


@kernel("void(f4[::1], f4[::1])", threads=32)
def add_ten(x, y):
    i = cuda.threadIdx.x
    y[i] = x[i] + float32(10)


@kernel("void(f4[::1], f4[::1])", threads=32)
def add_ten_to_one(x, y):
    if cuda.threadIdx.x == 0:
        y[0] = x[0] + float32(10)


@kernel("void(f4[::1], f4[::1], f4[::1])", threads=64)
def add_with_a_guard(a, b, y):
    i = cuda.threadIdx.x
    if i < 50:
        y[i] = a[i] + b[i]


@kernel("void(f4[::1], f4[::1], f4[::1])", threads=64)
def add_without_a_guard(a, b, y):
    i = cuda.threadIdx.x
    y[i] = a[i] + b[i]


@kernel("void(f4[::1], f4[::1], f4[::1])", threads=64)
def add_with_an_early_guard(a, b, y):
    i = cuda.threadIdx.x
    if i < 49:
        y[i] = a[i] + b[i]


@kernel("void(f4[::1], f4[::1])", threads=128)
def copy(x, y):
    i = cuda.blockIdx.x * 128 + cuda.threadIdx.x
    if i < 1000:
        y[i] = x[i]


@kernel("void(f4[::1], f4[::1])", threads=128)
def copy_without_a_guard(x, y):
    i = cuda.blockIdx.x * 128 + cuda.threadIdx.x
    y[i] = x[i]


@kernel("void(f4[::1], f4[::1])", threads=256)
def transpose(x, y):
    tile = cuda.shared.array(32 * 33, float32)
    row, column = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    top, left = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    for r in range(row, 32, 8):
        tile[r * 33 + column] = x[(top + r) * 64 + left + column]
    cuda.syncthreads()
    for r in range(row, 32, 8):
        y[(left + r) * 64 + top + column] = tile[column * 33 + r]


@kernel("void(f4[::1], f4[::1])", threads=256)
def transpose_unpadded(x, y):
    tile = cuda.shared.array(32 * 32, float32)
    row, column = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    top, left = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    for r in range(row, 32, 8):
        tile[r * 32 + column] = x[(top + r) * 64 + left + column]
    cuda.syncthreads()
    for r in range(row, 32, 8):
        y[(left + r) * 64 + top + column] = tile[column * 32 + r]


@kernel("void(f4[::1], f4[::1])", threads=256)
def transpose_without_a_tile(x, y):
    row, column = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    top, left = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    for r in range(row, 32, 8):
        y[(left + column) * 64 + top + r] = x[(top + r) * 64 + left + column]


@kernel("void(f4[::1], f4[::1])", threads=128)
def add_all(x, y):
    sums = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(t, 1024, 128):
        total += x[i]
    sums[t] = total
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            sums[t] = sums[t] + sums[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        y[0] = sums[0]


@kernel("void(f4[::1], f4[::1])", threads=128)
def add_all_in_a_race(x, y):
    sums = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(t, 1024, 128):
        total += x[i]
    sums[t] = total
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            sums[t] = sums[t] + sums[t + half]
        half //= 2
    if t == 0:
        y[0] = sums[0]


@kernel("void(f4[::1], f4[::1], f4[::1])", threads=256)
def convolve(x, w, y):
    pixels = cuda.shared.array(16 * 12, float32)
    filters = cuda.shared.array(16 * 12, float32)
    t = cuda.threadIdx.x
    first = cuda.blockIdx.x * 16
    total = float32(0)
    for chunk in range(0, 36, 12):
        if t < 192:
            row, term = t // 12, chunk + t % 12
            r, s, c = term // 12, term // 4 % 3, term % 4
            h, v = (first + row) // 8 + r, (first + row) % 8 + s
            pixels[t] = x[(h * 10 + v) * 4 + c]
            filters[t] = w[row * 36 + term]
        cuda.syncthreads()
        for j in range(12):
            total += pixels[t // 16 * 12 + j] * filters[t % 16 * 12 + j]
        cuda.syncthreads()
    y[(first + t // 16) * 16 + t % 16] = total


@kernel("void(f4[::1], f4[::1], f4[::1])", threads=256)
def convolve_turned(x, w, y):
    pixel, k = cuda.blockIdx.x * 16 + cuda.threadIdx.x // 16, cuda.threadIdx.x % 16
    total = float32(0)
    for term in range(36):
        r, s, c = 2 - term // 12, 2 - term // 4 % 3, term % 4
        total += x[((pixel // 8 + r) * 10 + pixel % 8 + s) * 4 + c] * w[k * 36 + term]
    y[pixel * 16 + k] = total


def mul_gradient(t, a, b, y, dy):
    return t.run("mul", dy, b), t.run("mul", dy, a)


def mul_gradient_swapped(t, a, b, y, dy):
    return t.run("mul", dy, a), t.run("mul", dy, b)


def grad_x(dy, w):
    n, _, height, width = dy.shape
    _, c, r, s = w.shape
    dx = np.zeros((n, c, height + r - 1, width + s - 1))
    for i in range(r):
        for j in range(s):
            share = np.einsum("nkhw,kc->nchw", dy, w[:, :, i, j])
            dx[:, :, i : i + height, j : j + width] += share
    return dx


def grad_w(x, dy):
    height, width = dy.shape[2:]
    r, s = x.shape[2] - height + 1, x.shape[3] - width + 1
    dw = np.zeros((dy.shape[1], x.shape[1], r, s))
    for i in range(r):
        for j in range(s):
            seen = x[:, :, i : i + height, j : j + width]
            dw[:, :, i, j] = np.einsum("nkhw,nchw->kc", dy, seen)
    return dw


def conv_gradient(t, x, w, y, dy):
    return t.run("grad_x", dy, w), t.run("grad_w", x, dy)


def normalised(x):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def norm_grad_x(x, gamma, dy):
    y = normalised(x)
    return gamma * (dy - dy.mean(0) - y * (dy * y).mean(0)) / np.sqrt(x.var(0) + 1e-5)


def norm_grad_x_of_constants(x, gamma, dy):
    return gamma * dy / np.sqrt(x.var(0) + 1e-5)


def norm_gradient(t, x, gamma, beta, y, dy):
    return t.run("grad_x", x, gamma, dy), t.run("grad_gamma", x, dy), t.run("grad_beta", dy)


def norm_gradient_that_keeps_y(t, x, gamma, beta, y, dy):
    t.run("sub", y, y)
    return norm_gradient(t, x, gamma, beta, y, dy)


def norm_functions(dx):
    return {
        "grad_x": dx,
        "grad_gamma": lambda x, dy: (dy * normalised(x)).sum(0),
        "grad_beta": lambda dy: dy.sum(0),
    }


def allocator_law(make):
    for seed in range(100):
        rng, arena, live = random.Random(seed), make(), {}
        for _ in range(40):
            if live and rng.random() < 0.5:
                offset = rng.choice(list(live))
                del live[offset]
                arena.free(offset)
                continue
            size, at, largest = rng.randint(1, arena.size // 2), 0, 0
            for offset in [*sorted(live), arena.size]:
                largest = max(largest, offset - at)
                at = offset + live.get(offset, 0)
            offset = arena.allocate(size)
            assert (offset is not None) == (size <= largest), "refused although it fits"
            if offset is not None:
                assert 0 <= offset <= arena.size - size, "outside"
                assert all(offset + size <= o or o + s <= offset for o, s in live.items())
                live[offset] = size


def law_that_all_is_served(make):
    arena = make()
    arena.allocate(10)
    assert arena.allocate(60) is not None, "refused"


def tile_law(frontier):
    for k, s in ((1, 1), (3, 1), (5, 1), (2, 2), (3, 2), (7, 2)):
        for p in range(k // 2 + 1):
            for rows in (8, 13):
                count = (rows + 2 * p - k) // s + 1
                for there in range(rows + 1):
                    ends = [min(o * s - p + k, rows) for o in range(count)]
                    found = frontier(there, k, s, p, rows)
                    assert found == sum(end <= there for end in ends)


def tile_law_of_whole_images(frontier):
    assert frontier(8, 3, 1, 1, 8) == 8
    assert frontier(0, 3, 1, 1, 8) == 0


def gradient_law(forward, backward, uniform=False):
    rng = np.random.default_rng(0)
    x, direction, dy = rng.standard_normal((3, 6, 3))
    dy = np.ones_like(dy) if uniform else dy
    sides = [(dy * forward(x + h * direction)).sum() for h in (1e-5, -1e-5)]
    slope = (sides[0] - sides[1]) / 2e-5
    assert abs(slope - (backward(x, dy) * direction).sum()) < 1e-6


def uniform_law(forward, backward):
    gradient_law(forward, backward, uniform=True)


def law_that_fails(*_):
    return 1 / 0


SOLUTIONS = {
    "a1": A1, "a2": A2, "a3": A3, "a4": A4, "a5": A5, "a6": A6,
    "b1": choose, "b2": give_back, "b3": (map_pages, unmap_pages, translate), "b4": pack,
    "c1": frontier, "c2": kept, "c3": gather, "c4": (carry, finish),
    "d1": add_ten, "d2": add_with_a_guard, "d3": copy, "d4": transpose, "d5": add_all,
    "d6": convolve,
    "e1": mul_gradient, "e2": ({"grad_x": grad_x, "grad_w": grad_w}, conv_gradient),
    "e3": (norm_functions(norm_grad_x), norm_gradient),
    "f1": allocator_law, "f2": tile_law, "f3": gradient_law,
}  # fmt: skip
WRONG = [
    ("a1", A1.replace("free x4; ", ""), "[R407] 'x4'"),
    ("a1", A1.replace("run F2;", "run F2; free x2;"), "instruction 9: run B2"),
    ("a2", A2.replace("free x0", "free x9"), "line 3, column 22"),
    ("a2", A2.replace("F6; free x4", "F6").replace("; in x4", ""), "exceeds the budget"),
    ("a2", on_demand(A2), "the longest wait: B"),
    ("a3", A3.replace("run F0; run F1; free x1\nrun B2", "run B2"), "run its producer 'F1' again"),
    ("a4", A4.replace("in x2; ", ""), "it has a host copy: list a SwapIn before"),
    ("a5", A5.replace("x1[40:100]", "x1[40:90]"), "not resident"),
    ("a6", A6.replace("out x0[50:100]", "out x0[60:100]"), "no host copy"),
    ("b1", first_fit, "it outgrows the target at request"),
    ("b1", lambda holes, size: 0, "does not fit into hole 0"),
    ("b2", melts_one_way, "there is a hole"),
    ("b2", lambda holes, offset, size: None, "give_back returns a list of holes"),
    ("b3", (map_pages, unmap_and_lose, translate), "pop from empty list"),
    ("b3", (map_pages, unmap_pages, lambda table, address: table[address // 16]), "is translated"),
    ("b4", largest_first, "few blocks"),
    ("b4", lambda blocks: [0] * len(blocks), "share bytes"),
    ("c1", bold_frontier, "row 0 of the output cannot be computed yet"),
    ("c1", shy_frontier, "row 0 of the output can be computed already"),
    ("c2", kept_too_few, "output row"),
    ("c3", gather_as_forward, "dx["),
    ("c4", (carry_sums_of_bands, finish), "has other bits in bands of"),
    ("c4", (carry, finish_with_n_minus_1), "the variance of channel 0"),
    ("d1", add_ten_to_one, "y[1] is never written"),
    ("d2", add_without_a_guard, "thread 50 of block (0, 0) reads a[50]"),
    ("d2", add_with_an_early_guard, "y[49] is never written"),
    ("d3", copy_without_a_guard, "thread 104 of block (7, 0) reads x[1000]"),
    ("d4", transpose_unpadded, "right, but not there yet: bank conflicts"),
    ("d4", transpose_without_a_tile, "right, but not there yet: sectors"),
    ("d5", add_all_in_a_race, "race"),
    ("d6", convolve_turned, "y[0, 0, 0] is"),
    ("e1", mul_gradient_swapped, "the gradient of a at [0, 0]"),
    ("e1", lambda t, a, b, y, dy: dy, "returns 2 names"),
    ("e2", ({"grad_x": lambda dy, w: grad_x(dy, w[:, :, ::-1]), "grad_w": grad_w}, conv_gradient),
     "the gradient of x at [0, 0, 0, 0]"),
    ("e3", (norm_functions(norm_grad_x_of_constants), norm_gradient), "gradient of x at [0, 0]"),
    ("e3", (norm_functions(norm_grad_x), norm_gradient_that_keeps_y), "floats that wait"),
    ("f1", law_that_all_is_served, "a false alarm: first fit"),
    ("f1", law_that_fails, "ZeroDivisionError"),
    ("f2", tile_law_of_whole_images, "a bug is alive"),
    ("f3", uniform_law, "the variance is taken for a constant"),
]  # fmt: skip
