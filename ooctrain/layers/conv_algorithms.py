"""Which algorithm a convolution uses, on either device.

A `ConvShape` and the user's request give the name of an algorithm. The choice depends on the shape
alone, never on a machine's load or its instruction set, and is recorded with the call. So a trace
says what will run, and every machine gives the same bits. The name also tells the device: the
algorithms of the GPU and of the cpu device have different names. The plans of the kernels say how
an algorithm divides its work and how much scratch it needs. Read next: `conv2d.py`, then
`kernels/cpu/conv/conv_plan.py` and `kernels/cuda/conv/conv_plan.py`.
"""

from __future__ import annotations

from typing import Literal

from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.conv_shape import ConvShape

CpuAlgorithm = Literal["direct", "winograd2", "winograd4", "im2col", "depthwise"]
CudaAlgorithm = Literal["implicit_gemm", "tf32", "tiled", "naive"]
#: What can be asked for on the cpu device besides "auto"; "depthwise" is chosen where every
#: channel has its own filter.
CPU_ALGORITHMS: tuple[CpuAlgorithm, ...] = ("direct", "winograd2", "winograd4", "im2col")
#: What can be asked for on a GPU; the first is the usual one.
CUDA_ALGORITHMS: tuple[CudaAlgorithm, ...] = ("implicit_gemm", "tf32", "tiled", "naive")

# Measured: what the transforms cost relative to the products, and below what sizes they never pay.
WINOGRAD_OVERHEAD = 1.3
MIN_TILES = 12
MIN_CHANNELS = 32
#: Winograd's kernels take channels and filters in whole vectors, the widest of the machine.
CHANNEL_UNIT = 16
#: GPU kernels count pixels and weights of one call in 31 bits; addresses have 64.
MOST_COUNTED = 2**31 - 1
#: With fewer channels in a group than this a product of matrices is mostly padding, on a GPU.
FEW_CHANNELS = 8


def choose_algorithm(shape: ConvShape, requested: str = "auto") -> CpuAlgorithm | CudaAlgorithm:
    """The algorithm for a shape: as requested where it can be.

    Args:
        shape: the convolution.
        requested: one of `CPU_ALGORITHMS`, or "auto" for the cheapest of them; or one of
            `CUDA_ALGORITHMS`.

    Raises:
        ConfigError: an unknown name.
        ShapeError: more pixels or weights than kernels can count.
    """
    for algorithm in CUDA_ALGORITHMS:
        if requested == algorithm:
            return _on_cuda(shape, algorithm)
    return _on_cpu(shape, requested)


def _on_cuda(shape: ConvShape, requested: CudaAlgorithm) -> CudaAlgorithm:
    """As requested; groups of few channels are left to "naive", one thread for each result."""
    _require_countable(shape)
    if shape.groups > 1 and min(shape.cg, shape.kg) < FEW_CHANNELS:
        return "naive"
    return requested


def _on_cpu(shape: ConvShape, requested: str) -> CpuAlgorithm:
    """As requested; a request that does not apply to the shape falls back to "direct"."""
    if requested not in (*CPU_ALGORITHMS, "auto"):
        raise ConfigError(
            f"unknown convolution algorithm {requested!r}",
            fix=f"one of auto, {', '.join(CPU_ALGORITHMS)}",
        )
    if requested == "im2col":
        return "im2col"
    if requested == "auto" and 1 < shape.groups == shape.c == shape.k:
        return "depthwise"
    if requested == "direct" or not _winograd_applies(shape):
        return "direct"
    if requested == "winograd2":
        return "winograd2"
    return "winograd4" if requested == "winograd4" else _cheapest(shape)


def _winograd_applies(shape: ConvShape) -> bool:
    """3x3, stride 1, no dilation, no groups, whole vectors of channels."""
    plain = (shape.r, shape.s, shape.stride, shape.dilation) == (3, 3, (1, 1), (1, 1))
    whole = shape.c % CHANNEL_UNIT == 0 and shape.k % CHANNEL_UNIT == 0
    return plain and shape.groups == 1 and whole


def _cheapest(shape: ConvShape) -> CpuAlgorithm:
    """The algorithm with the fewest multiplications; "direct" where few tiles share a transformed
    weight.
    """
    tiles2, tiles4 = (shape.n * -(-shape.oh // m) * -(-shape.ow // m) for m in (2, 4))
    costs: dict[CpuAlgorithm, float] = {
        "direct": 9 * shape.n * shape.oh * shape.ow,
        "winograd2": 16 * WINOGRAD_OVERHEAD * tiles2,
        "winograd4": 36 * WINOGRAD_OVERHEAD * tiles4,
    }
    if tiles4 < MIN_TILES or min(shape.c, shape.k) < MIN_CHANNELS:
        return "direct"
    return min(costs, key=costs.__getitem__)


def _require_countable(shape: ConvShape) -> None:
    counted = {
        "output pixels": shape.n * shape.oh * shape.ow,
        "input pixels": shape.n * shape.h * shape.w,
        "weights": shape.k * shape.cg * shape.r * shape.s,
    }
    for what, count in counted.items():
        if count > MOST_COUNTED:
            raise ShapeError(
                f"a convolution with {count} {what} is too large for the cuda device",
                numbers=f"at most {MOST_COUNTED}", fix="split the batch, or the image",
            )  # fmt: skip


def algorithm_for(device: str, requested: str, allow_tf32: bool) -> str:
    """What convolutions are asked to use. Raises ConfigError: the device has no such thing."""
    if device == "cpu" and not allow_tf32 and requested not in CUDA_ALGORITHMS:
        return requested  # the rules of the cpu kernels know the rest
    if device == "cuda" and requested == "auto":
        return "tf32" if allow_tf32 else "implicit_gemm"
    if device == "cuda" and requested in CUDA_ALGORITHMS:
        return requested
    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"device {device!r} is neither 'cpu' nor 'cuda'", code="OOC-106", fix="--device cpu"
        )
    if device == "cpu" and allow_tf32:
        raise ConfigError(
            "TF32 is a number format of GPUs", code="OOC-106", fix="--device cuda, or no TF32"
        )
    raise ConfigError(
        f"no convolution algorithm {requested!r} on device {device}", code="OOC-106",
        fix=f"on a GPU: auto, {', '.join(CUDA_ALGORITHMS)}",
    )  # fmt: skip
