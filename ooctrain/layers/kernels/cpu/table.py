"""How the cpu device computes each operation: a row names the driver function and its scratch.

The table `CPU` is the whole link between the operations (`layers/`) and their computation on cores.
Whoever writes an operation adds a row here and one in `../cuda/table.py`. A function takes the
pool, the inputs, the outputs, the attributes that its row names, and the workspace where there is a
rule for it. It only starts kernels, which are repeated without it in the steps that follow
(`devices/cpu/launches.py`); one that looks at values, or computes some itself, calls
`pool.every_time()`. Pure Python. Read next: `elementwise.py`, the simplest kernels;
`../kernel_table.py`.
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
from ooctrain.layers.extremes import MaxAlong, MaxAlongGrad
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
    KernelRow,
    KernelTable,
    Scratch,
    of_axes,
    of_channels,
    of_convolution,
    of_elements,
    of_reshape,
    of_zeros,
)
from ooctrain.layers.layout import ConstantPad, Pad, Reshape
from ooctrain.layers.linear import Linear, LinearGradInput, LinearGradWeight, MatMul
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
from ooctrain.layers.regions import (
    Clear,
    Embed,
    Insert,
    InsertAdd,
    Slice,
    StridedEmbed,
    StridedSlice,
)
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


def _matmul(op: MatMul, ins: Specs, outs: Specs, threads: int) -> int:
    """That of one pair of matrices: they are multiplied one after the other."""
    rows, inner, columns = op.extents(ins[0].shape, ins[1].shape)
    sizes, part = {
        "nt": ((rows, inner, columns), "forward"), "nn": ((rows, columns, inner), "grad_input"),
        "tn": ((inner, columns, rows), "grad_weight"),
    }[op.form]  # fmt: skip
    return conv_workspace.linear_workspace_bytes(*sizes, part, threads)


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

CPU = KernelTable("cpu", {
    # Element by element.
    ReLU: KernelRow("elementwise.relu"),
    ReLUGrad: KernelRow("elementwise.relu_grad"),
    LeakyReLU: KernelRow("functions.leaky_relu", "slope"),
    LeakyReLUGrad: KernelRow("functions.leaky_relu_grad", "slope"),
    Tanh: KernelRow("functions.tanh"),
    TanhGrad: KernelRow("functions.tanh_grad"),
    Sigmoid: KernelRow("functions.sigmoid"),
    SigmoidGrad: KernelRow("functions.sigmoid_grad"),
    Add: KernelRow("elementwise.add", "relu"),
    AddMasked: KernelRow("elementwise.add_masked"),
    Scale: KernelRow("elementwise.scale", "factor"),
    Constant: KernelRow("elementwise.fill", "value"),
    Dropout: KernelRow("dropout.dropout", takes.dropout),
    BytesToFloat: KernelRow("from_bytes.from_bytes", "mean std"),
    Elementwise: KernelRow("functions.function", takes.and_operation),
    ElementwiseGrad: KernelRow("functions.function_grad", takes.and_operation),
    Arithmetic: KernelRow("strided.arithmetic", takes.whole_call),
    # Along axes.
    Sum: KernelRow("reduction.sum_axes", takes.whole_call, _axis_sum),
    Spread: KernelRow("strided.spread", takes.whole_call),
    Permute: KernelRow("strided.permute", takes.whole_call),
    SoftmaxAlong: KernelRow("reduction.softmax", takes.whole_call),
    SoftmaxGrad: KernelRow("reduction.softmax_grad", takes.whole_call),
    MaxAlong: KernelRow("reduction.largest", takes.whole_call),
    MaxAlongGrad: KernelRow("reduction.largest_grad", takes.whole_call),
    # Products.
    Linear: KernelRow("matmul.forward", takes.with_bias, _linear("forward")),
    LinearGradInput: KernelRow("matmul.grad_input", scratch=_linear("grad_input")),
    LinearGradWeight: KernelRow("matmul.grad_weight", scratch=_linear("grad_weight")),
    MatMul: KernelRow("matmul.matmul", takes.whole_call, _matmul),
    Conv2d: KernelRow("conv.conv2d.forward", takes.convolution_with_bias, _conv("forward")),
    Conv2dGradInput: KernelRow("conv.conv2d.grad_input", takes.convolution, _conv("grad_input")),
    Conv2dGradWeight: KernelRow(
        "conv.conv2d.grad_weight", takes.convolution, _conv("grad_weight")
    ),
    ConvTranspose2d: KernelRow(
        "conv.conv2d.transposed", takes.convolution_with_bias, _conv("grad_input")
    ),
    ChannelSum: KernelRow("elementwise.channel_sum", scratch=_channel_sums),
    # Norms.
    BatchNormStats: KernelRow("batch_norm.stats", "eps", _norm_sums),
    BatchNormApply: KernelRow("batch_norm.apply", takes.batch_norm_apply),
    BatchNormGradReduce: KernelRow("batch_norm.grad_reduce", takes.norm_grad_reduce, _norm_sums),
    BatchNormGradApply: KernelRow("batch_norm.grad_apply", takes.batch_norm_grad_apply, of_zeros),
    BatchNormUpdate: KernelRow("batch_norm.update", takes.whole_call),
    InverseStd: KernelRow("batch_norm.inv_std_of", "eps"),
    InstanceNormStats: KernelRow("instance_norm.stats", "eps", _image_stats),
    InstanceNormApply: KernelRow(
        "instance_norm.apply", takes.instance_norm_apply, _without_affine(2)
    ),
    InstanceNormGradReduce: KernelRow(
        "instance_norm.grad_reduce", takes.norm_grad_reduce, _image_sums
    ),
    InstanceNormGradApply: KernelRow(
        "instance_norm.grad_apply", takes.instance_norm_grad_apply, _without_affine(1)
    ),
    # Images.
    MaxPool2d: KernelRow("pooling.max_pool", "geometry"),
    MaxPool2dGrad: KernelRow("pooling.max_pool_grad", "geometry"),
    AvgPool2d: KernelRow("pooling.avg_pool", "geometry count_include_pad"),
    AvgPool2dGrad: KernelRow("pooling.avg_pool_grad", "geometry count_include_pad"),
    AdaptiveAvgPool2d: KernelRow("pooling.adaptive_avg_pool"),
    AdaptiveAvgPool2dGrad: KernelRow("pooling.adaptive_avg_pool_grad"),
    Upsample: KernelRow("resampling.upsample", "mode corners place"),
    UpsampleGrad: KernelRow("resampling.upsample_grad", "mode corners place"),
    ReflectionPad2d: KernelRow("resampling.reflect", "padding"),
    ReflectionPad2dGrad: KernelRow("resampling.reflect_grad", "padding"),
    Pad: KernelRow("layout.pad_nhwc", "padding"),
    ConstantPad: KernelRow("layout.pad_nhwc", "padding value"),
    # Blocks, and other shapes.
    Slice: KernelRow("layout.slice_of", "start"),
    Embed: KernelRow("layout.embed", "start"),
    Insert: KernelRow("layout.insert", "start"),
    InsertAdd: KernelRow("layout.insert_add", "start"),
    Clear: KernelRow("layout.clear", "start shape"),
    StridedSlice: KernelRow("strided.strided_slice", takes.whole_call),
    StridedEmbed: KernelRow("strided.strided_embed", takes.whole_call),
    Concat: KernelRow("layout.concat", takes.whole_call),
    Reshape: KernelRow("layout.reshape", takes.whole_call, of_reshape),
    # Losses.
    SoftmaxCrossEntropy: KernelRow("losses.cross_entropy", takes.whole_call, _class_loss),
    SoftmaxCrossEntropyGrad: KernelRow("losses.cross_entropy_grad", takes.whole_call),
    LabelWeight: KernelRow("losses.label_weight", takes.whole_call),
    TotalLoss: KernelRow("carried_sums.total_loss", takes.whole_call, _loss_total),
    ClassWeights: KernelRow("losses.write", "values"),
    WeightedCrossEntropy: KernelRow(
        "losses.weighted_cross_entropy", takes.whole_call, _class_loss
    ),
    WeightedCrossEntropyGrad: KernelRow(
        "losses.weighted_cross_entropy_grad", takes.whole_call
    ),
    MeanError: KernelRow("losses.mean_error", takes.mean_error, _sum),
    MeanErrorGrad: KernelRow("losses.mean_error_grad", takes.mean_error),
    ErrorEach: KernelRow("losses.error_each", "absolute"),
    ErrorEachGrad: KernelRow("losses.error_each_grad", "absolute"),
    ValueLoss: KernelRow("functions.value_loss", takes.and_operation),
    ValueLossGrad: KernelRow("functions.value_loss_grad", takes.and_operation),
    LabelLikelihood: KernelRow("losses.likelihood", "ignore_index"),
    LabelLikelihoodGrad: KernelRow("losses.likelihood_grad", "ignore_index"),
    # Updates.
    SGDUpdate: KernelRow("update.sgd", takes.sgd),
    AdamUpdate: KernelRow("update.adam", takes.adam),
    RMSpropUpdate: KernelRow("update.rmsprop", takes.rmsprop),
    SumOfSquares: KernelRow("update.sum_of_squares", scratch=_sum),
    ClipFactor: KernelRow("update.clip_factor", takes.whole_call),
    ScaleBy: KernelRow("elementwise.scale_by"),
    ClipValue: KernelRow("update.clip_value", "limit"),
})  # fmt: skip
