"""How much workspace operations need, where the rule is the same on both devices.

Each device says how many bytes its kernels need for a number of elements, rows or channels; the
functions here make rules for its table from that. A rule takes the operation and the shapes of a
call, so the workspace is known when a step is traced. What a reduction keeps for each chunk is up
to the device. No Numba here. Read next: `driver_table.py`, `cpu/workspace.py`,
`cuda/runtime/workspace.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ooctrain.layers.batch_norm import BatchNormGradApply
from ooctrain.layers.conv2d import Convolution
from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.driver_table import Scratch
from ooctrain.layers.layout import Reshape
from ooctrain.layers.reduction import Sum
from ooctrain.step.op import Op, Spec

Specs = Sequence[Spec]
#: "forward", "grad_input" or "grad_weight".
Part = str


def of_elements(size_bytes: Callable[[int], int]) -> Scratch:
    """A sum over all elements of the first input."""
    return lambda op, ins, outs, threads: size_bytes(ins[0].size)


def of_channels(size_bytes: Callable[[int, int], int]) -> Scratch:
    """Sums over the rows of the first input: (rows, channels) -> bytes."""

    def rule(op: Op, ins: Specs, outs: Specs, threads: int) -> int:
        channels = ins[0].shape[1]
        return size_bytes(ins[0].size // channels, channels)

    return rule


def of_axes(size_bytes: Callable[[int, int, int], int]) -> Scratch:
    """A sum over axes: (outer, rows, inner) -> bytes."""

    def rule(op: Sum, ins: Specs, outs: Specs, threads: int) -> int:
        return size_bytes(*op.extents(ins[0].shape))

    return rule


def of_convolution(size_bytes: Callable[[ConvShape, str, Part, int], int], part: Part) -> Scratch:
    """A part of a convolution: (shape, algorithm, part, threads) -> bytes."""

    def rule(op: Convolution, ins: Specs, outs: Specs, threads: int) -> int:
        return size_bytes(op.conv_shape(ins, outs), op.algorithm, part, threads)

    return rule


def of_zeros(op: BatchNormGradApply, ins: Specs, outs: Specs, threads: int) -> int:
    """Zeros in place of the sums over a batch, where the statistics are constants."""
    return 0 if op.batch_stats else ins[2].nbytes


def of_reshape(op: Reshape, ins: Specs, outs: Specs, threads: int) -> int:
    """A copy in logical order, where one is made."""
    return ins[0].nbytes if op.goes_by_logical_order else 0
