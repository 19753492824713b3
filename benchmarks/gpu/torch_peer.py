"""The same operations by torch and cuDNN, timed in the same process and in the same way.

Torch gets its best: channels-last tensors, as ours lie, cuDNN's own search for its best kernel, and
its fused optimizers. The time is in microseconds by the GPU's clock, or None where torch has no
such operation. Read next: `kernel_speed.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

from benchmarks.gpu.workbench import MOST_REPEATS, ROUND_US, ROUNDS
from ooctrain.layers.batch_norm import BatchNormApply, BatchNormStats
from ooctrain.layers.combine import Add
from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight
from ooctrain.layers.linear import Linear
from ooctrain.layers.pooling import MaxPool2d
from ooctrain.layers.relu import ReLU
from ooctrain.layers.update import AdamUpdate, SGDUpdate
from ooctrain.step.op import Op, Spec

Call = Callable[[], Any]
EPS, LR = 1e-5, 0.01


def is_here() -> bool:
    """Whether torch is installed, for GPUs."""
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def time_us(op: Op, specs: Sequence[Spec], *, tf32: bool) -> float | None:
    """Microseconds of torch's own; None: it has no such operation.

    Args:
        tf32: whether cuDNN may round the factors of products to TF32.
    """
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    if type(op) not in CALLS:
        return None
    tensors = []
    for spec in specs:
        tensor = torch.randn(spec.shape, device="cuda")
        last = tensor.ndim == 4
        tensors.append(tensor.contiguous(memory_format=torch.channels_last) if last else tensor)
    return _median_us(torch, CALLS[type(op)](torch, op, tensors))


def time_copy_us(shape: Sequence[int]) -> float:
    """Microseconds of a copy within the GPU's memory."""
    import torch

    source = torch.randn(tuple(shape), device="cuda")
    copy = torch.empty_like(source)
    return _median_us(torch, lambda: copy.copy_(source))


def _median_us(torch: Any, call: Call) -> float:
    for _ in range(3):  # cuDNN's search is in the first
        call()
    once_us = _round_us(torch, call, 2)
    repeats = int(min(MOST_REPEATS, max(1.0, ROUND_US / max(once_us, 1.0))))
    return median(_round_us(torch, call, repeats) for _ in range(ROUNDS))


def _round_us(torch: Any, call: Call, repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / repeats


def _conv(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    x, w = tensors
    geometry = op.geometry
    padding = geometry.padding[::2]
    return lambda: torch.nn.functional.conv2d(x, w, None, geometry.stride, padding)


def _grad_input(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    dy, w = tensors
    shape = (dy.shape[0], w.shape[1], *op.size)
    x = torch.empty(shape, device="cuda", memory_format=torch.channels_last)
    return _backward(torch, op, dy, x, w, [True, False, False])


def _grad_weight(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    x, dy = tensors
    w = torch.empty((dy.shape[1], x.shape[1], *op.kernel), device="cuda")
    w = w.contiguous(memory_format=torch.channels_last)
    return _backward(torch, op, dy, x, w, [False, True, False])


def _backward(torch: Any, op: Any, dy: Any, x: Any, w: Any, wanted: list[bool]) -> Call:
    geometry = op.geometry
    padding = list(geometry.padding[::2])
    return lambda: torch.ops.aten.convolution_backward(
        dy, x, w, None, list(geometry.stride), padding, [1, 1], False, [0, 0], 1, wanted
    )


def _relu(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    out = torch.empty_like(tensors[0])
    return lambda: torch.clamp_min(tensors[0], 0, out=out)


def _add(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    out = torch.empty_like(tensors[0])
    return lambda: torch.add(*tensors, out=out)


def _max_pool(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    return lambda: torch.nn.functional.max_pool2d(tensors[0], 2, return_indices=True)


def _linear(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    return lambda: torch.nn.functional.linear(*tensors)


def _batch_norm_stats(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    return lambda: torch.var_mean(tensors[0], (0, 2, 3), correction=0)


def _batch_norm_apply(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    """With the ReLU behind it, which torch does not fuse; our 1 / std stands for a variance."""
    x, mean, var, gamma, beta = tensors

    def call() -> Any:
        y = torch.nn.functional.batch_norm(x, mean, var, gamma, beta, eps=EPS)
        return torch.relu_(y) if op.relu else y

    return call


def _sgd(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    w, g, m = tensors
    return lambda: torch._fused_sgd_(
        [w], [g], [m], lr=LR, momentum=op.momentum, dampening=op.dampening,
        weight_decay=op.weight_decay, nesterov=op.nesterov, maximize=False, is_first_step=False,
    )  # fmt: skip


def _adam(torch: Any, op: Any, tensors: Sequence[Any]) -> Call:
    w, g, m, v = tensors
    v.abs_()
    step = torch.ones((), device=w.device)
    return lambda: torch._fused_adam_(
        [w], [g], [m], [v], [], [step], lr=LR, beta1=op.beta1, beta2=op.beta2,
        weight_decay=op.weight_decay, eps=op.eps, amsgrad=False, maximize=False,
    )  # fmt: skip


CALLS: dict[type[Op], Callable[[Any, Any, Sequence[Any]], Call]] = {
    Conv2d: _conv, Conv2dGradInput: _grad_input, Conv2dGradWeight: _grad_weight,
    ReLU: _relu, Add: _add, MaxPool2d: _max_pool, Linear: _linear,
    BatchNormStats: _batch_norm_stats, BatchNormApply: _batch_norm_apply,
    SGDUpdate: _sgd, AdamUpdate: _adam,
}  # fmt: skip
