"""Images of another size: resized, pooled, padded.

Images (N, C, H, W) keep their channels and get other extents. A tile of an image is padded only
where it touches the border, so PyTorch's padding (one number for both sides) and its `ceil_mode`
become four explicit sides here. Read next: `../layers/pooling.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

from ooctrain.engine.tensor import Tensor, call
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.functional.conv import IntOrPair, finite, pair, sides, whole
from ooctrain.functional.pointwise import cat
from ooctrain.layers.arithmetic import BytesToFloat
from ooctrain.layers.combine import Constant
from ooctrain.layers.extremes import MaxAlong
from ooctrain.layers.layout import ConstantPad, Pad
from ooctrain.layers.pooling import (
    MOST_CELLS,
    AdaptiveAvgPool2d,
    AvgPool2d,
    MaxPool2d,
    PoolGeometry,
)
from ooctrain.layers.regions import Embed
from ooctrain.layers.resampling import ReflectionPad2d, Upsample
from ooctrain.step.arguments import checked, checked_but
from ooctrain.step.op import Pair, Sides

#: One number, or one for each channel.
Each = float | Sequence[float] | np.ndarray
PlainEach = float | tuple[float, ...]
#: Into how many pieces a factor of `interpolate` may cut a pixel, and how near to a fraction it is.
MOST_PIECES, _SAME = 64, 1e-6


@checked
def from_bytes(input: Tensor, mean: Each = 0.0, std: Each = 255.0) -> Tensor:
    """(input - mean) / std as float32, of uint8 images; the default gives 0 to 1.

    Args:
        mean, std: from 0 to 255; one number, or one for each channel.

    Raises:
        ConfigError: they are not finite numbers, std is not positive, or their numbers differ.
        ShapeError: the input is not uint8, or has another number of channels.
    """
    return call(BytesToFloat(*mean_and_std(mean, std)), input)


def mean_and_std(mean: Each, std: Each) -> tuple[PlainEach, PlainEach]:
    """Both as numbers, or both as one number for each channel. Raises ConfigError: they are not
    finite numbers, or not as many."""
    means, stds = _numbers(mean, "mean"), _numbers(std, "std")
    if min(stds) <= 0:
        raise ConfigError(f"std {std!r} is not positive", code="OOC-106", fix="such as std=255")
    count = max(len(means), len(stds))
    if {len(means), len(stds)} - {1, count}:
        raise ConfigError(
            f"{len(means)} means do not fit {len(stds)} deviations", code="OOC-106",
            fix="one of each for every channel",
        )  # fmt: skip
    if count == 1:
        return means[0], stds[0]
    return means * (count // len(means)), stds * (count // len(stds))


def _numbers(value: Each, what: str) -> tuple[float, ...]:
    if isinstance(value, Sequence | np.ndarray) and len(value):
        return tuple(finite(one, what) for one in value)
    return (finite(value, what),)  # type: ignore[arg-type]


@checked
def interpolate(
    input: Tensor, size: IntOrPair | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Tensor:  # fmt: skip
    """Images in another size: (N, C, H, W) give (N, C, OH, OW).

    Args:
        size: (OH, OW); or
        scale_factor: one positive number for both axes, or two; a pixel of the result is 1 /
            scale_factor of one of the image, and what is left of a pixel behind the last whole one
            is not computed.
        mode: "nearest" or "bilinear".
        align_corners: bilinear: True lets the centres of the corner pixels fall on each other, else
            the borders of the images do. Not for "nearest".
        recompute_scale_factor: the result's size alone decides: a pixel of it is H / OH of one of
            the image.

    Raises:
        ConfigError: both or neither of size and scale_factor, a factor that is not a positive
            finite number or no simple fraction, align_corners with "nearest".
        ShapeError: no images, an output without pixels, or no such mode.
    """
    if align_corners is not None and mode == "nearest":
        raise ConfigError(
            "interpolate: mode 'nearest' takes no align_corners", code="OOC-106",
            fix="mode='bilinear', or leave align_corners out",
        )  # fmt: skip
    if (size is None) == (scale_factor is None):
        raise ConfigError("interpolate takes either size or scale_factor", code="OOC-106")
    align = bool(align_corners)
    if scale_factor is None:
        if recompute_scale_factor:
            raise ConfigError(
                "interpolate: recompute_scale_factor goes with scale_factor", code="OOC-106"
            )
        assert size is not None
        return call(Upsample(pair(size), mode, align), input)
    factors = _factors(scale_factor)
    extents = getattr(input, "shape", ())[2:4]
    wanted = [
        math.floor(n * f) for n, f in zip(extents, factors, strict=False)
    ]  # as PyTorch rounds
    if align or recompute_scale_factor or len(wanted) < 2 or min(wanted) < 1:
        return call(Upsample(pair(wanted), mode, align), input)
    # A pixel's size is the factor's, not the ratio of the sizes: so the image is made longer, by
    # its last row or column, until the factor makes whole pixels of it, and the rest is cut off.
    for axis, factor in zip((2, 3), factors, strict=True):
        input = _longer(input, axis, factor)
    grown = [round(n * f) for n, f in zip(input.shape[2:], factors, strict=True)]
    result = call(Upsample(pair(grown), mode, align), input)
    return result if grown == wanted else result[:, :, : wanted[0], : wanted[1]]


def _factors(scale_factor: float | Sequence[float]) -> tuple[float, float]:
    """(rows, columns). Raises ConfigError: not one or two positive finite numbers."""
    given: Any = (scale_factor,) * 2 if isinstance(scale_factor, Real) else scale_factor
    try:
        rows, columns = (finite(factor, "scale_factor") for factor in given)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"scale_factor {scale_factor!r} is not one number or two", code="OOC-106"
        ) from error
    if min(rows, columns) <= 0:
        raise ShapeError(f"interpolate: scale_factor {scale_factor!r} makes not an image size")
    return rows, columns


def _longer(image: Tensor, axis: int, factor: float) -> Tensor:
    """An image whose extent times the factor is whole, its last row or column repeated."""
    extent, fraction = image.shape[axis], Fraction(factor).limit_denominator(MOST_PIECES)
    if extent * factor == math.floor(extent * factor):
        return image
    more = -extent % fraction.denominator
    if abs(float(fraction) - factor) > _SAME * factor:
        raise ConfigError(
            f"scale_factor {factor!r} is no fraction with a denominator of {MOST_PIECES} or less",
            code="OOC-106", fix="give size, or recompute_scale_factor=True",
        )  # fmt: skip
    last = [slice(None)] * axis + [slice(extent - 1, extent)]
    return cat([image, *[image[tuple(last)]] * more], axis)


@checked
def max_pool2d(
    input: Tensor, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0,
    dilation: IntOrPair = 1, ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """Maximum of each window: (N, C, H, W) give (N, C, OH, OW); the first of equal ones counts.

    Args:
        kernel_size: rows and columns of a window, at most 256 cells.
        stride: from window to window; None: the window, so that windows do not overlap.
        padding: on both sides, at most half a window; it is never the maximum.
        dilation: rows and columns from cell to cell of a window.
        ceil_mode: windows that only begin in the image count too.

    Raises:
        ConfigError: too much padding.
        ShapeError: a window larger than the padded image, or of too many cells.
    """
    geometry = _pool_geometry(kernel_size, stride, padding, dilation)
    return call(MaxPool2d(_rounded(geometry, input, ceil_mode)), input)


@checked
def avg_pool2d(
    input: Tensor, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """Mean of each window: (N, C, H, W) give (N, C, OH, OW).

    Args:
        kernel_size, stride, padding: as in `max_pool2d`.
        ceil_mode: windows that only begin in the image count too; what lies behind the padding is
            in no mean.
        count_include_pad: whether the padding's zeros are.

    Raises:
        ConfigError: too much padding.
    """
    geometry = _pool_geometry(kernel_size, stride, padding)
    if not ceil_mode:
        return call(AvgPool2d(geometry, count_include_pad), input)
    rounded = _rounded(geometry, input, ceil_mode)
    if count_include_pad and any(geometry.padding):
        # Zeros that count become part of the image; what rounding adds behind them stays padding.
        input = call(Pad(geometry.padding), input)
        behind = [b - a for a, b in zip(geometry.padding, rounded.padding, strict=True)]
        rounded = replace(rounded, padding=(0, behind[1], 0, behind[3]))
    return call(AvgPool2d(rounded, count_include_pad=False), input)


@checked
def adaptive_avg_pool2d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Means over as many windows as the output has pixels: (N, C, H, W) give (N, C, OH, OW).

    Window o of OH covers rows floor(o H / OH) to ceil((o + 1) H / OH) - 1, as in PyTorch.

    Args:
        output_size: (OH, OW), or one number for both; None: as in the input.
    """
    return call(AdaptiveAvgPool2d(_adaptive_size(input, output_size)), input)


def _adaptive_size(input: Tensor, output_size: int | Sequence[int | None] | None) -> Pair:
    asked = output_size if isinstance(output_size, Sequence) else (output_size, output_size)
    if len(asked) != 2 or len(input.shape) < 2:
        raise ShapeError(f"{asked} is no size of images {input.shape}", fix="(OH, OW)")
    own = input.shape[-2:]
    return pair([mine if wanted is None else wanted
                 for wanted, mine in zip(asked, own, strict=True)])  # fmt: skip


@checked
def adaptive_max_pool2d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Maxima over the windows of `adaptive_avg_pool2d`; the first of equal ones counts."""
    size = _adaptive_size(input, output_size)
    if input.ndim != 4 or min(size) < 1:
        raise ShapeError(
            f"adaptive_max_pool2d wants (N, C, H, W) and a size, not {size}",
            numbers=f"got {input.shape}",
        )
    if size == (1, 1):
        return call(MaxAlong((2, 3)), input)
    kernel = tuple(n // out for n, out in zip(input.shape[2:], size, strict=True))
    whole = all(k * out == n for k, out, n in zip(kernel, size, input.shape[2:], strict=True))
    if whole and math.prod(kernel) <= MOST_CELLS:
        return max_pool2d(input, kernel)
    # In each row the first of its columns, and then the first of the rows.
    for axis, out in ((3, size[1]), (2, size[0])):
        extent = input.shape[axis]
        spans = [(o * extent // out, -(-(o + 1) * extent // out)) for o in range(out)]
        parts = [input.narrow(axis, first, end - first) for first, end in spans]
        input = cat([call(MaxAlong((axis,)), part) for part in parts], axis)
    return input


@checked_but("mode")
def pad(
    input: Tensor, pad: Sequence[int],
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant",
    value: float | None = None,
) -> Tensor:  # fmt: skip
    """Padding with a value; of images (N, C, H, W) also mirrored, continued or repeated.

    Args:
        pad: (left, right, top, bottom), PyTorch's order. With a value also two numbers for each
            axis, from the last on, and negative ones, which cut off.
        mode: "constant": `value`; "reflect": mirrored at the outermost pixels, each side less than
            the image; "replicate": the outermost pixels again; "circular": the image again, each
            side at most the image.
        value: value of a constant border; None: 0.

    Raises:
        ConfigError: a value for what is mirrored, no such mode, or not whole numbers, two for each
            axis.
        ShapeError: no images, a negative side, or more to mirror or repeat than the image has.
    """
    if not isinstance(mode, str) or mode not in ("constant", *_PADDINGS):
        known = " nor ".join(map(repr, ("constant", *_PADDINGS)))
        raise ConfigError(f"pad: mode {mode!r} is neither {known}", code="OOC-106")
    if value is not None and mode != "constant":
        raise ConfigError(f"pad: mode {mode!r} takes no value", code="OOC-106")
    if mode != "constant":
        return _PADDINGS[mode](sides(pad), input)
    numbers = [int(n) for n in pad if isinstance(n, Integral)] if isinstance(pad, Sequence) else []
    if not numbers or len(numbers) != len(pad) or len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ConfigError(
            f"pad wants two whole numbers for each axis, got {pad!r}", code="OOC-106",
            fix="(left, right, top, bottom) for images",
        )  # fmt: skip
    if len(pad) == 4 and input.ndim == 4 and min(numbers) >= 0:
        four = sides(pad)
        if value:
            return call(ConstantPad(four, _border(value)), input)
        return call(Pad(four), input)
    pairs = [(numbers[i], numbers[i + 1]) for i in range(0, len(numbers), 2)]
    return _framed(input, [*[(0, 0)] * (input.ndim - len(pairs)), *reversed(pairs)], value or 0.0)


def _border(value: float) -> float:
    """A border's value; infinities are what a maximum never takes."""
    return value if value in (math.inf, -math.inf) else finite(value, "value")


def _framed(input: Tensor, pairs: Sequence[tuple[int, int]], value: float) -> Tensor:
    """So many places before and behind along each axis; negative numbers cut off."""
    x = input
    for axis, (before, behind) in enumerate(pairs):
        extent = x.shape[axis]
        if min(before, behind) < 0:
            start, end = max(-before, 0), extent - max(-behind, 0)
            x = x.narrow(axis, start, end - start)
    more = [(max(a, 0), max(b, 0)) for a, b in pairs]
    full = tuple(n + a + b for n, (a, b) in zip(x.shape, more, strict=True))
    if full == x.shape:
        return x
    if not value:
        return call(Embed(full, tuple(a for a, _ in more)), x)
    for axis, sizes in enumerate(more):
        frame = [
            call(Constant(_border(value), (*x.shape[:axis], n, *x.shape[axis + 1 :])))
            if n else None for n in sizes
        ]  # fmt: skip
        parts = [part for part in (frame[0], x, frame[1]) if part is not None]
        x = cat(parts, axis) if len(parts) > 1 else x
    return x


def _continued(sides: Sides, input: Tensor) -> Tensor:
    """The outermost pixels again; PyTorch's "replicate"."""

    def part(x: Tensor, axis: int, count: int, *, first: bool) -> Tensor:
        edge = x.narrow(axis, 0 if first else x.shape[axis] - 1, 1)
        return edge.expand([count if a == axis else -1 for a in range(x.ndim)])

    return _bordered(sides, input, part)


def _repeated(sides: Sides, input: Tensor) -> Tensor:
    """The image again on the other side; PyTorch's "circular"."""
    top, bottom, left, right = sides
    h, w = input.shape[2:] if input.ndim == 4 else (0, 0)
    if max(top, bottom) > h or max(left, right) > w:
        raise ShapeError(f"pad: {sides} is more than the image", numbers=f"got {input.shape}")

    def part(x: Tensor, axis: int, count: int, *, first: bool) -> Tensor:
        return x.narrow(axis, x.shape[axis] - count if first else 0, count)

    return _bordered(sides, input, part)


def _bordered(sides: Sides, input: Tensor, part: Callable[..., Tensor]) -> Tensor:
    """An image between what `part` makes of it: columns, and then rows."""
    if input.ndim != 4 or min(sides) < 0:
        raise ShapeError("pad: wants (N, C, H, W) and sides >= 0", numbers=f"got {input.shape}")
    for axis, before, behind in ((3, *sides[2:]), (2, *sides[:2])):
        parts = [input]
        if before:
            parts = [part(input, axis, before, first=True), *parts]
        if behind:
            parts = [*parts, part(input, axis, behind, first=False)]
        input = cat(parts, axis) if len(parts) > 1 else input
    return input


@checked
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Channels become pixels: (N, C r^2, H, W) give (N, C, H r, W r), r the factor.

    Raises:
        ShapeError: no images, or channels that do not part into r^2.
    """
    r = upscale_factor
    if input.ndim != 4 or r < 1 or input.shape[1] % (r * r):
        raise ShapeError(
            f"pixel_shuffle wants (N, C, H, W), C a multiple of {r * r}",
            numbers=f"got {input.shape}",
        )
    n, c, h, w = input.shape
    c //= r * r
    apart = input.reshape(n, c, r, r, h, w).permute(0, 1, 4, 2, 5, 3)
    return apart.reshape(n, c, h * r, w * r)


@checked
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Pixels become channels: (N, C, H r, W r) give (N, C r^2, H, W), r the factor.

    Raises:
        ShapeError: no images, or extents that are no multiples of r.
    """
    r = whole(downscale_factor, "downscale_factor")
    if input.ndim != 4 or r < 1 or input.shape[2] % r or input.shape[3] % r:
        raise ShapeError(
            f"pixel_unshuffle wants (N, C, H, W), H and W multiples of {r}",
            numbers=f"got {input.shape}",
        )
    n, c, h, w = input.shape
    apart = input.reshape(n, c, h // r, r, w // r, r).permute(0, 1, 3, 5, 2, 4)
    return apart.reshape(n, c * r * r, h // r, w // r)


@checked
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels of all groups in turn: channel c of C becomes c % (C / groups) * groups + c //
    (C / groups).

    Raises:
        ShapeError: no channels, or a number of them that does not part into groups.
    """
    groups = whole(groups, "groups")
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise ShapeError(
            f"channel_shuffle wants (N, C, ...), C a multiple of {groups}",
            numbers=f"got {input.shape}",
        )
    n, c, *tail = input.shape
    apart = input.reshape(n, groups, c // groups, *tail)
    return apart.transpose(1, 2).reshape(input.shape)


def _pool_geometry(
    kernel_size: IntOrPair, stride: IntOrPair | None, padding: IntOrPair, dilation: IntOrPair = 1
) -> PoolGeometry:
    kernel, (rows, columns) = pair(kernel_size), pair(padding)
    step = kernel if stride is None else pair(stride)
    geometry = PoolGeometry(kernel, step, (rows, rows, columns, columns), pair(dilation))
    if any(2 * p > extent for p, extent in zip((rows, columns), geometry.extent, strict=True)):
        raise ConfigError(
            f"pooling: padding {(rows, columns)} is more than half of the window {geometry.extent}"
        )
    return geometry


#: {mode: (sides, images) -> images}
_PADDINGS: Mapping[str, Callable[[Sides, Tensor], Tensor]] = {
    "reflect": lambda sides, input: call(ReflectionPad2d(sides), input),
    "replicate": _continued, "circular": _repeated,
}  # fmt: skip


def _rounded(geometry: PoolGeometry, input: Tensor, ceil_mode: bool) -> PoolGeometry:
    if not ceil_mode or input.ndim != 4 or min(geometry.stride) < 1:
        return geometry
    return geometry.rounded_up(*input.shape[2:])
