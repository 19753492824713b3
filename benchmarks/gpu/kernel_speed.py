"""Each kernel's TFLOP/s or GB/s, compared with torch's, TF32 off and on, in the same process.

Measured by the GPU's own clock are convolutions of ResNet-50 and larger ones, and kernels bound by
memory. A memory-bound kernel is judged by a copy of as many bytes on the same GPU, measured here,
and never by a data sheet. Arrays are larger than the GPU's cache. Read next: `workbench.py`,
`torch_peer.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu import torch_peer
from benchmarks.gpu.bench import Bench, NotRunError
from benchmarks.gpu.workbench import Workbench
from ooctrain.devices.cuda.open import TF32_CAPABILITY
from ooctrain.layers.batch_norm import BatchNormApply, BatchNormGradApply, BatchNormStats
from ooctrain.layers.combine import Add, Scale
from ooctrain.layers.conv2d import Conv2d, Conv2dGradInput, Conv2dGradWeight, Geometry
from ooctrain.layers.linear import Linear
from ooctrain.layers.pooling import MaxPool2d, PoolGeometry
from ooctrain.layers.relu import ReLU, ReLUGrad
from ooctrain.layers.update import AdamUpdate, SGDUpdate
from ooctrain.step.op import Op, Spec

ARENA_BYTES, HOST_BYTES, REHEARSED_BYTES = 4 << 30, 64 << 20, 4 << 20
#: (images, channels, side, filters, kernel, stride)
CONVS = (
    (64, 128, 56, 128, 3, 1), (64, 256, 28, 256, 3, 1), (64, 512, 14, 512, 3, 1),
    (64, 256, 56, 128, 1, 1), (64, 64, 112, 64, 3, 1), (64, 3, 224, 64, 7, 2),
)  # fmt: skip
#: From so many channels the targets count.
WIDE = 128
FAST = ("implicit_gemm", "tf32")
BIG, TINY = (64, 64, 112, 112), (2, 4, 6, 6)

Case = tuple[Op, tuple[Spec, ...]]


def run(bench: Bench) -> None:
    """The copy first, which the memory-bound ones are judged by; then what carries targets."""
    size, host = (REHEARSED_BYTES,) * 2 if bench.small else (ARENA_BYTES, HOST_BYTES)
    with Workbench(size, host) as workbench:
        known: dict[str, float] = {}
        shape = TINY if bench.small else BIG
        bench.check("copying on the GPU", _copy, workbench, shape, known)
        convs = ((2, 8, 6, 8, 3, 1),) if bench.small else CONVS
        cases = [(op, specs) for conv in convs for op, specs in conv_cases(*conv)]
        bound = list(memory_bound(shape))
        with_target = [case for case in cases if _key(*case)]
        for op, specs in with_target:
            bench.check(_name(op, specs), _time_conv, workbench, op, specs)
        for op, specs in bound:
            bench.check(str(op), _time_memory_bound, workbench, op, specs, shape, known)
        for op, specs in cases:
            if (op, specs) not in with_target:
                bench.check(_name(op, specs), _time_conv, workbench, op, specs)


def _name(op: Any, specs: Sequence[Spec]) -> str:
    shapes = " ".join("x".join(map(str, spec.shape)) for spec in specs)
    return f"{op.name} {op.algorithm} {shapes}"


def _key(op: Any, specs: Sequence[Spec]) -> str:
    """Which target a convolution counts for; empty: none."""
    if min(spec.shape[1] for spec in specs[:2]) < WIDE:
        return ""
    if op.algorithm != "tf32":
        return "fp32_conv_tflops"
    return "tf32_forward_tflops" if isinstance(op, Conv2d) else ""


def conv_cases(
    n: int, channels: int, side: int, filters: int, kernel: int, stride: int
) -> Iterator[Case]:
    geometry = Geometry((stride,) * 2, (kernel // 2,) * 4)
    x, w = Spec((n, channels, side, side)), Spec((filters, channels, kernel, kernel))
    for algorithm in FAST:
        forward = Conv2d(geometry, (kernel, kernel), algorithm)
        (y,) = forward.infer(x, w)
        yield forward, (x, w)
        if channels >= WIDE:
            yield Conv2dGradInput(geometry, (side, side), algorithm), (y, w)
        yield Conv2dGradWeight(geometry, (kernel, kernel), algorithm), (x, y)


def memory_bound(shape: tuple[int, int, int, int]) -> Iterator[Case]:
    x, c = Spec(shape), Spec(shape[1:2])
    flat = Spec((x.size,))
    yield ReLU(), (x,)
    yield ReLUGrad(), (x, x)
    yield Add(), (x, x)
    yield MaxPool2d(PoolGeometry((2, 2), (2, 2))), (x,)
    yield BatchNormStats(1e-5), (x,)
    yield BatchNormApply(relu=True), (x, c, c, c, c)
    yield BatchNormGradApply(True), (x, x, c, c, c, c, c)
    yield SGDUpdate(0.9, 0.0, 1e-4), (flat, flat, flat)
    yield AdamUpdate(), (flat, flat, flat, flat)
    yield Linear(), (Spec((shape[0], 512)), Spec((1000, 512)))


def _copy(
    workbench: Workbench, shape: tuple[int, ...], known: dict[str, float]
) -> dict[str, float]:
    """GB/s, read and written, of torch's copy where it is there, else of our plainest kernel."""
    spec = Spec(shape)
    ours_us = workbench.time_op(Scale(1.5), [spec])
    numbers = {"scale_gb_s": 2 * spec.nbytes / ours_us / 1e3}
    if torch_peer.is_here():
        numbers["torch_copy_gb_s"] = 2 * spec.nbytes / torch_peer.time_copy_us(shape) / 1e3
    known["gb_s"] = max(numbers.values())
    return numbers


def _time_conv(workbench: Workbench, op: Any, specs: Sequence[Spec]) -> dict[str, float]:
    tf32 = op.algorithm == "tf32"
    if tf32 and workbench.driver.capability() < TF32_CAPABILITY:
        raise NotRunError("this GPU has no tensor cores for TF32")
    flops = op.flops(specs, op.infer(*specs))
    numbers = {"tflops": flops / workbench.time_op(op, specs) / 1e6}
    if workbench.waited:
        numbers["waited_for_the_host"] = 1.0
    if torch_peer.is_here():
        us = torch_peer.time_us(op, specs, tf32=tf32)
        numbers["torch_tflops"] = flops / us / 1e6 if us else 0.0
    if _key(op, specs):
        numbers[_key(op, specs)] = numbers["tflops"]
    return numbers


def _time_memory_bound(
    workbench: Workbench, op: Op, specs: Sequence[Spec], shape: tuple[int, ...],
    known: dict[str, float],
) -> dict[str, float]:  # fmt: skip
    moved = op.bytes_moved(specs, op.infer(*specs))
    us = workbench.time_op(op, specs)
    numbers = {"us": us, "gb_s": moved / us / 1e3}
    if workbench.waited:
        numbers["waited_for_the_host"] = 1.0
    if torch_peer.is_here() and (theirs := torch_peer.time_us(op, specs, tf32=False)):
        numbers["torch_gb_s"] = moved / theirs / 1e3
    if isinstance(op, Linear):
        return numbers
    if "gb_s" not in known:
        _copy(workbench, shape, known)
    return {**numbers, "share_of_copy": numbers["gb_s"] / known["gb_s"]}
