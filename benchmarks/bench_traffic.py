"""Bytes and instructions of the kernels bound by memory: the table of docs/gpu.md.

For operations on arrays of a real step's sizes it lists the bytes of each load or store, the
instructions per byte, and the part of a copy's bandwidth that these allow: a GPU issues so many
instructions while a byte travels. The PTX interpreter counts the first blocks of each launch, so it
takes no GPU and half a minute. Read next: `tests/support/traffic.py`,
`tests/unit/cuda/test_traffic.py`.

    python -m benchmarks.bench_traffic [name ...]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.traffic import (
    ISSUED_PER_BYTE,
    USED_SLOTS,
    CountingLauncher,
    Traffic,
    share_of_copy,
)

from benchmarks.common import table
from ooctrain.layers.arithmetic import Arithmetic, BytesToFloat
from ooctrain.layers.batch_norm import (
    BatchNormApply,
    BatchNormGradApply,
    BatchNormGradReduce,
    BatchNormStats,
)
from ooctrain.layers.combine import Add, Scale
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.layout import Pad
from ooctrain.layers.losses import MeanError, SoftmaxCrossEntropy
from ooctrain.layers.permute import Permute
from ooctrain.layers.pooling import MaxPool2d, PoolGeometry
from ooctrain.layers.regions import Insert, Slice
from ooctrain.layers.relu import ReLU, ReLUGrad
from ooctrain.layers.softmax import SoftmaxAlong
from ooctrain.layers.update import AdamUpdate, SGDUpdate
from ooctrain.step.op import Op
from ooctrain.testing.check_cuda import run_cuda
from ooctrain.testing.check_op import SCALARS, as_input, spec_of

#: 128 channels, and 3 or 30, where rows are no multiples of 16 bytes.
IMAGES, NARROW, COLOURS = (32, 64, 56, 56), (32, 30, 56, 56), (32, 3, 64, 64)


@dataclass(frozen=True, slots=True)
class Row:
    """What was counted of one kernel in one operation.

    Args:
        case, kernel: whose it is.
        traffic: of the kernel.
        per_byte: instructions for each byte that the operation has to move.
    """

    case: str
    kernel: str
    traffic: Traffic
    per_byte: float

    @property
    def widths(self) -> str:
        """Bytes of its loads and stores, the commonest first."""
        found = self.traffic.widths
        return " ".join(str(w) for w in sorted(found, key=lambda w: -found[w]) if found[w])


def cases() -> Mapping[str, tuple[Op, tuple[Any, ...]]]:
    """{name: (operation, arrays)}."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    x, y, narrow, flat = drawn(*IMAGES), drawn(*IMAGES), drawn(*NARROW), drawn(1 << 21)
    c, few = np.abs(drawn(IMAGES[1])), np.abs(drawn(NARROW[1]))
    logits, labels = drawn(4096, 1000), rng.integers(0, 1000, 4096)
    inner = (IMAGES[0], IMAGES[1], IMAGES[2] - 2, IMAGES[3] - 3)
    of_narrow = (NARROW[0], NARROW[1], NARROW[2] - 2, NARROW[3] - 3)
    return {
        "ReLU": (ReLU(), (x,)),
        "ReLU, gradient": (ReLUGrad(), (x, y)),
        "add": (Add(), (x, y)),
        "scale": (Scale(1.5), (x,)),
        "batch norm": (BatchNormApply(relu=True), (x, c, c, c, c)),
        "batch norm, 30 channels": (BatchNormApply(relu=True), (narrow, few, few, few, few)),
        "batch norm, statistics": (BatchNormStats(1e-5), (x,)),
        "batch norm, sums of its gradient": (BatchNormGradReduce(), (x, y, c, c)),
        "batch norm, gradient": (BatchNormGradApply(True), (x, y, c, c, c, c, c)),
        "max pool": (MaxPool2d(PoolGeometry((2, 2), (2, 2))), (x,)),
        "SGD": (SGDUpdate(0.9, 0.0, 1e-4), (flat, flat, flat)),
        "Adam": (AdamUpdate(), (flat, flat, flat, np.abs(flat))),
        "dropout": (Dropout(0.5, 0), (x,)),
        "dropout, 30 channels": (Dropout(0.5, 0), (narrow,)),
        "bytes to floats": (BytesToFloat(), (rng.integers(0, 256, COLOURS).astype(np.uint8),)),
        "slice": (Slice(IMAGES, (0, 0, 1, 1), inner), (x,)),
        "slice, 30 channels": (Slice(NARROW, (0, 0, 1, 1), of_narrow), (narrow,)),
        "insert": (Insert((0, 0, 1, 1)), (x, np.ascontiguousarray(y[:, :, :50, :50]))),
        "padding": (Pad((1, 1, 1, 1)), (x,)),
        "padding, 3 channels": (Pad((1, 1, 1, 1)), (drawn(*COLOURS),)),
        "a number for each channel": (Arithmetic("multiply"), (x, c.reshape(1, -1, 1, 1))),
        "a number for each of 30 channels": (
            Arithmetic("multiply"),
            (narrow, few.reshape(1, -1, 1, 1)),
        ),
        "a number for each image and channel": (
            Arithmetic("multiply"),
            (x, drawn(*IMAGES[:2], 1, 1)),
        ),
        "a number for each pixel, 30 channels": (
            Arithmetic("multiply"),
            (narrow, drawn(NARROW[0], 1, *NARROW[2:])),
        ),
        "permutation": (Permute((0, 2, 3, 1)), (narrow,)),
        "softmax": (SoftmaxAlong(1), (logits,)),
        "cross-entropy": (SoftmaxCrossEntropy(), (logits, labels)),
        "squared error": (MeanError(), (x, y)),
    }


def count(names: Sequence[str] = ()) -> Iterator[Row]:
    """What each kernel does; all cases, or those that are named."""
    for name, (op, arrays) in cases().items():
        if names and name not in names:
            continue
        inputs, launcher = [as_input(array) for array in arrays], CountingLauncher()
        run_cuda(op, inputs, SCALARS, launcher)
        specs = [spec_of(array) for array in inputs]
        moved = op.bytes_moved(specs, op.infer(*specs))
        for kernel, traffic in launcher.found.items():
            yield Row(name, kernel, traffic, traffic.issued / moved)


def main(names: Sequence[str] = ()) -> None:
    """Prints the table."""
    shown = [
        [r.case, r.kernel, r.widths, f"{r.per_byte:.2f}", f"{share_of_copy(r.per_byte):.0%}"]
        for r in count(names)
    ]
    head = "operation", "kernel", "bytes of an access", "instructions a byte", "of a copy"
    print(table(head, shown))
    print(
        f"an H200 issues {ISSUED_PER_BYTE:.1f} while a byte travels; of a copy: what that allows, "
        f"{USED_SLOTS:.0%} of the slots used"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
