"""Functions of single elements (activations, dropout), and those that only move them (joining).

PyTorch's `inplace` is accepted and ignored here. The rewrite `share_storage` decides on the whole
trace where an output may overwrite its input. Read next: `../layers/relu.py`,
`../rewrite/share_storage.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ooctrain.engine.algebra import axes_of
from ooctrain.engine.tensor import Tensor, call, current_tape
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.combine import Concat, Constant
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.function import Sigmoid, Tanh
from ooctrain.layers.relu import LeakyReLU, ReLU
from ooctrain.step.arguments import checked


@checked
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(input, 0). `inplace` is ignored: `share_storage` decides where it is safe."""
    return call(ReLU(), input)


@checked
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """input where positive, else negative_slope * input. `inplace` as in `relu`."""
    return call(LeakyReLU(negative_slope), input)


@checked
def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return call(Tanh(), input)


@checked
def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input))."""
    return call(Sigmoid(), input)


@checked
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drops each element with probability p and scales the others by 1 / (1 - p), in training.

    The mask is a hash of the seed, the step, the call and the element, so that a call that runs
    again draws the same, and a part of a batch what the whole would. `inplace` as in `relu`.

    Args:
        input: (N, C, H, W) or (N, C).

    Raises:
        ConfigError: p is not a probability.
    """
    if not 0 <= p <= 1:
        raise ConfigError(f"dropout: probability {p} is not in [0, 1]")
    if not training or p == 0:
        return input
    tape = current_tape()
    place = {} if tape.parts is None else tape.parts.place_of(input.shape)
    return call(Dropout(p, tape.next_dropout(), **place), input)


@checked
def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Drops whole channels of images (N, C, H, W), each with probability p; else as `dropout`."""
    if input.ndim != 4:
        raise ShapeError("dropout2d wants images (N, C, H, W)", numbers=f"got {input.shape}")
    ones = call(Constant(1.0, (*input.shape[:2], 1, 1)))
    mask = dropout(ones, p, training)
    return input if mask is ones else input * mask


@checked
def stochastic_depth(
    input: Tensor, p: float, mode: Literal["batch", "row"], training: bool = True
) -> Tensor:
    """Zeroes samples with probability p and scales the others by 1 / (1 - p), in training.

    Before it is added to its input, so that a sample passes a residual branch by. One draw of
    `dropout` for each sample and a product: the same in a re-run, a tile, a part of a batch and on
    a rank. Source: Huang et al. 2016; arguments as of torchvision's `ops.stochastic_depth`.

    Args:
        input: (N, ...), with any number of axes.
        p: probability of being zeroed, in [0, 1].
        mode: "row": each sample by itself; "batch": all together.

    Raises:
        ConfigError: p is not a probability, or no such mode.
    """
    if mode not in ("batch", "row"):
        raise ConfigError(f"stochastic_depth: mode {mode!r} is not 'batch' or 'row'")
    if not 0 <= p <= 1:
        raise ConfigError(f"stochastic_depth: probability {p} is not in [0, 1]")
    if not training or p == 0:
        return input
    tape = current_tape()
    rows = input.shape[0] if mode == "row" and input.ndim else 1
    place = {} if tape.parts is None or mode == "batch" else tape.parts.place_of((rows, 1))
    mask = call(Dropout(p, tape.next_dropout(), **place), call(Constant(1.0, (rows, 1))))
    return input * mask.reshape((rows, *(1,) * (input.ndim - 1)))


@checked
def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other along `dim` (PyTorch: `torch.cat`).

    Raises:
        ShapeError: their shapes differ along another axis, or there is no axis `dim`.
    """
    axes = tensors[0].ndim if tensors else 0
    if not -axes <= dim < axes:
        raise ShapeError(f"concat: {len(tensors)} tensors of {axes} axes have no axis {dim}")
    return call(Concat(dim % axes), *tensors)


cat = concat


@checked
def maximum(input: Tensor, other: Tensor) -> Tensor:
    """The larger of two elements; equal ones have half of the gradient each."""
    return input.maximum(other)


@checked
def minimum(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of two elements; equal ones have half of the gradient each."""
    return input.minimum(other)


@checked
def where(condition: Tensor, input: Tensor | float, other: Tensor | float) -> Tensor:
    """input where the condition is not 0, else other; shapes are repeated to fit.

    Args:
        condition: float32, such as `x.gt(0)`; a mask that is always the same is a buffer of the
            model. It has no gradient.
        input, other: tensors or numbers.
    """
    if not isinstance(input, Tensor):
        input = call(Constant(float(input), ()))
    return input.where(condition, other)


@checked
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape one after the other along a new axis `dim`.

    Raises:
        ShapeError: there is none, their shapes differ, or there is no axis `dim`.
    """
    if not tensors:
        raise ShapeError("stack: nothing to join")
    (axis,) = axes_of(dim, tensors[0].ndim + 1)
    return concat([tensor.unsqueeze(axis) for tensor in tensors], axis)


@checked
def split(
    tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Parts along an axis; see `Tensor.split`."""
    return tensor.split(split_size_or_sections, dim)


@checked
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` parts along an axis; see `Tensor.chunk`."""
    return input.chunk(chunks, dim)


@checked
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Joins the axes from `start_dim` to `end_dim`, in (N, C, H, W) order."""
    return input.flatten(start_dim, end_dim)
