"""An operation that stands in one file works at every door: nothing else is edited.

`Blur` says of itself what every operation says: shape, definition, gradient, the rows that a row
reads, and the same on a part; and it brings a kernel for each device. Its gradient gathers, as that
of a convolution does. So it runs eagerly, in a plan, in bands of kept rows, in tiles with halos,
split into patches, in parts of a batch, and under the emulator of a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.errors import ConfigError
from ooctrain.execution.evaluation import samples_apart
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import kernel as cpu_kernel
from ooctrain.layers.kernels.cuda.runtime.launcher import blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, uint32
from ooctrain.layers.kernels.cuda.runtime.shim import kernel as cuda_kernel
from ooctrain.step.op import Op, Sides, Spec, require
from ooctrain.step.rows import PIXEL, RowRule, RowsRead, Window
from ooctrain.testing.check_cuda import check_cuda
from ooctrain.testing.check_op import check_op
from ooctrain.testing.tiled.check_tiled import check_tiled

nn = oc.nn
THREADS = 64


@cpu_kernel("void(f4[:, :, :, ::1], f4[:, :, :, ::1], i8, i8, i8, i8, i8)")
def _blur(x, y, above, way, lo, hi, thread):
    """y[i] = x[i - above] + 2 x[i - above + 1] + x[i - above + 2]; way -1: the other way round."""
    rows = y.shape[1]
    for place in range(lo, hi):
        n, i = place // rows, place % rows
        for w in range(y.shape[2]):
            for c in range(y.shape[3]):
                total = np.float32(0)
                for tap in range(3):
                    row = i + way * (tap - above)
                    if 0 <= row < x.shape[1]:
                        total += x[n, row, w, c] * np.float32(2 if tap == 1 else 1)
                y[n, i, w, c] = total


@cuda_kernel("void(f4[::1], f4[::1], u4, u4, u4, u4, i8, i8)", threads=THREADS)
def _blur_on_gpu(x, y, images, rows_in, rows, width, above, way):
    place = uint32(cuda.blockIdx.x * uint32(THREADS) + cuda.threadIdx.x)
    if place < images * rows * width:
        n, i, at = place // (rows * width), place // width % rows, place % width
        total = np.float32(0)
        for tap in range(3):
            row = i + way * (tap - above)
            if row >= 0 and row < rows_in:
                weight = np.float32(2) if tap == 1 else np.float32(1)
                total += x[(n * rows_in + uint32(row)) * width + at] * weight
        y[place] = total


def _on_cpu(pool, x, y, above, way):
    pool.run(_blur, y.shape[0] * y.shape[1], 1, x, y, above, way)


def _on_cuda(launcher, x, y, above, way):
    (n, rows_in, w, c), rows = x.shape, y.shape[1]
    blocks = blocks_for(n * rows * w * c, THREADS)
    launcher.launch(_blur_on_gpu, blocks, x, y, n, rows_in, rows, w * c, above, way)


@dataclass(frozen=True, slots=True)
class Blur(Op):
    """y[h] = x[h - 1] + 2 x[h] + x[h + 1] along the rows of (N, C, H, W), zeros outside."""

    padding: Sides = (1, 1, 0, 0)
    name: ClassVar[str] = "blur"

    def infer(self, x: Spec):
        require(len(x.shape) == 4, "blur: wants (N, C, H, W)", x)
        n, c, h, w = x.shape
        return (Spec((n, c, h + sum(self.padding[:2]) - 2, w)),)

    def reference(self, x, scalars):
        top, bottom = self.padding[:2]
        p = np.pad(x, ((0, 0), (0, 0), (top, bottom), (0, 0)))
        return (p[:, :, :-2] + 2 * p[:, :, 1:-1] + p[:, :, 2:],)

    def vjp(self, tape, ins, outs, grads):
        return tape.call(BlurGrad(self.padding, ins[0].shape[2]), grads, of=ins)

    def window(self):
        return Window(3, pad_lo=self.padding[0], pad_hi=self.padding[1]), PIXEL[1]

    def with_padding(self, padding):
        return replace(self, padding=padding)

    def cpu(self, pool, ins, outs, workspace, scalars):
        _on_cpu(pool, *ins, *outs, self.padding[0], 1)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        _on_cuda(launcher, *ins, *outs, self.padding[0], 1)


@dataclass(frozen=True, slots=True)
class BlurGrad(Op):
    """dx of `rows` rows: each gathers the gradients of all outputs that read it."""

    padding: Sides
    rows: int
    name: ClassVar[str] = "blur_grad"
    verb: ClassVar[str] = "grad"

    def infer(self, dy: Spec):
        n, c, _, w = dy.shape
        return (Spec((n, c, self.rows, w)),)

    def reference(self, dy, scalars):
        n, c, h, w = dy.shape
        padded = np.zeros((n, c, h + 2, w), dy.dtype)
        padded[:, :, :-2] += dy
        padded[:, :, 1:-1] += 2 * dy
        padded[:, :, 2:] += dy
        top = self.padding[0]
        return (padded[:, :, top : top + self.rows].copy(),)

    def row_rule(self, ins):
        window = Window(3, pad_lo=self.padding[0], pad_hi=self.padding[1])
        return RowRule((RowsRead(window, gathers=True),), self._on_rows)

    def _on_rows(self, place):
        return BlurGrad((place.above, place.below, 0, 0), place.rows.extent)

    def cpu(self, pool, ins, outs, workspace, scalars):
        _on_cpu(pool, *ins, *outs, self.padding[0], -1)

    def cuda(self, launcher, ins, outs, workspace, scalars):
        _on_cuda(launcher, *ins, *outs, self.padding[0], -1)


class Blurred(nn.Module):
    """The operation as a module."""

    def forward(self, x):
        return oc.engine.tensor.call(Blur(), x)


def network() -> nn.Module:
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), Blurred(), nn.Conv2d(4, 4, 3, padding=1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip


def head() -> nn.Module:
    oc.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), Blurred(), nn.MaxPool2d(2))


def batch():
    rng = np.random.default_rng(0)
    return rng.standard_normal((8, 3, 16, 16)).astype(np.float32), rng.integers(0, 5, 8)


def trained(budget=None, model=None, **settings):
    model = model or network()
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = oc.Trainer(model, "cross_entropy", optimizer, budget=budget, threads=2, **settings)
    losses = [trainer.step(*batch()) for _ in range(3)]
    return losses, model.state_dict()


def same(one, other):
    return one[0] == other[0] and all(np.array_equal(one[1][k], other[1][k]) for k in one[1])


def images(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("padding", [(1, 1, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0), (1, 2, 0, 0)])
def test_laws_of_both_kernels(padding):
    op, x = Blur(padding), images(2, 3, 7, 5)
    check_op(op, x)
    check_cuda(op, x)
    (dy,) = op.infer(Spec(x.shape))
    check_cuda(BlurGrad(padding, 7), images(*dy.shape))


@pytest.mark.parametrize("planner", ["naive", "belady", "chen-sqrt", "dtr"])
def test_a_plan_keeps_the_bits(planner):
    assert same(trained("90%", planner=planner), trained())


@pytest.mark.parametrize("tiling", ["bands:3", "bands:16", "bands_again:4", "tile:4x2", "tile:3x1"])
def test_bands_and_tiles_compute_what_the_whole_does(tiling):
    check_tiled(head(), (2, 3, 15, 9), tiling)


def test_a_band_never_computes_a_row_twice():
    trace = oc.trace(network(), (2, 3, 16, 16), device="cpu")
    banded = oc.rewrite.apply_rewrites(trace, ["bands:4"])
    made = [c for c in banded.calls if c.name.startswith("2.") and c.phase == "forward"]
    rows = sum(banded.variables[c.outs[0]].shape[2] for c in made)
    assert len(made) > 2
    assert rows <= 2 * 16 + len(made)


def test_patches_are_trained():
    whole, patched = (trained("90%", model=oc.split(network(), depth=depth), planner="belady")
                      for depth in (0.0, 1.0))  # fmt: skip
    assert same(whole, trained())
    assert not same(whole, patched)
    assert same(patched, trained(model=oc.split(network(), depth=1.0)))


def test_samples_are_known_to_be_independent():
    model = network()
    trace = oc.trace(model.eval(), (8, 3, 16, 16), None, None, training=False)
    assert samples_apart(trace, list(trace.outputs.values()))


def test_what_it_does_not_say_is_refused_by_name():
    class Mute(Blur):
        def window(self):
            return None

    class Muted(nn.Module):
        def forward(self, x):
            return oc.engine.tensor.call(Mute(), x)

    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), Muted(), nn.ReLU())
    with pytest.raises(ConfigError, match=r"1\.fwd") as caught:
        check_tiled(model, (1, 3, 9, 9), "bands:3:0:2")
    assert caught.value.code == "OOC-113"
    assert "window" in str(caught.value)
