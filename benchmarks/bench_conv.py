"""Convolution kernels against torch, layer by layer.

Speeds of a shared machine wander, so every round runs ours and torch's in both memory layouts one
after the other, in one process with the same number of threads, and only medians and their ratios
are reported, in a table and, with --json, a file. Each side's error is measured against float64.
Read next: `ooctrain/layers/kernels/cpu/conv/conv2d.py`.

    python -m benchmarks.bench_conv [--network resnet18] [--algorithm auto] [--errors] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ooctrain.layers.conv2d import CPU_ALGORITHMS, ConvShape, choose_algorithm
from ooctrain.layers.kernels.cpu.conv import conv2d, conv_workspace
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.cpu.simd.simd import ISA

PARTS = ("forward", "grad_input", "grad_weight")
PAUSE_S = 0.02


def square(n: int, c: int, h: int, k: int, r: int, stride: int = 1) -> ConvShape:
    """A layer as networks have it: square, padded by half the filter."""
    return ConvShape(n, c, h, h, k, r, r, (stride, stride), (r // 2,) * 4)


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution and how often a step of its network runs it."""

    network: str
    shape: ConvShape
    count: int

    @property
    def name(self) -> str:
        s = self.shape
        return f"{s.n}x{s.c}x{s.h} -> {s.k}, {s.r}x{s.s}/{s.stride[0]}"


def _resnet18_cifar(batch: int) -> list[Layer]:
    layers = [(square(batch, 3, 32, 64, 3), 1), (square(batch, 64, 32, 64, 3), 4)]
    for channels, size in ((64, 32), (128, 16), (256, 8)):
        layers += [
            (square(batch, channels, size, 2 * channels, 3, 2), 1),
            (square(batch, channels, size, 2 * channels, 1, 2), 1),
            (square(batch, 2 * channels, size // 2, 2 * channels, 3), 3),
        ]
    return [Layer("resnet18", shape, count) for shape, count in layers]


def _vgg11_cifar(batch: int) -> list[Layer]:
    sizes = [(3, 32, 64, 1), (64, 16, 128, 1), (128, 8, 256, 1), (256, 8, 256, 1), (256, 4, 512, 1)]
    sizes += [(512, 4, 512, 1), (512, 2, 512, 2)]
    return [Layer("vgg11", square(batch, c, h, k, 3), count) for c, h, k, count in sizes]


def _resnet50(batch: int) -> list[Layer]:
    layers = [(square(batch, 3, 224, 64, 7, 2), 1), (square(batch, 64, 56, 64, 1), 1)]
    blocks = ((64, 56, 3), (128, 28, 4), (256, 14, 6), (512, 7, 3))
    for index, (width, size, count) in enumerate(blocks):
        wide, before = 4 * width, 64 if index == 0 else 2 * width
        first = size if index == 0 else 2 * size
        if index:
            layers += [
                (square(batch, before, first, width, 1), 1),
                (square(batch, width, first, width, 3, 2), 1),
            ]
        layers += [
            (square(batch, before, first, wide, 1, 2 if index else 1), 1),
            (square(batch, wide, size, width, 1), count - 1),
            (square(batch, width, size, width, 3), count if index == 0 else count - 1),
            (square(batch, width, size, wide, 1), count),
        ]
    return [Layer("resnet50", shape, count) for shape, count in layers]


NETWORKS = {
    "resnet18": (_resnet18_cifar, 64),
    "vgg11": (_vgg11_cifar, 64),
    "resnet50": (_resnet50, 8),
}


class Ours:
    """One layer with its arrays and workspaces."""

    def __init__(self, pool: ThreadPool, shape: ConvShape, algorithm: str, x, w, dy):
        self.pool, self.shape, self.algorithm = pool, shape, algorithm
        self.x, self.w, self.dy = x, w, dy
        self.y, self.dx, self.dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
        self.spaces = {}
        for part in PARTS:
            size = conv_workspace.workspace_bytes(shape, algorithm, part, pool.threads)
            raw = np.zeros(size + 64, np.uint8)
            start = -raw.ctypes.data % 64
            self.spaces[part] = raw[start : start + size]

    def run(self, part: str) -> np.ndarray:
        space, arguments = self.spaces[part], (self.pool, self.shape, self.algorithm)
        if part == "forward":
            conv2d.forward(*arguments, self.x, self.w, None, self.y, space)
            return self.y
        if part == "grad_input":
            conv2d.grad_input(*arguments, self.dy, self.w, self.dx, space)
            return self.dx
        conv2d.grad_weight(*arguments, self.x, self.dy, self.dw, space)
        return self.dw


class Torch:
    """The same layer in torch, in one memory layout."""

    def __init__(self, shape: ConvShape, x, w, dy, layout, dtype=torch.float32):
        def convert(array):
            return (
                torch.from_numpy(array.transpose(0, 3, 1, 2))
                .to(dtype)
                .contiguous(memory_format=layout)
            )

        self.x, self.w, self.dy = convert(x), convert(w), convert(dy)
        self.stride, self.groups = list(shape.stride), shape.groups
        self.padding = [shape.padding[0], shape.padding[2]]

    def run(self, part: str):
        if part == "forward":
            return torch.nn.functional.conv2d(
                self.x, self.w, stride=self.stride, padding=self.padding, groups=self.groups
            )
        mask = [part == "grad_input", part == "grad_weight", False]
        backward = torch.ops.aten.convolution_backward
        results = backward(
            self.dy,
            self.x,
            self.w,
            None,
            self.stride,
            self.padding,
            [1, 1],
            False,
            [0, 0],
            self.groups,
            mask,
        )
        return results[0 if part == "grad_input" else 1]


def interleaved_times(functions, rounds: int) -> list[tuple[float, float]]:
    """(median, smallest) seconds of each function; all run once in each round.

    The pause lets the other side's worker threads fall asleep: OpenMP's spin for milliseconds
    after a parallel region and would take a core from whoever is measured next.
    """
    samples: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(rounds):
        for function, times in zip(functions, samples, strict=True):
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
    return [(statistics.median(times), min(times)) for times in samples]


def relative_error(got: np.ndarray, exact: np.ndarray) -> float:
    """Root mean square of the error over the standard deviation of the exact result."""
    return math.sqrt(np.mean((got - exact) ** 2)) / exact.std()


def measure(
    layer: Layer, algorithm: str, pool: ThreadPool, rounds: int, *, errors: bool
) -> list[dict]:
    """One row for each part of one layer."""
    shape = layer.shape
    random = np.random.default_rng(0)
    x, w, dy = (
        random.standard_normal(extents, dtype=np.float32)
        for extents in (
            (shape.n, shape.h, shape.w, shape.c),
            (shape.k, shape.r, shape.s, shape.cg),
            (shape.n, shape.oh, shape.ow, shape.k),
        )
    )
    chosen = choose_algorithm(shape, algorithm)
    ours = Ours(pool, shape, chosen, x, w, dy)
    nchw, nhwc = (Torch(shape, x, w, dy, f) for f in (torch.contiguous_format, torch.channels_last))
    rows = []
    for part in PARTS:
        if part == "grad_input" and shape.c == 3:
            continue  # no network asks for the gradient of its images
        sides = [lambda side=side, part=part: side.run(part) for side in (ours, nchw, nhwc)]
        with torch.no_grad():
            (mine, best), (first, best_first), (last, best_last) = interleaved_times(sides, rounds)
        row = {
            "network": layer.network, "layer": layer.name, "count": layer.count, "part": part,
            "algorithm": chosen, "ours_ms": mine * 1e3, "torch_nchw_ms": first * 1e3,
            "torch_nhwc_ms": last * 1e3, "ratio": min(first, last) / mine,
            "best_ratio": min(best_first, best_last) / best,
            "gflops": shape.flops / mine / 1e9, "workspace_mib": ours.spaces[part].size / 2**20,
        }  # fmt: skip
        if errors:
            with torch.no_grad():
                double = Torch(shape, x, w, dy, torch.contiguous_format, torch.float64)
                exact = double.run(part).numpy().transpose(0, 2, 3, 1)
                row["error"] = relative_error(ours.run(part), exact)
                row["torch_error"] = relative_error(
                    nhwc.run(part).numpy().transpose(0, 2, 3, 1), exact
                )
        rows.append(row)
    return rows


def format_row(row: dict) -> str:
    times = "".join(f"{row[key]:8.2f}" for key in ("ours_ms", "torch_nchw_ms", "torch_nhwc_ms"))
    text = (
        f"{row['layer']:<28}{row['part']:<12}{row['algorithm']:<10}{times}{row['ratio']:7.2f}"
        f"{row['best_ratio']:7.2f}{row['gflops']:7.0f}{row['workspace_mib']:8.1f}"
    )
    if "error" in row:
        text += f"  {row['error']:.1e} / {row['torch_error']:.1e}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="+", choices=sorted(NETWORKS), default=sorted(NETWORKS))
    parser.add_argument("--layers", default="", help="only layers whose name contains this text")
    parser.add_argument("--algorithm", default="auto", choices=("auto", *CPU_ALGORITHMS))
    parser.add_argument("--batch", type=int, help="instead of each network's own")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--errors", action="store_true", help="compare both sides with float64")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    pool = ThreadPool(options.threads)
    report = []
    print(
        f"{ISA}, {options.threads} threads, torch {torch.__version__}, "
        f"medians of {options.rounds} rounds"
    )
    print(
        f"{'layer':<28}{'part':<12}{'algorithm':<10}    ours    nchw    nhwc  ratio   best"
        " GFLOP/s     MiB"
    )
    for network in options.network:
        build, batch = NETWORKS[network]
        rows = []
        for layer in build(options.batch or batch):
            if options.layers in layer.name:
                for row in measure(
                    layer, options.algorithm, pool, options.rounds, errors=options.errors
                ):
                    rows.append(row)
                    print(format_row(row), flush=True)
        for part in (*PARTS, ""):
            chosen = [row for row in rows if part in row["part"]]
            ours, nchw, nhwc = (
                sum(row["count"] * row[key] for row in chosen)
                for key in ("ours_ms", "torch_nchw_ms", "torch_nhwc_ms")
            )
            if ours:
                label = f"{network}, all {part or 'parts'}"
                print(f"{label:<50}{ours:8.1f}{nchw:8.1f}{nhwc:8.1f}{min(nchw, nhwc) / ours:7.2f}")
        report += rows
    pool.close()
    if options.json:
        options.json.write_text(
            json.dumps({"isa": ISA, "threads": options.threads, "rows": report}, indent=1)
        )


if __name__ == "__main__":
    main()
