"""Functions of layers, with the names, argument orders and defaults of `torch.nn.functional`.

A function turns its arguments into one operation (or a few, for norms) and records it on the tape
in force; it computes nothing itself. A name of PyTorch's that is missing gives an error that says
what to do instead (`engine/torch_names.py`). Read next: `conv.py`, `../nn/`, and `../layers/` for
the operations.
"""

from typing import NoReturn

from ooctrain.functional.activations import (
    celu,
    elu,
    gelu,
    glu,
    hardsigmoid,
    hardswish,
    hardtanh,
    log_softmax,
    logsigmoid,
    mish,
    prelu,
    relu6,
    selu,
    silu,
    softmax,
    softmin,
    softplus,
    softsign,
    tanhshrink,
)
from ooctrain.functional.conv import (
    IntOrPair,
    bmm,
    conv2d,
    conv_transpose2d,
    linear,
    matmul,
    scaled_dot_product_attention,
)
from ooctrain.functional.images import (
    adaptive_avg_pool2d,
    adaptive_max_pool2d,
    avg_pool2d,
    channel_shuffle,
    from_bytes,
    interpolate,
    max_pool2d,
    pad,
    pixel_shuffle,
    pixel_unshuffle,
)
from ooctrain.functional.loss_functions import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from ooctrain.functional.norm import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    normalize,
)
from ooctrain.functional.pointwise import (
    cat,
    chunk,
    concat,
    dropout,
    dropout2d,
    flatten,
    leaky_relu,
    maximum,
    minimum,
    relu,
    sigmoid,
    split,
    stack,
    stochastic_depth,
    tanh,
    where,
)

__all__ = [
    "IntOrPair", "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "batch_norm",
    "binary_cross_entropy_with_logits", "bmm", "cat", "celu", "channel_shuffle", "chunk", "concat",
    "conv2d", "conv_transpose2d", "cross_entropy", "dropout", "dropout2d", "elu", "flatten",
    "from_bytes", "gelu", "glu", "group_norm", "hardsigmoid", "hardswish", "hardtanh",
    "instance_norm", "interpolate", "l1_loss", "layer_norm", "leaky_relu", "linear",
    "local_response_norm", "log_softmax", "logsigmoid", "matmul", "max_pool2d", "maximum",
    "minimum", "mish", "mse_loss", "nll_loss", "normalize", "pad", "pixel_shuffle",
    "pixel_unshuffle", "prelu", "relu", "relu6", "scaled_dot_product_attention", "selu", "sigmoid",
    "silu", "smooth_l1_loss", "softmax", "softmin", "softplus", "softsign", "split", "stack",
    "stochastic_depth", "tanh", "tanhshrink", "where",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    # Not at the top: a table of words, read when a name is missing.
    from ooctrain.engine.torch_names import refusal

    raise refusal(__name__, name, "functional", __all__)
