"""Functions and modules of PyTorch that this library lacks, and what to do instead.

A missing name of `functional` or `nn` is a question, "how do I do that here?", so the error answers
it. The table is printed in docs/torch.md. Read next: `__init__.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

_RECURRENT = "networks over sequences are outside this library of convolutional networks"
_THREE_D = "only 2-d convolutions and poolings have kernels"
_ATTENTION = "build it of Linear, softmax and permute, or write an oc.Op for the product"

#: {name in `torch.nn.functional`: what to do instead}
FUNCTIONS: Mapping[str, str] = {
    "adaptive_max_pool2d": "use adaptive_avg_pool2d, or max_pool2d with a fixed window",
    "alpha_dropout": "use dropout",
    "avg_pool1d": _THREE_D, "avg_pool3d": _THREE_D, "conv1d": _THREE_D, "conv3d": _THREE_D,
    "max_pool1d": _THREE_D, "max_pool3d": _THREE_D, "dropout1d": "use dropout",
    "dropout3d": "use dropout",
    "batch_norm1d": "batch_norm takes (N, C) and (N, C, L) too",
    "binary_cross_entropy": "use binary_cross_entropy_with_logits, without the sigmoid before it",
    "bilinear": _ATTENTION,
    "celu": "write an oc.Op", "elu": "write an oc.Op", "selu": "write an oc.Op",
    "mish": "write an oc.Op", "glu": "slice the channels: x[:, :c] * sigmoid(x[:, c:])",
    "hardtanh": "use tensor.clamp(-1, 1)", "logsigmoid": "write an oc.Op",
    "softplus": "write an oc.Op", "softmin": "use softmax(-x, dim)",
    "tanhshrink": "write x - tanh(x)", "threshold": "use tensor.clamp(min=...)",
    "ctc_loss": _RECURRENT, "embedding": _RECURRENT, "embedding_bag": _RECURRENT,
    "gaussian_nll_loss": "write an oc.Op",
    "hinge_embedding_loss": "write it with tensors' arithmetic",
    "huber_loss": "use smooth_l1_loss(beta=delta) * delta",
    "kl_div": "write it with log_softmax and tensors' arithmetic",
    "one_hot": "losses take class numbers; make one-hot rows in NumPy, as part of the batch",
    "pixel_unshuffle": "reshape and permute, as functional.pixel_shuffle does",
    "grid_sample": "write an oc.Op", "local_response_norm": "use batch_norm",
    "normalize": "write an oc.Op", "unfold": "use conv2d", "fold": "use "
    "conv_transpose2d",
    "scaled_dot_product_attention": _ATTENTION, "multi_head_attention_forward": _ATTENTION,
}  # fmt: skip

#: {name in `torch.nn`: what to do instead}
MODULES: Mapping[str, str] = {
    "AdaptiveMaxPool2d": "use AdaptiveAvgPool2d, or MaxPool2d with a fixed window",
    "AvgPool1d": _THREE_D, "AvgPool3d": _THREE_D, "BatchNorm3d": _THREE_D, "Conv1d": _THREE_D,
    "Conv3d": _THREE_D, "ConvTranspose1d": _THREE_D, "ConvTranspose3d": _THREE_D,
    "MaxPool1d": _THREE_D, "MaxPool3d": _THREE_D, "InstanceNorm1d": "use GroupNorm with as many "
    "groups as channels", "InstanceNorm3d": _THREE_D,
    "BCELoss": "use BCEWithLogitsLoss, without the Sigmoid before it",
    "Bilinear": _ATTENTION, "MultiheadAttention": _ATTENTION, "Transformer": _ATTENTION,
    "TransformerEncoderLayer": _ATTENTION,
    "CTCLoss": _RECURRENT, "Embedding": _RECURRENT, "GRU": _RECURRENT, "LSTM": _RECURRENT,
    "RNN": _RECURRENT,
    "CELU": "write an oc.Op", "ELU": "write an oc.Op", "SELU": "write an oc.Op",
    "Mish": "write an oc.Op", "Softplus": "write an oc.Op", "LogSigmoid": "write an oc.Op",
    "GLU": "slice the channels: x[:, :c] * sigmoid(x[:, c:])",
    "Hardtanh": "use tensor.clamp(-1, 1) in forward",
    "DataParallel": "this library trains on one device",
    "HuberLoss": "use SmoothL1Loss(beta=delta), times delta",
    "KLDivLoss": "write it with log_softmax and tensors' arithmetic",
    "LazyConv2d": "give the number of channels", "LazyLinear": "give the number of features",
    "LocalResponseNorm": "use BatchNorm2d",
    "ParameterDict": "assign parameters to attributes",
    "ParameterList": "assign parameters to attributes, or register_parameter(name, parameter)",
    "PixelUnshuffle": "reshape and permute, as functional.pixel_shuffle does",
    "ReplicationPad2d": "use ReflectionPad2d or ZeroPad2d",
    "Softmax2d": "use Softmax(dim=1)", "SyncBatchNorm": "this library trains on one device",
    "Unflatten": "use tensor.reshape in forward",
    "UpsamplingBilinear2d": "use Upsample(mode='bilinear', align_corners=True)",
    "UpsamplingNearest2d": "use Upsample",
}  # fmt: skip


def refusal(module: str, name: str, table: Mapping[str, str]) -> AttributeError:
    """The error for a name that a module lacks."""
    instead = f": {table[name]}" if name in table else ""
    where = " (docs/torch.md says what there is)" if name in table else ""
    return AttributeError(f"{module} has no {name!r}{instead}{where}")
