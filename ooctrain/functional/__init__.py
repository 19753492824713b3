"""Functions of layers, with the names, argument orders and defaults of `torch.nn.functional`.

A function turns its arguments into one operation (or a few, for norms) and records it on the tape
in force; it computes nothing itself. A name of PyTorch's that is missing gives an error that says
what to do instead (`engine/torch_names.py`). Read next: `conv.py`, `../nn/`, and `../layers/` for
the operations.
"""

from typing import NoReturn

from ooctrain.functional.activations import (
    gelu,
    hardsigmoid,
    hardswish,
    log_softmax,
    prelu,
    relu6,
    silu,
    softmax,
)
from ooctrain.functional.conv import IntOrPair, conv2d, conv_transpose2d, linear
from ooctrain.functional.images import (
    adaptive_avg_pool2d,
    avg_pool2d,
    from_bytes,
    interpolate,
    max_pool2d,
    pad,
    pixel_shuffle,
)
from ooctrain.functional.loss_functions import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from ooctrain.functional.norm import batch_norm, group_norm, instance_norm, layer_norm
from ooctrain.functional.pointwise import (
    cat,
    concat,
    dropout,
    dropout2d,
    flatten,
    leaky_relu,
    relu,
    sigmoid,
    stochastic_depth,
    tanh,
)

__all__ = [
    "IntOrPair", "adaptive_avg_pool2d", "avg_pool2d", "batch_norm",
    "binary_cross_entropy_with_logits", "cat", "concat", "conv2d", "conv_transpose2d",
    "cross_entropy", "dropout", "dropout2d", "flatten", "from_bytes", "gelu", "group_norm",
    "hardsigmoid", "hardswish", "instance_norm", "interpolate", "l1_loss", "layer_norm",
    "leaky_relu", "linear", "log_softmax", "max_pool2d", "mse_loss", "nll_loss", "pad",
    "pixel_shuffle", "prelu", "relu", "relu6", "sigmoid", "silu", "smooth_l1_loss", "softmax",
    "stochastic_depth", "tanh",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    # Not at the top: a table of words, read when a name is missing.
    from ooctrain.engine.torch_names import refusal

    raise refusal(__name__, name, "functional", __all__)
