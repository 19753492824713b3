"""Winograd's transforms of input tiles, weights, outputs and errors, on vectors of channels.

NHWC tiles or KRSC weights become planes, one for each of the (m+2)^2 points of a tile. An m x m
tile of a 3x3 correlation is Y = A^T [(G g G^T) * (B^T d B)] A with an element-wise product in the
middle. Summed over channels, each point is thus an ordinary matrix product, with (m+2)^2 instead of
9 m^2 multiplications. F(2x2, 3x3) uses halves, exact in float32; F(4x4, 3x3) uses sixths and
twenty-fourths. A transform is applied to columns, kept in scratch, then to rows. Source: Lavin &
Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), sections 4.1 to 4.3.
Read next: `conv_winograd.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.blocking import PANEL
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner
from ooctrain.layers.kernels.cpu.simd.simd import VL
from ooctrain.layers.kernels.cpu.simd.simd_memory import (
    prefetch,
    vload,
    vload_if,
    vstore,
    vtranspose,
)

TWO, FOUR, FIVE, EIGHT = np.float32(2), np.float32(4), np.float32(5), np.float32(8)
HALF, QUARTER = np.float32(1 / 2), np.float32(1 / 4)
SIXTH, TWELFTH, TWENTYFOURTH = np.float32(1 / 6), np.float32(1 / 12), np.float32(1 / 24)


# B^T of F(4x4) has the rows (4,0,-5,0,1,0), (0,-4,-4,1,1,0), (0,4,-4,-1,1,0), (0,-2,-1,2,1,0),
# (0,2,-1,-2,1,0), (0,4,0,-5,0,1); the middle ones share their terms in pairs.
@inner
def input4(points):
    """B^T d of F(4x4): six points from six pixels."""
    a, b, c, d, e, f = points
    p, q, r, s = d - FOUR * b, e - FOUR * c, e - c, TWO * (d - b)
    return FOUR * a - FIVE * c + e, q + p, q - p, r + s, r - s, FOUR * b - FIVE * d + f


# B^T of F(2x2): (1,0,-1,0), (0,1,1,0), (0,-1,1,0), (0,1,0,-1).
@inner
def input2(points):
    """B^T d of F(2x2): four points from four pixels."""
    a, b, c, d = points
    return a - c, b + c, c - b, b - d


# A^T of F(4x4): (1,1,1,1,1,0), (0,1,-1,2,-2,0), (0,1,1,4,4,0), (0,1,-1,8,-8,1).
@inner
def output4(points):
    """A^T m of F(4x4): four pixels from six points."""
    a, b, c, d, e, f = points
    p, q, r, s = b + c, b - c, d + e, d - e
    return a + p + r, q + TWO * s, p + FOUR * r, q + EIGHT * s + f


# A^T of F(2x2): (1,1,1,0), (0,1,-1,-1).
@inner
def output2(points):
    """A^T m of F(2x2): two pixels from four points."""
    a, b, c, d = points
    return a + b + c, b - c - d


# The transposes, for the gradient of the weights: errors go up from m to m + 2 points by A ...
@inner
def error4(points):
    """A e of F(4x4): six points from four errors."""
    a, b, c, d = points
    p, q, r, s = a + c, b + d, a + FOUR * c, TWO * b + EIGHT * d
    return a, p + q, p - q, r + s, r - s, d


@inner
def error2(points):
    """A e of F(2x2): four points from two errors."""
    a, b = points
    return a, a + b, a - b, -b


# G of F(4x4): (1/4,0,0), (-1,-1,-1)/6, (-1,1,-1)/6, (1,2,4)/24, (1,-2,4)/24, (0,0,1).
@inner
def weight4(points):
    """G g of F(4x4): six points from three taps."""
    a, b, c = points
    p, q = -SIXTH * (a + c), SIXTH * b
    r, s = TWENTYFOURTH * a + SIXTH * c, TWELFTH * b
    return QUARTER * a, p - q, p + q, r + s, r - s, c


# G of F(2x2): (1,0,0), (1,1,1)/2, (1,-1,1)/2, (0,0,1).
@inner
def weight2(points):
    """G g of F(2x2): four points from three taps."""
    a, b, c = points
    p, q = HALF * (a + c), HALF * b
    return a, p + q, p - q, c


# ... and products come down from m + 2 points to 3 by G^T.
@inner
def gradient4(points):
    """G^T p of F(4x4): three taps from six points."""
    a, b, c, d, e, f = points
    p, r = SIXTH * (b + c), TWENTYFOURTH * (d + e)
    return QUARTER * a - p + r, SIXTH * (c - b) + TWELFTH * (d - e), FOUR * r - p + f


@inner
def gradient2(points):
    """G^T p of F(2x2): three taps from four points."""
    a, b, c, d = points
    p = HALF * (b + c)
    return a + p, HALF * (b - c), p + d


@inner
def transform_input(x, image, y, z, p, channel, count, planes, place, stride, scratch):
    """planes[place + point * stride + c] = (B^T d B)[point] of the tile at row y, column z.

    Pixels outside the image are zeros. `scratch` is a position in `planes` of 36 vectors.
    """
    row = p.image.in_w * p.image.in_c
    for c in range(0, count, VL):
        for j in range(p.tile.m + 2):
            column = z + j >= 0 and z + j < p.image.in_w
            at = ((image * p.image.in_h + y) * p.image.in_w + z + j) * p.image.in_c + channel + c
            v0 = vload_if(x, at, column and y >= 0 and y < p.image.in_h)
            v1 = vload_if(x, at + row, column and y + 1 >= 0 and y + 1 < p.image.in_h)
            v2 = vload_if(x, at + 2 * row, column and y + 2 >= 0 and y + 2 < p.image.in_h)
            v3 = vload_if(x, at + 3 * row, column and y + 3 >= 0 and y + 3 < p.image.in_h)
            u = scratch + j * VL
            if p.tile.m == 4:
                v4 = vload_if(x, at + 4 * row, column and y + 4 >= 0 and y + 4 < p.image.in_h)
                v5 = vload_if(x, at + 5 * row, column and y + 5 >= 0 and y + 5 < p.image.in_h)
                store_six(planes, u, 6 * VL, input4((v0, v1, v2, v3, v4, v5)))
            else:
                store_four(planes, u, 4 * VL, input2((v0, v1, v2, v3)))
        for i in range(p.tile.m + 2):
            u, to = scratch + i * (p.tile.m + 2) * VL, place + c + i * (p.tile.m + 2) * stride
            if p.tile.m == 4:
                store_six(planes, to, stride, input4(load_six(planes, u, VL)))
            else:
                store_four(planes, to, stride, input2(load_four(planes, u, VL)))


@inner
def transform_error(dy, image, y, z, p, filter_, count, planes, place, stride, scratch):
    """planes[place + point * stride + k] = (A e A^T)[point] of the tile at row y, column z."""
    row = p.image.out_w * p.image.out_c
    for k in range(0, count, VL):
        for j in range(p.tile.m):
            column = z + j < p.image.out_w
            at = ((image * p.image.out_h + y) * p.image.out_w + z + j) * p.image.out_c + filter_ + k
            v0 = vload_if(dy, at, column)
            v1 = vload_if(dy, at + row, column and y + 1 < p.image.out_h)
            u = scratch + j * VL
            if p.tile.m == 4:
                v2 = vload_if(dy, at + 2 * row, column and y + 2 < p.image.out_h)
                v3 = vload_if(dy, at + 3 * row, column and y + 3 < p.image.out_h)
                store_six(planes, u, 4 * VL, error4((v0, v1, v2, v3)))
            else:
                store_four(planes, u, 2 * VL, error2((v0, v1)))
        for i in range(p.tile.m + 2):
            u, to = scratch + i * p.tile.m * VL, place + k + i * (p.tile.m + 2) * stride
            if p.tile.m == 4:
                store_six(planes, to, stride, error4(load_four(planes, u, VL)))
            else:
                store_four(planes, to, stride, error2((vload(planes, u), vload(planes, u + VL))))


@inner
def transform_output(planes, place, stride, scratch, p, image, y, z, channel, count, bias_at, out):
    """out[image, y.., z.., channel..] = bias + A^T M A of a tile, as far as the image goes."""
    for k in range(0, count, VL):
        bias = vload(planes, bias_at + channel + k)
        for j in range(p.tile.m + 2):
            at, u = place + k + j * stride, scratch + j * VL
            if p.tile.m == 4:
                store_four(planes, u, 6 * VL, output4(load_six(planes, at, 6 * stride)))
            else:
                low, high = output2(load_four(planes, at, 4 * stride))
                vstore(planes, u, low)
                vstore(planes, u + 4 * VL, high)
        for i in range(min(p.tile.m, p.image.out_h - y)):
            to = ((image * p.image.out_h + y + i) * p.image.out_w + z) * p.image.out_c + channel + k
            if p.tile.m == 4:
                v0, v1, v2, v3 = output4(load_six(planes, scratch + i * 6 * VL, VL))
                if z + 2 < p.image.out_w:
                    vstore(out, to + 2 * p.image.out_c, v2 + bias)
                if z + 3 < p.image.out_w:
                    vstore(out, to + 3 * p.image.out_c, v3 + bias)
            else:
                v0, v1 = output2(load_four(planes, scratch + i * 4 * VL, VL))
            vstore(out, to, v0 + bias)
            if z + 1 < p.image.out_w:
                vstore(out, to + p.image.out_c, v1 + bias)


@inner
def transform_weight(w, at, row, tap, ahead, m, planes, place, stride, scratch):
    """planes[place + point * stride] = (G g G^T)[point]; g's taps lie at w[at + r * row + s * tap].

    The taps `ahead` elements further on are prefetched: they are too far apart for the hardware
    to guess.
    """
    for s in range(3):
        g = at + s * tap
        prefetch(w, g + ahead)
        prefetch(w, g + ahead + row)
        prefetch(w, g + ahead + 2 * row)
        u = scratch + s * VL
        if m == 4:
            columns = weight4(load_three(w, g, row))
            store_six(planes, u, 3 * VL, columns)
        else:
            columns = weight2(load_three(w, g, row))
            store_four(planes, u, 3 * VL, columns)
    for i in range(m + 2):
        u, to = scratch + i * 3 * VL, place + i * (m + 2) * stride
        if m == 4:
            points = weight4(load_three(planes, u, VL))
            store_six(planes, to, stride, points)
        else:
            points = weight2(load_three(planes, u, VL))
            store_four(planes, to, stride, points)


@inner
def transform_panel(w, p, first, columns, planes, place, scratch):
    """planes[place + point * plane + i * PANEL + j] = (G g G^T)[point], input i, output first + j.

    Forward: weights lie with input channels side by side, so blocks of VL x VL are transposed.
    Gradient of the input: they lie as wanted, and the filter is turned by half a turn (taps are
    read backwards).
    """
    block = scratch + 36 * VL
    if p.tile.backward == 1:
        row, tap, ahead = 3 * p.image.out_c, p.image.out_c, 4 * 9 * p.image.out_c
        for i in range(p.image.in_c):
            for j in range(0, columns, VL):
                at = i * 9 * p.image.out_c + 2 * row + 2 * tap + first + j
                to = place + i * PANEL + j
                transform_weight(
                    w, at, -row, -tap, ahead, p.tile.m, planes, to, p.place.weights_plane, scratch
                )
        return
    row, tap = 3 * p.image.in_c, p.image.in_c
    for j in range(0, columns, VL):
        for i in range(0, p.image.in_c, VL):
            for lane in range(VL):
                at = (first + j + lane) * 9 * p.image.in_c + i
                transform_weight(
                    w, at, row, tap, VL, p.tile.m, planes, block + lane * VL, VL * VL, scratch
                )
            for point in range(p.tile.planes):
                to = place + point * p.place.weights_plane + i * PANEL + j
                vtranspose(planes, block + point * VL * VL, VL, planes, to, PANEL)


@inner
def transform_gradient(planes, place, stride, scratch, m, out, at, row, tap):
    """out[at + r * row + s * tap] = (G^T P G)[r, s] for VL channels."""
    for j in range(m + 2):
        u = scratch + j * VL
        if m == 4:
            a, b, c = gradient4(load_six(planes, place + j * stride, 6 * stride))
        else:
            a, b, c = gradient2(load_four(planes, place + j * stride, 4 * stride))
        vstore(planes, u, a)
        vstore(planes, u + (m + 2) * VL, b)
        vstore(planes, u + 2 * (m + 2) * VL, c)
    for r in range(3):
        u = scratch + r * (m + 2) * VL
        if m == 4:
            a, b, c = gradient4(load_six(planes, u, VL))
        else:
            a, b, c = gradient2(load_four(planes, u, VL))
        vstore(out, at + r * row, a)
        vstore(out, at + r * row + tap, b)
        vstore(out, at + r * row + 2 * tap, c)


@inner
def load_three(source, at, step):
    """Three vectors, `step` elements apart."""
    return vload(source, at), vload(source, at + step), vload(source, at + 2 * step)


@inner
def load_four(source, at, step):
    """Four vectors, `step` elements apart."""
    return (
        vload(source, at),
        vload(source, at + step),
        vload(source, at + 2 * step),
        vload(source, at + 3 * step),
    )


@inner
def load_six(source, at, step):
    """Six vectors, `step` elements apart."""
    return (
        vload(source, at),
        vload(source, at + step),
        vload(source, at + 2 * step),
        vload(source, at + 3 * step),
        vload(source, at + 4 * step),
        vload(source, at + 5 * step),
    )


@inner
def store_four(target, at, step, values):
    """Writes four vectors, `step` elements apart."""
    vstore(target, at, values[0])
    vstore(target, at + step, values[1])
    vstore(target, at + 2 * step, values[2])
    vstore(target, at + 3 * step, values[3])


@inner
def store_six(target, at, step, values):
    """Writes six vectors, `step` elements apart."""
    vstore(target, at, values[0])
    vstore(target, at + step, values[1])
    vstore(target, at + 2 * step, values[2])
    vstore(target, at + 3 * step, values[3])
    vstore(target, at + 4 * step, values[4])
    vstore(target, at + 5 * step, values[5])
