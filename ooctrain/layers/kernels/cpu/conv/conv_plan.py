"""How much scratch memory each of the three parts of a convolution needs, by algorithm.

For a `ConvShape`, the name of an algorithm (`layers/conv_algorithms.py`) and a number of threads,
the functions give exact numbers of bytes. These follow from the arguments alone, never from the
machine's load or its instruction set, so they are known when a step is traced and kernels allocate
nothing. Pure Python: no Numba is imported here. Read next: `direct_plan.py`, `conv2d.py`.
"""

from __future__ import annotations

from ooctrain.layers.conv_algorithms import CpuAlgorithm
from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.cpu.conv import (
    depthwise_plan,
    direct_plan,
    direct_weights_plan,
    im2col_plan,
    winograd_plan,
)

# Bounds of the rounding error in each part: root mean square over the standard deviation of the
# exact result, for data without a mean and up to some thousand terms in a sum. Single elements may
# be off by ten times as much. The tests hold every algorithm to its bound, "depthwise" to that of
# "direct".
RELATIVE_ERROR: dict[CpuAlgorithm, float] = {
    "direct": 1e-6,
    "im2col": 2e-6,
    "winograd2": 2e-6,
    "winograd4": 1e-5,
}


def workspace_bytes(shape: ConvShape, algorithm: str, part: str, threads: int) -> int:
    """Bytes of all scratch memory of one call: tables, packed weights, windows, partial sums.

    Args:
        shape: the convolution.
        algorithm: as `layers/conv_algorithms.py` chose it.
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
