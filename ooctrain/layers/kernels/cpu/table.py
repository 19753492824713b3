"""How the cpu device computes each operation: a row names the driver function and its scratch.

The table `CPU` is the whole link between the operations (`layers/`) and their computation on cores.
Whoever writes an operation adds a row here and one in `../cuda/table.py`. A function takes the
pool, the inputs, the outputs, the attributes that its row names, and the workspace where there is a
rule for it. Pure Python. Read next: `elementwise.py`, the simplest kernels; `../kernel_table.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.layers.arithmetic import Arithmetic, BytesToFloat
from ooctrain.layers.batch_norm import (
    BatchNormApply,
    BatchNormGradApply,
    BatchNormGradReduce,
    BatchNormStats,
    BatchNormUpdate,
    InverseStd,
)
from ooctrain.layers.combine import Add, AddMasked, Concat, Constant, Scale
from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.function import (
    Elementwise,
    ElementwiseGrad,
    Sigmoid,
    SigmoidGrad,
    Tanh,
    TanhGrad,
)
from ooctrain.layers.instance_norm import (
    InstanceNormApply,
    InstanceNormGradApply,
    InstanceNormGradReduce,
    InstanceNormStats,
)
from ooctrain.layers.kernels import kernel_table as takes
from ooctrain.layers.kernels.cpu import workspace
from ooctrain.layers.kernels.cpu.conv import conv_workspace
from ooctrain.layers.kernels.kernel_table import (
    Driver,
    DriverTable,
    Scratch,
    of_axes,
    of_channels,
    of_convolution,
    of_elements,
    of_reshape,
    of_zeros,
)
from ooctrain.layers.layout import ConstantPad, Pad, Reshape
from ooctrain.layers.linear import Linear, LinearGradInput, LinearGradWeight
from ooctrain.layers.losses import (
    ClassWeights,
    ErrorEach,
    ErrorEachGrad,
    LabelLikelihood,
    LabelLikelihoodGrad,
    LabelWeight,
    MeanError,
    MeanErrorGrad,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    TotalLoss,
    ValueLoss,
    ValueLossGrad,
    WeightedCrossEntropy,
    WeightedCrossEntropyGrad,
)
from ooctrain.layers.permute import Permute
from ooctrain.layers.pooling import (
    AdaptiveAvgPool2d,
    AdaptiveAvgPool2dGrad,
    AvgPool2d,
    AvgPool2dGrad,
    MaxPool2d,
    MaxPool2dGrad,
)
from ooctrain.layers.reduction import ChannelSum, Spread, Sum
from ooctrain.layers.regions import Clear, Embed, Insert, InsertAdd, Slice
from ooctrain.layers.relu import LeakyReLU, LeakyReLUGrad, ReLU, ReLUGrad
from ooctrain.layers.resampling import ReflectionPad2d, ReflectionPad2dGrad, Upsample, UpsampleGrad
from ooctrain.layers.softmax import SoftmaxAlong, SoftmaxGrad
from ooctrain.layers.update import (
    AdamUpdate,
    ClipFactor,
    ClipValue,
    RMSpropUpdate,
    ScaleBy,
    SGDUpdate,
    SumOfSquares,
)
from ooctrain.step.op import Op, Spec

Specs = Sequence[Spec]


def _conv(part: str) -> Scratch:
    return of_convolution(conv_workspace.workspace_bytes, part)


def _linear(part: str) -> Scratch:
    def rule(op: Op, ins: Specs, outs: Specs, threads: int) -> int:
        w = outs[0] if part == "grad_weight" else ins[1]
        outputs, inputs = w.shape
        return conv_workspace.linear_workspace_bytes(
            ins[0].shape[0], inputs, outputs, part, threads
        )

    return rule


def _class_loss(op: Op, ins: Specs, outs: Specs, threads: int) -> int:
    return workspace.class_loss_bytes(ins[1].size)


def _image_sums(op: Op, ins: Specs, outs: Specs, threads: int) -> int:
    """The sums of one image: they are computed one after the other."""
    _, channels, height, width = ins[0].shape
    return workspace.batch_norm_workspace_bytes(height * width, channels)


def _image_stats(op: Op, ins: Specs, outs: Specs, threads: int) -> int:
    """The variance of an image, and its sums."""
    variance = workspace.vectors_bytes(1, ins[0].shape[1])
    return variance + _image_sums(op, ins, outs, threads)


def _without_affine(count: int) -> Scratch:
    """`count` vectors in place of gamma and beta, where there are none."""

    def rule(
        op: InstanceNormApply | InstanceNormGradApply, ins: Specs, outs: Specs, threads: int
    ) -> int:
        return 0 if op.affine else workspace.vectors_bytes(count, ins[0].shape[1])

    return rule


_loss_total = of_elements(workspace.total_loss_bytes)
_axis_sum = of_axes(workspace.axis_sum_bytes)
_sum = of_elements(workspace.reduction_workspace_bytes)
_channel_sums = of_channels(workspace.channel_sum_workspace_bytes)
_norm_sums = of_channels(workspace.batch_norm_workspace_bytes)

CPU = DriverTable("cpu", {
    # Element by element.
    ReLU: Driver("elementwise.relu"),
    ReLUGrad: Driver("elementwise.relu_grad"),
    LeakyReLU: Driver("functions.leaky_relu", "slope"),
    LeakyReLUGrad: Driver("functions.leaky_relu_grad", "slope"),
    Tanh: Driver("functions.tanh"),
    TanhGrad: Driver("functions.tanh_grad"),
    Sigmoid: Driver("functions.sigmoid"),
    SigmoidGrad: Driver("functions.sigmoid_grad"),
    Add: Driver("elementwise.add", "relu"),
    AddMasked: Driver("elementwise.add_masked"),
    Scale: Driver("elementwise.scale", "factor"),
    Constant: Driver("elementwise.fill", "value"),
    Dropout: Driver("dropout.dropout", takes.dropout),
    BytesToFloat: Driver("from_bytes.from_bytes", "mean std"),
    Elementwise: Driver("functions.function", takes.and_operation),
    ElementwiseGrad: Driver("functions.function_grad", takes.and_operation),
    Arithmetic: Driver("strided.arithmetic", takes.whole_call),
    # Along axes.
    Sum: Driver("reduction.sum_axes", takes.whole_call, _axis_sum),
    Spread: Driver("strided.spread", takes.whole_call),
    Permute: Driver("strided.permute", takes.whole_call),
    SoftmaxAlong: Driver("reduction.softmax", takes.whole_call),
    SoftmaxGrad: Driver("reduction.softmax_grad", takes.whole_call),
    # Products.
    Linear: Driver("matmul.forward", takes.with_bias, _linear("forward")),
    LinearGradInput: Driver("matmul.grad_input", scratch=_linear("grad_input")),
    LinearGradWeight: Driver("matmul.grad_weight", scratch=_linear("grad_weight")),
    Conv2d: Driver("conv.conv2d.forward", takes.convolution_with_bias, _conv("forward")),
    Conv2dGradInput: Driver("conv.conv2d.grad_input", takes.convolution, _conv("grad_input")),
    Conv2dGradWeight: Driver(
        "conv.conv2d.grad_weight", takes.convolution, _conv("grad_weight")
    ),
    ConvTranspose2d: Driver(
        "conv.conv2d.transposed", takes.convolution_with_bias, _conv("grad_input")
    ),
    ChannelSum: Driver("elementwise.channel_sum", scratch=_channel_sums),
    # Norms.
    BatchNormStats: Driver("batch_norm.stats", "eps", _norm_sums),
    BatchNormApply: Driver("batch_norm.apply", takes.batch_norm_apply),
    BatchNormGradReduce: Driver("batch_norm.grad_reduce", takes.norm_grad_reduce, _norm_sums),
    BatchNormGradApply: Driver("batch_norm.grad_apply", takes.batch_norm_grad_apply, of_zeros),
    BatchNormUpdate: Driver("batch_norm.update", takes.whole_call),
    InverseStd: Driver("batch_norm.inv_std_of", "eps"),
    InstanceNormStats: Driver("instance_norm.stats", "eps", _image_stats),
    InstanceNormApply: Driver(
        "instance_norm.apply", takes.instance_norm_apply, _without_affine(2)
    ),
    InstanceNormGradReduce: Driver(
        "instance_norm.grad_reduce", takes.norm_grad_reduce, _image_sums
    ),
    InstanceNormGradApply: Driver(
        "instance_norm.grad_apply", takes.instance_norm_grad_apply, _without_affine(1)
    ),
    # Images.
    MaxPool2d: Driver("pooling.max_pool", "geometry"),
    MaxPool2dGrad: Driver("pooling.max_pool_grad", "geometry"),
    AvgPool2d: Driver("pooling.avg_pool", "geometry count_include_pad"),
    AvgPool2dGrad: Driver("pooling.avg_pool_grad", "geometry count_include_pad"),
    AdaptiveAvgPool2d: Driver("pooling.adaptive_avg_pool"),
    AdaptiveAvgPool2dGrad: Driver("pooling.adaptive_avg_pool_grad"),
    Upsample: Driver("resampling.upsample", "mode corners place"),
    UpsampleGrad: Driver("resampling.upsample_grad", "mode corners place"),
    ReflectionPad2d: Driver("resampling.reflect", "padding"),
    ReflectionPad2dGrad: Driver("resampling.reflect_grad", "padding"),
    Pad: Driver("layout.pad_nhwc", "padding"),
    ConstantPad: Driver("layout.pad_nhwc", "padding value"),
    # Blocks, and other shapes.
    Slice: Driver("layout.slice_of", "start"),
    Embed: Driver("layout.embed", "start"),
    Insert: Driver("layout.insert", "start"),
    InsertAdd: Driver("layout.insert_add", "start"),
    Clear: Driver("layout.clear", "start shape"),
    Concat: Driver("layout.concat", takes.whole_call),
    Reshape: Driver("layout.reshape", takes.whole_call, of_reshape),
    # Losses.
    SoftmaxCrossEntropy: Driver("losses.cross_entropy", takes.whole_call, _class_loss),
    SoftmaxCrossEntropyGrad: Driver("losses.cross_entropy_grad", takes.whole_call),
    LabelWeight: Driver("losses.label_weight", takes.whole_call),
    TotalLoss: Driver("carried_sums.total_loss", takes.whole_call, _loss_total),
    ClassWeights: Driver("losses.write", "values"),
    WeightedCrossEntropy: Driver(
        "losses.weighted_cross_entropy", takes.whole_call, _class_loss
    ),
    WeightedCrossEntropyGrad: Driver(
        "losses.weighted_cross_entropy_grad", takes.whole_call
    ),
    MeanError: Driver("losses.mean_error", takes.mean_error, _sum),
    MeanErrorGrad: Driver("losses.mean_error_grad", takes.mean_error),
    ErrorEach: Driver("losses.error_each", "absolute"),
    ErrorEachGrad: Driver("losses.error_each_grad", "absolute"),
    ValueLoss: Driver("functions.value_loss", takes.and_operation),
    ValueLossGrad: Driver("functions.value_loss_grad", takes.and_operation),
    LabelLikelihood: Driver("losses.likelihood", "ignore_index"),
    LabelLikelihoodGrad: Driver("losses.likelihood_grad", "ignore_index"),
    # Updates.
    SGDUpdate: Driver("update.sgd", takes.sgd),
    AdamUpdate: Driver("update.adam", takes.adam),
    RMSpropUpdate: Driver("update.rmsprop", takes.rmsprop),
    SumOfSquares: Driver("update.sum_of_squares", scratch=_sum),
    ClipFactor: Driver("update.clip_factor", takes.whole_call),
    ScaleBy: Driver("elementwise.scale_by"),
    ClipValue: Driver("update.clip_value", "limit"),
})  # fmt: skip
