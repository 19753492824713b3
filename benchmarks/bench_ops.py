"""Every CPU kernel that is not a convolution against torch: times, ratios, errors.

The race is fair: one process, the same number of threads, samples of all contestants interleaved
and the median taken. Torch may use its better memory layout and its `out=` variants, so that
neither side pays for allocation (torch's gradient of batch norm has no variant without). A ratio
above 1 means that ooctrain is faster than the best form of torch. Read next: `arrays.py`.

    python -m benchmarks.bench_ops [--threads 2] [--rounds 15] [--only SUBSTRING] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.arrays import both_layouts, empty, empty_like, scratch, tensor_like, tensors
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.kernels.cpu import (
    batch_norm,
    dropout,
    elementwise,
    functions,
    layout,
    losses,
    pooling,
    update,
    workspace,
)
from ooctrain.layers.kernels.cpu.runtime import copy
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.pooling import PoolGeometry
from ooctrain.layers.update import AdamUpdate, SGDUpdate, adam_factors, sgd_factors

#: Why some cases may stay below 1, by a part of their names.
REASONS = {
    " 4x32x8x8": "a call of two microseconds: the way from Python is half of it",
    "insert 16x": "torch's best is NCHW, where the channels lie in one block that fits the cache;"
    " in NHWC they interleave, and there ours takes less than half of torch's time",
}
#: What medians of this machine cannot tell from 1.
NOISE = 0.05
SAMPLE_S = 0.004
#: libgomp's idle threads spin for about 8 ms (measured) before they sleep, on a core that whoever
#: is measured next needs.
GAP_S = 0.012
#: Arrays of the size of the cache reach their steady time after five calls (measured).
WARM_S = 0.003
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Case:
    """One race: what each side runs, and (if errors are compared) the exact and both results."""

    name: str
    ours: Callable[[], object]
    theirs: dict[str, Callable[[], object]]
    exact: Callable[[], np.ndarray] | None = None
    our_result: Callable[[], np.ndarray] | None = None
    their_result: Callable[[], np.ndarray] | None = None


@dataclass(slots=True)
class Bench:
    """What cases need: a pool, random data, scratch."""

    pool: ThreadPool
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def normal(self, *shape: int) -> np.ndarray:
        array = empty(shape)
        array[...] = self.rng.standard_normal(shape, dtype=np.float32)
        return array


def elementwise_cases(b: Bench) -> Iterator[Case]:
    for size, label in (
        (1 << 12, "4 Ki"),
        (1 << 16, "64 Ki"),
        (1 << 20, "1 Mi"),
        (1 << 22, "4 Mi"),
    ):
        x, dy, y, out = b.normal(size), b.normal(size), b.normal(size), empty(size)
        tx, tdy, ty, tout = tensors(x, dy, y, empty_like(out))
        wide = x.astype(np.float64)

        def case(name, ours, theirs, exact=None, out=out, tout=tout, label=label):
            return Case(
                f"{name} {label}",
                ours,
                {"flat": theirs},
                exact,
                lambda: out.copy(),
                lambda: tout.numpy().copy(),
            )

        yield case(
            "relu",
            lambda x=x, out=out: elementwise.relu(b.pool, x, out),
            lambda tx=tx, tout=tout: torch.clamp_min(tx, 0, out=tout),
        )
        yield case(
            "relu in place",
            lambda out=out: elementwise.relu(b.pool, out, out),
            lambda tout=tout: torch.relu_(tout),
        )
        yield case(
            "relu grad",
            lambda dy=dy, y=y, out=out: elementwise.relu_grad(b.pool, dy, y, out),
            lambda tdy=tdy, ty=ty, tout=tout: aten.threshold_backward.grad_input(
                tdy, ty, 0, grad_input=tout
            ),
        )
        yield case(
            "add",
            lambda x=x, dy=dy, out=out: elementwise.add(b.pool, x, dy, out),
            lambda tx=tx, tdy=tdy, tout=tout: torch.add(tx, tdy, out=tout),
        )
        yield case(
            "add relu",
            lambda x=x, dy=dy, out=out: elementwise.add(b.pool, x, dy, out, relu=True),
            lambda tx=tx, tdy=tdy, tout=tout: torch.add(tx, tdy, out=tout).relu_(),
        )
        yield case(
            "scale",
            lambda x=x, out=out: elementwise.scale(b.pool, x, out, 0.5),
            lambda tx=tx, tout=tout: torch.mul(tx, 0.5, out=tout),
        )
        yield case(
            "fill",
            lambda out=out: elementwise.fill(b.pool, out, 1.0),
            lambda tout=tout: tout.fill_(1.0),
        )
        yield case(
            "leaky relu",
            lambda x=x, out=out: functions.leaky_relu(b.pool, x, out, 0.1),
            lambda tx=tx, tout=tout: aten.leaky_relu.out(tx, 0.1, out=tout),
        )
        yield case(
            "tanh",
            lambda x=x, out=out: functions.tanh(b.pool, x, out),
            lambda tx=tx, tout=tout: torch.tanh(tx, out=tout),
            lambda wide=wide: np.tanh(wide),
        )
        yield case(
            "sigmoid",
            lambda x=x, out=out: functions.sigmoid(b.pool, x, out),
            lambda tx=tx, tout=tout: torch.sigmoid(tx, out=tout),
            lambda wide=wide: 1 / (1 + np.exp(-wide)),
        )
    for rows, channels in ((64, 10), (64 * 32 * 32, 64), (64 * 8 * 8, 256)):
        dy, db = b.normal(rows, channels), empty(channels)
        (tdy,), tdb = tensors(dy), torch.empty(channels)
        space = scratch(workspace.channel_sum_workspace_bytes(rows, channels))
        yield Case(
            f"bias gradient {rows}x{channels}",
            lambda dy=dy, db=db, space=space: elementwise.channel_sum(b.pool, dy, db, space),
            {"flat": lambda tdy=tdy, tdb=tdb: torch.sum(tdy, 0, out=tdb)},
            lambda dy=dy: dy.sum(0, dtype=np.float64),
            lambda db=db: db,
            lambda tdb=tdb: tdb.numpy(),
        )


def batch_norm_cases(b: Bench) -> Iterator[Case]:
    for n, h, c in (
        (2, 4, 64),
        (64, 32, 64),
        (64, 16, 128),
        (64, 8, 256),
        (64, 4, 512),
        (8, 56, 256),
    ):
        yield from _batch_norm(b, n, h, c)


def _batch_norm(b: Bench, n: int, h: int, c: int) -> Iterator[Case]:
    rows, label = n * h * h, f"{n}x{c}x{h}x{h}"
    x, residual, dy = b.normal(n, h, h, c), b.normal(n, h, h, c), b.normal(n, h, h, c)
    y, dx = empty_like(x), empty_like(x)
    gamma, beta = b.rng.uniform(0.5, 1.5, c).astype(np.float32), b.normal(c)
    mean, inv_std, var, dgamma, dbeta = (empty(c) for _ in range(5))
    running = np.zeros(c, np.float32), np.ones(c, np.float32)
    space = scratch(workspace.batch_norm_workspace_bytes(rows, c))
    weight, bias = tensors(gamma, beta)
    t_running = torch.zeros(c), torch.ones(c)

    def ours(**fused):
        batch_norm.stats(b.pool, x, mean, inv_std, var, 1e-5, space)
        batch_norm.apply(b.pool, x, mean, inv_std, gamma, beta, y, **fused)
        batch_norm.update_running(b.pool, mean, var, running, running, 0.1, rows)

    def forward(t, out, saved):
        aten.native_batch_norm.out(
            t,
            weight,
            bias,
            *t_running,
            True,
            0.1,
            1e-5,
            out=out,
            save_mean=saved[0],
            save_invstd=saved[1],
        )
        return out

    layouts = dict(
        zip(("nchw", "nhwc"), zip(*map(both_layouts, (x, residual, dy)), strict=True), strict=True)
    )
    state = {
        k: (*v, tensor_like(v[0]), (torch.empty(c), torch.empty(c)), tensor_like(v[0]))
        for k, v in layouts.items()
    }
    exact_x = x.astype(np.float64)
    exact = (exact_x - exact_x.mean((0, 1, 2))) / np.sqrt(
        exact_x.var((0, 1, 2)) + 1e-5
    ) * gamma + beta

    def result(key="nhwc"):
        return state[key][3].permute(0, 2, 3, 1).numpy().copy()

    yield Case(
        f"batch norm {label}",
        ours,
        {k: (lambda s=s: forward(s[0], s[3], s[4])) for k, s in state.items()},
        lambda: exact,
        lambda: y.copy(),
        result,
    )
    yield Case(
        f"batch norm relu {label}",
        lambda: ours(relu=True),
        {k: (lambda s=s: forward(s[0], s[3], s[4]).relu_()) for k, s in state.items()},
        lambda: np.maximum(exact, 0),
        lambda: y.copy(),
        result,
    )
    yield Case(
        f"batch norm add relu {label}",
        lambda: ours(residual=residual, relu=True),
        {k: (lambda s=s: forward(s[0], s[3], s[4]).add_(s[1]).relu_()) for k, s in state.items()},
        lambda: np.maximum(exact + residual, 0),
        lambda: y.copy(),
        result,
    )
    yield Case(
        f"batch norm eval {label}",
        lambda: batch_norm.apply(b.pool, x, mean, inv_std, gamma, beta, y),
        {
            k: (
                lambda s=s: aten.native_batch_norm.out(
                    s[0],
                    weight,
                    bias,
                    *t_running,
                    False,
                    0.1,
                    1e-5,
                    out=s[3],
                    save_mean=s[4][0],
                    save_invstd=s[4][1],
                )
            )
            for k, s in state.items()
        },
    )

    def our_gradient():
        batch_norm.grad_reduce(b.pool, dy, x, mean, inv_std, dgamma, dbeta, y, space)
        batch_norm.grad_apply(b.pool, dy, x, mean, inv_std, gamma, dgamma, dbeta, dx, y, 0, space)

    def their_gradient(s):
        aten.threshold_backward.grad_input(s[2], s[3], 0, grad_input=s[5])
        return aten.native_batch_norm_backward(
            s[5], s[0], weight, *t_running, *s[4], True, 1e-5, [True, True, True]
        )

    def prepare():
        ours(relu=True)
        for s in state.values():
            forward(s[0], s[3], s[4]).relu_()

    def exact_gradient():
        prepare()
        s = 1 / np.sqrt(exact_x.var((0, 1, 2)) + 1e-5)
        xhat = (exact_x - exact_x.mean((0, 1, 2))) * s
        dz = dy * (y > 0)
        return (
            gamma
            * s
            * (dz - dz.mean((0, 1, 2), dtype=np.float64) - xhat * (dz * xhat).mean((0, 1, 2)))
        )

    yield Case(
        f"relu batch norm grad {label}",
        our_gradient,
        {k: (lambda s=s: their_gradient(s)) for k, s in state.items()},
        exact_gradient,
        lambda: (our_gradient(), dx.copy())[1],
        lambda: their_gradient(state["nhwc"])[0].permute(0, 2, 3, 1).numpy(),
    )


def pooling_cases(b: Bench) -> Iterator[Case]:
    shapes = (
        (16, 112, 64, 3, 2, 1),
        (64, 32, 64, 2, 2, 0),
        (64, 8, 256, 2, 2, 0),
        (4, 8, 32, 2, 2, 0),
    )
    for n, h, c, k, s, p in shapes:
        yield from _pooling(b, n, h, c, k, s, p)
    for n, h, c in ((64, 4, 512), (8, 7, 2048), (2, 7, 64)):
        x, dy = b.normal(n, h, h, c), b.normal(n, 1, 1, c)
        y, dx = empty_like(dy), empty_like(x)
        theirs, backward = {}, {}
        outs = dict(zip(("nchw", "nhwc"), map(tensor_like, both_layouts(x)), strict=True))
        for key, t, g in zip(("nchw", "nhwc"), both_layouts(x), both_layouts(dy), strict=True):
            theirs[key] = lambda t=t: aten.mean(t, [2, 3], keepdim=True)
            backward[key] = lambda t=t, g=g, o=outs[key], h=h: torch.mul(
                g.expand(t.shape), 1 / (h * h), out=o
            )
        yield Case(
            f"global average {n}x{c}x{h}x{h}",
            lambda x=x, y=y: pooling.adaptive_avg_pool(b.pool, x, y),
            theirs,
            lambda x=x: x.mean((1, 2), dtype=np.float64)[:, None, None],
            lambda y=y: y,
            lambda theirs=theirs: theirs["nhwc"]().permute(0, 2, 3, 1).numpy(),
        )
        yield Case(
            f"global average grad {n}x{c}x{h}x{h}",
            lambda dy=dy, dx=dx: pooling.adaptive_avg_pool_grad(b.pool, dy, dx),
            backward,
        )


def _pooling(b: Bench, n: int, h: int, c: int, k: int, s: int, p: int) -> Iterator[Case]:
    oh = (h + 2 * p - k) // s + 1
    x, dy = b.normal(n, h, h, c), b.normal(n, oh, oh, c)
    y, dx, index = empty_like(dy), empty_like(x), scratch(dy.size).reshape(dy.shape)
    window = PoolGeometry((k, k), (s, s), (p, p, p, p))
    fwd, bwd, avg, avg_bwd = {}, {}, {}, {}
    for key, t, g in zip(("nchw", "nhwc"), both_layouts(x), both_layouts(dy), strict=True):
        o, i, gi = tensor_like(g), tensor_like(g, torch.int64), tensor_like(t)
        attributes = [k, k], [s, s], [p, p]
        fwd[key] = lambda t=t, o=o, i=i, a=attributes: aten.max_pool2d_with_indices.out(
            t, *a, out=o, indices=i
        )
        bwd[key] = lambda t=t, g=g, i=i, gi=gi, a=attributes: (
            aten.max_pool2d_with_indices_backward.grad_input(
                g, t, *a, [1, 1], False, i, grad_input=gi
            )
        )
        avg[key] = lambda t=t, o=o, a=attributes: aten.avg_pool2d.out(t, *a, out=o)
        avg_bwd[key] = lambda t=t, g=g, gi=gi, a=attributes: aten.avg_pool2d_backward.grad_input(
            g, t, *a, False, True, None, grad_input=gi
        )
    label = f"{k}x{k}/{s} {n}x{c}x{h}x{h}"
    yield Case(f"max pool {label}", lambda: pooling.max_pool(b.pool, x, y, index, window), fwd)
    yield Case(
        f"max pool grad {label}", lambda: pooling.max_pool_grad(b.pool, dy, index, dx, window), bwd
    )
    yield Case(f"avg pool {label}", lambda: pooling.avg_pool(b.pool, x, y, window), avg)
    yield Case(
        f"avg pool grad {label}", lambda: pooling.avg_pool_grad(b.pool, dy, dx, window), avg_bwd
    )


def loss_cases(b: Bench) -> Iterator[Case]:
    for rows, classes in ((64, 10), (256, 100), (512, 1000), (65536, 21)):
        yield from _cross_entropy(b, rows, classes)
    for size, label in ((1 << 12, "4 Ki"), (1 << 20, "1 Mi")):
        x, t, out = b.normal(size), b.normal(size), empty(1)
        tx, tt = tensors(x, t)
        space = scratch(workspace.reduction_workspace_bytes(size))
        for name, absolute, theirs, exact in (
            ("mse", False, torch.nn.functional.mse_loss, lambda d: d * d),
            ("l1", True, torch.nn.functional.l1_loss, abs),
        ):
            yield Case(
                f"{name} {label}",
                lambda a=absolute, x=x, t=t, out=out, s=space, n=size: losses.mean_error(
                    b.pool, x, t, out, 1 / n, a, s
                ),
                {"flat": lambda f=theirs, tx=tx, tt=tt: f(tx, tt)},
                lambda f=exact, x=x, t=t: np.array([f(x.astype(np.float64) - t).mean()]),
                lambda out=out: out,
                lambda f=theirs, tx=tx, tt=tt: np.array([float(f(tx, tt))]),
            )


def _cross_entropy(b: Bench, rows: int, classes: int) -> Iterator[Case]:
    z, labels = b.normal(rows, classes), b.rng.integers(0, classes, rows)
    z *= 3
    row_losses, lse, dz, out = empty(rows), empty(rows), empty_like(z), empty(1)  # fmt: skip
    space = scratch(workspace.reduction_workspace_bytes(rows))
    tz, tl = tensors(z, labels)
    logp, tdz = tensor_like(tz), tensor_like(tz)
    one = torch.ones(())

    def ours():
        losses.softmax_cross_entropy(b.pool, z, labels, row_losses, lse)
        valid = losses.valid_rows(labels)
        losses.total(b.pool, row_losses, out, 1 / valid, space)

    def our_gradient():
        losses.softmax_cross_entropy_grad(b.pool, z, labels, lse, dz, 1 / losses.valid_rows(labels))

    def theirs():
        aten._log_softmax.out(tz, 1, False, out=logp)
        return aten.nll_loss_forward(logp, tl, None, 1, -100)

    _, weight = theirs()

    def their_gradient():
        g = aten.nll_loss_backward(one, logp, tl, None, 1, -100, weight)
        return aten._log_softmax_backward_data.out(g, logp, 1, torch.float32, out=tdz)

    wide = z.astype(np.float64)
    top = wide.max(1, keepdims=True)
    log_p = wide - top - np.log(np.exp(wide - top).sum(1, keepdims=True))
    gradient = np.exp(log_p)
    gradient[np.arange(rows), labels] -= 1
    yield Case(
        f"cross entropy {rows}x{classes}",
        ours,
        {"flat": theirs},
        lambda: np.array([-log_p[np.arange(rows), labels].mean()]),
        lambda: out,
        lambda: np.array([float(theirs()[0])]),
    )
    yield Case(
        f"cross entropy grad {rows}x{classes}",
        our_gradient,
        {"flat": their_gradient},
        lambda: gradient / rows,
        lambda: dz,
        lambda: their_gradient().numpy(),
    )


def optimizer_cases(b: Bench) -> Iterator[Case]:
    scalars = {"lr": 1e-4, "step": 1}
    sgd = sgd_factors(SGDUpdate(momentum=0.9, weight_decay=5e-4), scalars)
    adam = adam_factors(AdamUpdate(), scalars)
    for size, label in (
        (1 << 12, "4 Ki"),
        (1 << 18, "256 Ki"),
        (2_400_000, "2.4 M"),
        (11_170_000, "11 M"),
    ):
        w, g, m, v = b.normal(size), b.normal(size), b.normal(size), abs(b.normal(size))
        tw, tg, tm, tv = (tensor_like(t).copy_(t) for t in tensors(w, g, m, v))
        step = [torch.ones(())]
        total = np.zeros((), np.float32)
        yield Case(
            f"sgd momentum {label}",
            lambda w=w, g=g, m=m: update.sgd(b.pool, w, g, m, w, m, sgd),
            {
                "fused": lambda tw=tw, tg=tg, tm=tm: torch._fused_sgd_(
                    [tw], [tg], [tm], weight_decay=5e-4, momentum=0.9, lr=1e-4, dampening=0.0,
                    nesterov=False, maximize=False, is_first_step=False,
                )
            },
        )  # fmt: skip
        yield Case(
            f"adam {label}",
            lambda w=w, g=g, m=m, v=v: update.adam(b.pool, w, g, m, v, w, m, v, adam),
            {
                "fused": lambda tw=tw, tg=tg, tm=tm, tv=tv, step=step: torch._fused_adam_(
                    [tw], [tg], [tm], [tv], [], step, lr=1e-4, beta1=0.9, beta2=0.999,
                    weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
                )
            },
        )  # fmt: skip
        space = scratch(workspace.reduction_workspace_bytes(size))
        yield Case(
            f"sum of squares {label}",
            lambda g=g, t=total, space=space: update.sum_of_squares(b.pool, g, t, space),
            {"norm": lambda tg=tg: float(torch.linalg.vector_norm(tg))},
            lambda g=g: np.array([(g.astype(np.float64) ** 2).sum()]),
            lambda t=total: t.reshape(1),
            lambda tg=tg: np.array([float(torch.linalg.vector_norm(tg)) ** 2]),
        )


def layout_cases(b: Bench) -> Iterator[Case]:
    for n, h, c in ((4, 8, 32), (64, 32, 64), (16, 56, 64)):
        x, y = b.normal(n, h, h, c), empty((n, h, h, 2 * c))
        half = empty((n, h // 2, h, c))
        tx, last = both_layouts(x)
        ty, ty_last = both_layouts(empty(y.shape))
        label = f"{n}x{c}x{h}x{h}"
        yield Case(
            f"concat 2 of {label}",
            lambda x=x, y=y: layout.concat_nhwc(b.pool, (x, x), y),
            {
                "nchw": lambda tx=tx, ty=ty: torch.cat([tx, tx], 1, out=ty),
                "nhwc": lambda last=last, ty=ty_last: torch.cat([last, last], 1, out=ty),
            },
        )
        yield Case(
            f"insert {label}",
            lambda x=x, y=y, c=c: layout.insert_nhwc(b.pool, x, y, 0, 0, 0, c),
            {
                "nchw": lambda tx=tx, ty=ty, c=c: ty[:, c:].copy_(tx),
                "nhwc": lambda last=last, ty=ty_last, c=c: ty[:, c:].copy_(last),
            },
        )
        t_half = both_layouts(half)
        yield Case(
            f"slice half the rows of {label}",
            lambda x=x, half=half: layout.slice_nhwc(b.pool, x, half, 0, 1, 0, 0),
            {
                key: lambda t=t, o=o, h=h: o.copy_(t[:, :, 1 : 1 + h // 2])
                for key, t, o in zip(("nchw", "nhwc"), (tx, last), t_half, strict=True)
            },
        )
        padded = empty((n, h + 2, h + 2, c))
        t_padded = both_layouts(padded)
        yield Case(
            f"pad 1 {label}",
            lambda x=x, padded=padded: layout.pad_nhwc(b.pool, x, padded, (1, 1, 1, 1)),
            {
                key: lambda t=t, o=o: aten.constant_pad_nd.out(t, [1, 1, 1, 1], 0.0, out=o)
                for key, t, o in zip(("nchw", "nhwc"), (tx, last), t_padded, strict=True)
            },
        )
    for n, c, h in ((64, 3, 32), (16, 3, 224), (64, 64, 32), (16, 256, 14)):
        x, y = b.normal(n, c, h, h), empty((n, h, h, c))
        (tx,), ty = tensors(x), both_layouts(empty_like(y))[1]
        yield Case(
            f"nchw to nhwc {n}x{c}x{h}x{h}",
            lambda x=x, y=y: layout.nchw_to_nhwc(b.pool, x, y),
            {"copy_": lambda tx=tx, ty=ty: ty.copy_(tx)},
        )
    for n, h, c in ((64, 1, 4096), (64, 32, 64)):
        x, y = b.normal(n, h, h, c), empty((n, h, h, c))
        (tx,) = tensors(x)
        mask, ty = tensor_like(tx, torch.bool), tensor_like(tx)
        yield Case(
            f"dropout {n}x{c}x{h}x{h}",
            lambda x=x, y=y: dropout.dropout(b.pool, x, y, Dropout(0.5, 3), 1),
            {
                "native": lambda tx=tx, ty=ty, mask=mask: aten.native_dropout.out(
                    tx, 0.5, True, out0=ty, out1=mask
                )
            },
        )
    for mebibytes in (1, 64):
        x, y = scratch(mebibytes << 20), scratch(mebibytes << 20)
        x[...] = b.rng.integers(0, 255, x.size, dtype=np.uint8)
        yield Case(
            f"copy {mebibytes} MiB, one thread",
            lambda x=x, y=y: copy.stream_copy(y, x),
            {"memcpy": lambda x=x, y=y: np.copyto(y, x)},
        )


GROUPS = (
    elementwise_cases,
    batch_norm_cases,
    pooling_cases,
    loss_cases,
    optimizer_cases,
    layout_cases,
)


def race(case: Case, rounds: int) -> dict[str, tuple[float, float]]:
    """(median, least) seconds per call of each contestant, samples interleaved."""
    runners = {"ours": case.ours, **case.theirs}
    repeats, samples = {}, {key: [] for key in runners}
    for key, run in runners.items():
        _calls_within(run, WARM_S)
        repeats[key] = _calls_within(run, SAMPLE_S)
    for _ in range(rounds):
        for key, run in runners.items():
            time.sleep(GAP_S)
            _calls_within(run, WARM_S)
            samples[key].append(_seconds(run, repeats[key]))
    return {key: (statistics.median(values), min(values)) for key, values in samples.items()}


def _calls_within(run: Callable[[], object], seconds: float) -> int:
    """Calls until the time is over; how often."""
    calls, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        run()
        calls += 1
    return calls


def _seconds(run: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def error(exact: np.ndarray, result: np.ndarray) -> float:
    """Root mean square error, relative to the root mean square of the exact values."""
    difference = np.asarray(result, np.float64).reshape(exact.shape) - exact
    return float(np.sqrt((difference**2).mean() / max((exact**2).mean(), 1e-300)))


def measure(case: Case, rounds: int) -> dict[str, object]:
    """One row of the table."""
    row: dict[str, object] = {"case": case.name}
    if case.exact is not None:
        exact = case.exact()
        case.ours()
        for run in case.theirs.values():
            run()
        row["error_ours"] = error(exact, case.our_result())
        row["error_torch"] = error(exact, case.their_result())
    seconds = race(case, rounds)
    row |= {f"{key}_us": median * 1e6 for key, (median, _) in seconds.items()}
    for name, which in (("ratio", 0), ("ratio_of_best", 1)):
        torch_s = min(value[which] for key, value in seconds.items() if key != "ours")
        row[name] = torch_s / seconds["ours"][which]
    return row


def show(row: dict[str, object]) -> None:
    times = "  ".join(f"{k[:-3]} {v:9.1f}" for k, v in row.items() if k.endswith("_us"))
    errors = (
        f"  err {row['error_ours']:.1e} / {row['error_torch']:.1e}" if "error_ours" in row else ""
    )
    print(
        f"{row['case']:36s} {row['ratio']:6.2f}x (best {row['ratio_of_best']:5.2f}x)"
        f"  us: {times}{errors}",
        flush=True,
    )


def reason_for(case: str) -> str:
    """The stated reason of a case below 1; empty if there is none."""
    return next((reason for part, reason in REASONS.items() if part in case), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--json", help="write all rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    bench = Bench(ThreadPool(options.threads))
    rows = []
    for group in GROUPS:
        for case in group(bench):
            if options.only in case.name:
                rows.append(measure(case, options.rounds))
                show(rows[-1])
    slower = [row["case"] for row in rows if row["ratio"] < 1]
    reasons = {case: reason_for(case) for case in slower}
    for case, reason in reasons.items():
        print(f"below 1: {case}: {reason or 'no reason known'}")
    unknown = sum(not reason for reason in reasons.values())
    close = sum(row["ratio"] >= 1 - NOISE for row in rows if row["ratio"] < 1)
    print(
        f"{len(rows)} cases, {len(slower)} slower than torch's best, {close} of them by less than "
        f"{NOISE:.0%}, {unknown} of them unexplained"
    )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {
                    "version": 1,
                    "threads": options.threads,
                    "torch": torch.__version__,
                    "rows": rows,
                },
                file,
            )


if __name__ == "__main__":
    main()
