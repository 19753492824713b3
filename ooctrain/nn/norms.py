"""Normalisations by each image itself: of each channel, of groups of channels, of the last axes.

These modules take numbers of channels or extents. They have no running statistics, so training and
evaluation are the same. Read next: `../functional/norm.py`; `weights.py` for batch norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooctrain import functional as F
from ooctrain.engine.module import Module
from ooctrain.engine.parameter import Parameter
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ShapeError
from ooctrain.nn.init import require_sizes
from ooctrain.step.arguments import checked


@checked
class InstanceNorm2d(Module):
    """Normalisation of each channel of each image (N, C, H, W) over H, W.

    Training and evaluation are the same. Source: Ulyanov, Vedaldi and Lempitsky 2016.

    Args:
        num_features: C.
        eps: added to the variance.
        affine: with a weight and a bias for each channel; not by default, as in PyTorch.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, *, affine: bool = False):
        super().__init__()
        require_sizes(self, num_features=num_features)
        self.num_features, self.eps = num_features, eps
        self.register_parameter("weight", Parameter(np.ones(num_features)) if affine else None)
        self.register_parameter("bias", Parameter(np.zeros(num_features)) if affine else None)

    def forward(self, input: Tensor) -> Tensor:
        return F.instance_norm(input, None, None, self.weight, self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}"


@checked
class GroupNorm(Module):
    """Normalisation of each group of channels of each image. Source: Wu and He 2018.

    Args:
        num_groups: parts of the channels, of equal size.
        num_channels: C.
        eps: added to the variance.
        affine: with a weight and a bias for each channel.

    Raises:
        ShapeError: `num_groups` does not divide the channels.
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True):
        super().__init__()
        require_sizes(self, num_channels=num_channels)
        if num_groups < 1 or num_channels % num_groups:
            raise ShapeError(f"{num_channels} channels cannot be split into {num_groups} groups")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.affine = affine
        self.register_parameter("weight", Parameter(np.ones(num_channels)) if affine else None)
        self.register_parameter("bias", Parameter(np.zeros(num_channels)) if affine else None)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


@checked
class LayerNorm(Module):
    """Normalisation over the last axes. Source: Ba, Kiros and Hinton 2016.

    Args:
        normalized_shape: extents of these axes, or that of the last one.
        eps: added to the variance.
        elementwise_affine: with a weight and a bias of that shape.
        bias: with the bias.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5,
        elementwise_affine: bool = True, bias: bool = True,
    ):  # fmt: skip
        super().__init__()
        if isinstance(normalized_shape, int):
            normalized_shape = (normalized_shape,)
        shape = tuple(normalized_shape)
        require_sizes(self, **{f"axis {k} of normalized_shape": n for k, n in enumerate(shape)})
        self.normalized_shape, self.eps = shape, eps
        self.elementwise_affine = elementwise_affine
        with_bias = elementwise_affine and bias
        self.register_parameter("weight", Parameter(np.ones(shape)) if elementwise_affine else None)
        self.register_parameter("bias", Parameter(np.zeros(shape)) if with_bias else None)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"
