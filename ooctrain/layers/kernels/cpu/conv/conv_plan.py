"""Which algorithm a convolution uses and how much scratch memory each of its three parts needs.

In: a `ConvShape`. Out: a name and byte counts, exact, for a number of threads. The one idea: both
follow from the shape alone, never from the machine's load or its instruction set, so they are
known when a step is traced and kernels allocate nothing. Pure Python: no Numba is imported here.
Read next: `direct_plan.py`, `conv2d.py`.
"""

from __future__ import annotations

from typing import Literal

from ooctrain.errors import ConfigError
from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.cpu.conv import (
    depthwise_plan,
    direct_plan,
    direct_weights_plan,
    im2col_plan,
    winograd_plan,
)

Algorithm = Literal["direct", "winograd2", "winograd4", "im2col", "depthwise"]
#: what can be asked for; "depthwise" is chosen where every channel has its own filter
ALGORITHMS: tuple[Algorithm, ...] = ("direct", "winograd2", "winograd4", "im2col")

# Bounds of the rounding error in each part: root mean square over the standard deviation of the
# exact result, for data without a mean and up to some thousand terms in a sum. Single elements may
# be off by ten times as much. The tests hold every algorithm to its bound, "depthwise" to that of
# "direct".
RELATIVE_ERROR: dict[Algorithm, float] = {
    "direct": 1e-6,
    "im2col": 2e-6,
    "winograd2": 2e-6,
    "winograd4": 1e-5,
}
# Measured: what the transforms cost relative to the products, and below what sizes they never pay.
WINOGRAD_OVERHEAD = 1.3
MIN_TILES = 12
MIN_CHANNELS = 32


def choose_algorithm(shape: ConvShape, requested: str = "auto") -> Algorithm:
    """The algorithm for `shape`; a request that does not apply to it falls back to "direct".

    Args:
        shape: the convolution.
        requested: "auto" or one of ALGORITHMS.

    Raises:
        ConfigError: an unknown name.
    """
    if requested not in (*ALGORITHMS, "auto"):
        raise ConfigError(
            f"unknown convolution algorithm {requested!r}",
            fix=f"one of auto, {', '.join(ALGORITHMS)}",
        )
    if requested == "im2col":
        return "im2col"
    if requested == "auto" and depthwise_plan.applies(shape):
        return "depthwise"
    if requested == "direct" or not winograd_plan.applies(shape):
        return "direct"
    if requested == "winograd2":
        return "winograd2"
    return "winograd4" if requested == "winograd4" else _cheapest(shape)


def _cheapest(shape: ConvShape) -> Algorithm:
    """The algorithm with the fewest multiplications; "direct" where few tiles share a transformed
    weight.
    """
    pixels = shape.n * shape.oh * shape.ow
    costs: dict[Algorithm, float] = {
        "direct": 9 * pixels,
        "winograd2": 16 * WINOGRAD_OVERHEAD * winograd_plan.tile_count(shape, 2),
        "winograd4": 36 * WINOGRAD_OVERHEAD * winograd_plan.tile_count(shape, 4),
    }
    if winograd_plan.tile_count(shape, 4) < MIN_TILES or min(shape.c, shape.k) < MIN_CHANNELS:
        return "direct"
    return min(costs, key=costs.__getitem__)


def workspace_bytes(shape: ConvShape, algorithm: str, part: str, threads: int) -> int:
    """Bytes of all scratch memory of one call: tables, packed weights, windows, partial sums.

    Args:
        shape: the convolution.
        algorithm: as `choose_algorithm` returned it.
        part: "forward", "grad_input" or "grad_weight".
        threads: size of the pool that will run it.
    """
    if algorithm.startswith("winograd"):
        m = int(algorithm.removeprefix("winograd"))
        if part == "grad_weight":
            return 4 * winograd_plan.plan_grad_weight(shape, m, threads).size_floats
        backward = part == "grad_input"
        return 4 * winograd_plan.plan_correlation(shape, m, threads, backward=backward).size_floats
    if algorithm == "depthwise":
        return 4 * depthwise_plan.size_floats(shape, part)
    if algorithm == "im2col":
        return 4 * im2col_plan.plan(shape, part, threads).size_floats
    if part == "grad_weight":
        return 4 * direct_weights_plan.plan_grad_weight(shape, threads).size_floats
    plan = direct_plan.plan_forward if part == "forward" else direct_plan.plan_grad_input
    return 4 * plan(shape, threads).size_floats


def linear_shape(rows: int, inputs: int, outputs: int) -> ConvShape:
    """A linear layer is a 1x1 convolution on 1x1 images: same layouts, same products."""
    return ConvShape(n=rows, c=inputs, h=1, w=1, k=outputs, r=1, s=1)


def linear_workspace_bytes(rows: int, inputs: int, outputs: int, part: str, threads: int) -> int:
    """`workspace_bytes` of a linear layer's products: x (rows, inputs), w (outputs, inputs)."""
    return workspace_bytes(linear_shape(rows, inputs, outputs), "direct", part, threads)
