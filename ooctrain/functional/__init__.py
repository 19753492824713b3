"""Functions of layers, with the names, argument orders and defaults of `torch.nn.functional`.

In: tensors. Out: tensors. The one idea: a function turns its arguments into one operation (or a
few, for batch norm) and records it on the tape in force; there is no computing here. Read next:
`conv.py`, `../nn/`, and `../layers/` for the operations.
"""

from ooctrain.functional.arguments import IntOrPair
from ooctrain.functional.conv import conv2d, conv_transpose2d, linear
from ooctrain.functional.elementwise import (
    cat,
    concat,
    dropout,
    flatten,
    leaky_relu,
    relu,
    sigmoid,
    tanh,
)
from ooctrain.functional.images import (
    adaptive_avg_pool2d,
    avg_pool2d,
    interpolate,
    max_pool2d,
    pad,
)
from ooctrain.functional.losses import cross_entropy, l1_loss, mse_loss
from ooctrain.functional.norm import batch_norm, instance_norm

__all__ = [
    "IntOrPair", "adaptive_avg_pool2d", "avg_pool2d", "batch_norm", "cat", "concat", "conv2d",
    "conv_transpose2d", "cross_entropy", "dropout", "flatten", "instance_norm", "interpolate",
    "l1_loss", "leaky_relu", "linear", "max_pool2d", "mse_loss", "pad", "relu", "sigmoid", "tanh",
]  # fmt: skip
