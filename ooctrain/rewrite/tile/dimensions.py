"""Dimension maps: which loop of an operation runs over which dimension of its tensors, as data.

An operation and the shapes of its tensors give a `LoopNest`: the loops that can be tiled, and for
each tensor the loop that indexes each dimension. Two dimensions that one loop indexes are cut
together. So a slice of the output along B, C, H or W can be computed from a slice of the input if
the loop over it also runs over a dimension of the input. If that loop sums (the channels of a
convolution) or if there is none (the rows of a global average), all of the input is needed. A slice
of T elements needs sigma T + delta.

Source: paper 003, section 4.1, listings 1 and 2, tables 3 and 4, repaired (docs/errata.md): with a
stride, sigma = s and delta = reach - s. Rows of table 3 that are wrong or too narrow in the print
stand in docs/papers.md. Read next: `sft.py`, which follows these maps through a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.batch_norm import BatchNormApply, BatchNormStats
from ooctrain.layers.combine import Concat
from ooctrain.layers.conv2d import Conv2d
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.instance_norm import InstanceNormApply, InstanceNormStats
from ooctrain.layers.layout import Pad, Reshape
from ooctrain.layers.linear import Linear
from ooctrain.layers.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from ooctrain.layers.relu import Pointwise
from ooctrain.layers.resampling import Upsample
from ooctrain.layers.softmax import SoftmaxAlong
from ooctrain.step.op import Op, Spec
from ooctrain.step.rows import Window

#: What the dimensions of an image are called; a matrix has the first two.
DIMENSIONS = ("B", "C", "H", "W")
#: The loop of a dimension that cannot be tiled: each slice needs all of it.
WHOLE = ""
_NO_WINDOWS: Mapping[int, Window] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TensorLoops:
    """A tensor that an operation reads or writes (listing 1's EdgeMeta).

    Args:
        loops: for each dimension the loop that indexes it, or `WHOLE`.
        windows: {dimension: the window through which it is read}; others are read as they are.
        gathers: the windows are those of the way back, as of a transposed convolution.
    """

    loops: tuple[str, ...]
    windows: Mapping[int, Window] = field(default_factory=lambda: _NO_WINDOWS)
    gathers: bool = False

    def scale(self, dimension: int) -> int:
        """Sigma: how many more elements one more iteration needs."""
        return self.windows.get(dimension, Window()).stride

    def delta(self, dimension: int) -> int:
        """What T iterations need beyond sigma T."""
        window = self.windows.get(dimension, Window())
        return window.reach - window.stride


@dataclass(frozen=True, slots=True)
class LoopNest:
    """The loops of an operation that can be tiled, and what they run over.

    Args:
        loops: the iteration space of table 3.
        ins: for each input; None: a weight, which does not flow through the graph (figure 6).
        out: dimensions of the outputs, which all have the same dimensions.
    """

    loops: tuple[str, ...]
    ins: tuple[TensorLoops | None, ...]
    out: TensorLoops

    def connections(self) -> dict[tuple[int, int], int]:
        """{(input, dimension of it): dimension of the output that the same loop runs over}.

        Listing 2. Its line 11 takes the map that line 8 fills the wrong way round.
        """
        found = {}
        for position, tensor in enumerate(self.ins):
            for dimension, loop in enumerate(tensor.loops if tensor else ()):
                if loop != WHOLE and loop in self.out.loops:
                    found[position, dimension] = self.out.loops.index(loop)
        return found


MakeNest = Callable[[Any, Sequence[Spec], Spec], LoopNest | None]


def loop_nest(op: Op, ins: Sequence[Spec], out: Spec) -> LoopNest | None:
    """The dimension map of an operation; None where nothing of it can be tiled.

    An operation of a user's own has what its `window` says, and all of its channels at once.
    """
    for kind, make in NESTS.items():
        if isinstance(op, kind):
            return make(op, ins, out)
    windows = op.window() if isinstance(op, Op) else None
    if windows is None or len(ins[0].shape) != 4:
        return None
    rows = TensorLoops(("B", WHOLE, "H", "W"), {2: windows[0], 3: windows[1]})
    return LoopNest(("B", "H", "W"), (rows, *_weights(ins)), TensorLoops(rows.loops))


# One function for each row of table 3, and for what our networks have besides


def _conv2d(op: Conv2d, ins: Sequence[Spec], out: Spec) -> LoopNest:
    """Seven loops, of which five are tiled; those over the kernel are not."""
    rows, columns = op.window()
    image = TensorLoops(("B", "C", "H", "W"), {2: rows, 3: columns})
    loops = ("B", "C", "K", "H", "W")
    return LoopNest(loops, (image, *_weights(ins)), TensorLoops(("B", "K", "H", "W")))


def _pool(op: MaxPool2d | AvgPool2d, ins: Sequence[Spec], out: Spec) -> LoopNest:
    rows, columns = op.window()
    image = TensorLoops(DIMENSIONS, {2: rows, 3: columns})
    return LoopNest(DIMENSIONS, (image,), TensorLoops(DIMENSIONS))


def _conv_transpose(op: ConvTranspose2d, ins: Sequence[Spec], out: Spec) -> LoopNest:
    """Which cells it reads is what the gradient of a convolution reads."""
    rows, columns = op.geometry.windows(*op.kernel)
    image = TensorLoops(DIMENSIONS, {2: rows, 3: columns}, gathers=True)
    loops = ("B", "C", "K", "H", "W")
    return LoopNest(loops, (image, *_weights(ins)), TensorLoops(("B", "K", "H", "W")))


def _upsample(op: Upsample, ins: Sequence[Spec], out: Spec) -> LoopNest | None:
    """By whole factors and the nearest cell."""
    factors = [b // a for a, b in zip(ins[0].shape[2:], op.size, strict=True)]
    sizes = [a * f for a, f in zip(ins[0].shape[2:], factors, strict=True)]
    if op.mode != "nearest" or op.place or sizes != list(op.size):
        return None
    windows = {axis: Window(f, f) for axis, f in zip((2, 3), factors, strict=True)}
    image = TensorLoops(DIMENSIONS, windows, gathers=True)
    return LoopNest(DIMENSIONS, (image,), TensorLoops(DIMENSIONS))


def _global_pool(op: AdaptiveAvgPool2d, ins: Sequence[Spec], out: Spec) -> LoopNest:
    """Each image and each channel by itself; its windows have no fixed stride."""
    each = TensorLoops(("B", "C", WHOLE, WHOLE))
    return LoopNest(("B", "C"), (each,), each)


def _elementwise(op: Op, ins: Sequence[Spec], out: Spec) -> LoopNest | None:
    """Inputs of other shapes are weights, or one number for all."""
    loops = DIMENSIONS[: len(out.shape)] if len(out.shape) in (2, 4) else None
    if loops is None:
        return None
    tensors = [TensorLoops(loops) if spec.shape == out.shape else None for spec in ins]
    return LoopNest(loops, tuple(tensors), TensorLoops(loops))


def _softmax(op: SoftmaxAlong, ins: Sequence[Spec], out: Spec) -> LoopNest | None:
    if len(out.shape) not in (2, 4):
        return None
    each = tuple(WHOLE if i == op.axis else name for i, name in _named(out))
    return LoopNest(tuple(filter(None, each)), (TensorLoops(each),), TensorLoops(each))


def _linear(op: Linear, ins: Sequence[Spec], out: Spec) -> LoopNest:
    return LoopNest(
        ("B", "C", "K"), (TensorLoops(("B", "C")), *_weights(ins)), TensorLoops(("B", "K"))
    )


def _concat(op: Concat, ins: Sequence[Spec], out: Spec) -> LoopNest | None:
    if len(out.shape) not in (2, 4):
        return None
    each = tuple(WHOLE if i == op.axis else name for i, name in _named(out))
    return LoopNest(tuple(filter(None, each)), (TensorLoops(each),) * len(ins), TensorLoops(each))


def _pad(op: Pad, ins: Sequence[Spec], out: Spec) -> LoopNest:
    top, bottom, left, right = op.padding
    windows = {2: Window(pad_lo=top, pad_hi=bottom), 3: Window(pad_lo=left, pad_hi=right)}
    return LoopNest(DIMENSIONS, (TensorLoops(DIMENSIONS, windows),), TensorLoops(DIMENSIONS))


def _batch_statistics(op: BatchNormStats, ins: Sequence[Spec], out: Spec) -> LoopNest:
    """Sums over all images, rows and columns: only channels are left."""
    whole = (WHOLE,) * (len(ins[0].shape) - 2)
    return LoopNest(("C",), (TensorLoops((WHOLE, "C", *whole)),), TensorLoops(("C",)))


def _batch_norm(op: BatchNormApply, ins: Sequence[Spec], out: Spec) -> LoopNest:
    """With known statistics it works element by element."""
    loops = DIMENSIONS[: len(out.shape)]
    tensors = [
        TensorLoops(loops) if spec.shape == out.shape else TensorLoops(("C",)) for spec in ins
    ]
    return LoopNest(loops, tuple(tensors), TensorLoops(loops))


def _instance_statistics(op: InstanceNormStats, ins: Sequence[Spec], out: Spec) -> LoopNest:
    each = TensorLoops(("B", "C"))
    return LoopNest(each.loops, (TensorLoops(("B", "C", WHOLE, WHOLE)),), each)


def _instance_norm(op: InstanceNormApply, ins: Sequence[Spec], out: Spec) -> LoopNest:
    tensors = [
        TensorLoops(DIMENSIONS if spec.shape == out.shape else ("B", "C")[2 - len(spec.shape) :])
        for spec in ins
    ]
    return LoopNest(DIMENSIONS, tuple(tensors), TensorLoops(DIMENSIONS))


def _reshape(op: Reshape, ins: Sequence[Spec], out: Spec) -> LoopNest | None:
    """Images stay apart; what else there is is mixed."""
    if ins[0].shape[0] != out.shape[0]:
        return None
    tensors = [TensorLoops(("B", *(WHOLE,) * (len(s.shape) - 1))) for s in (ins[0], out)]
    return LoopNest(("B",), (tensors[0],), tensors[1])


NESTS: Mapping[type[Op], MakeNest] = MappingProxyType(
    {
        Conv2d: _conv2d,
        ConvTranspose2d: _conv_transpose,
        Upsample: _upsample,
        MaxPool2d: _pool,
        AvgPool2d: _pool,
        AdaptiveAvgPool2d: _global_pool,
        Pointwise: _elementwise,
        Dropout: _elementwise,
        Arithmetic: _elementwise,
        SoftmaxAlong: _softmax,
        Linear: _linear,
        Concat: _concat,
        Pad: _pad,
        BatchNormStats: _batch_statistics,
        BatchNormApply: _batch_norm,
        InstanceNormStats: _instance_statistics,
        InstanceNormApply: _instance_norm,
        Reshape: _reshape,
    }
)


def _weights(ins: Sequence[Spec]) -> tuple[None, ...]:
    return (None,) * (len(ins) - 1)


def _named(spec: Spec) -> list[tuple[int, str]]:
    return list(enumerate(DIMENSIONS[: len(spec.shape)]))
