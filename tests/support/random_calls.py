"""Random traces of real operations, where rewrites meet cases that are rare in networks.

A trace of small images and vectors, drawn from a `random.Random`, has everything that `fuse` looks
for (norms, sums, ReLUs and their gradients) and everything that it must leave alone: inputs that
are read twice, gradients with readers of all kinds, values that are handed out. A call takes its
inputs from any of the last few values, so that patterns meet in every way. Read next:
`strict_storage.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ooctrain.layers.batch_norm import BatchNormApply, BatchNormGradApply, BatchNormGradReduce
from ooctrain.layers.combine import Add, AddMasked, Scale
from ooctrain.layers.instance_norm import InstanceNormApply, InstanceNormGradReduce
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.layout import Reshape
from ooctrain.layers.relu import ReLU, ReLUGrad
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import Kind, Trace

IMAGE, CHANNELS = (2, 3, 2, 2), (3,)
OF_IMAGE = IMAGE[:2]


class _Writer:
    """Writes calls over the values that there are, by their shape."""

    def __init__(self, rng: random.Random):
        self.rng, self.builder = rng, TraceBuilder(threads=1)
        self.images = [self._initial("x", IMAGE, "input"), self._initial("w", IMAGE, "param")]
        self.vectors = [self._initial(f"v{n}", CHANNELS, "param") for n in range(4)]
        self.of_images = [self._initial(f"s{n}", OF_IMAGE, "state") for n in range(2)]
        self.rectified = [self.call(ReLU(), self.images[0])]

    def _initial(self, name: str, shape: tuple[int, ...], kind: Kind) -> int:
        return self.builder.variable(name, shape, kind=kind)

    def image(self) -> int:
        """One of the last images; the last one most often."""
        return self.images[-1] if self.rng.random() < 0.5 else self.rng.choice(self.images[-4:])

    def mask(self) -> int:
        """What a ReLU gave."""
        return self.rng.choice(self.rectified[-2:])

    def call(self, op: Op, *ins: int) -> int:
        """A call; its first image is known to those after it."""
        specs_in = [self._spec(v) for v in ins]
        specs = op.infer(*specs_in)
        name = f"{op.name}{len(self.builder.calls)}"
        outs = tuple(self.builder.variable(f"{name}.out", s.shape, s.dtype) for s in specs)
        space_bytes = CPU.workspace_bytes(op, specs_in, specs, 1)
        self.builder.call(name, op, ins, outs, workspace_bytes=space_bytes)
        self.images += [v for v in outs if self.builder.variables[v].shape == IMAGE]
        return outs[0]

    def _spec(self, variable: int) -> Spec:
        found = self.builder.variables[variable]
        return Spec(found.shape, found.dtype)

    def write(self, calls: int) -> Trace:
        """So many calls; some of what they write is handed out."""
        kinds: list[Callable[[], None]] = [
            self._norm, self._norm_sum_relu, self._relu, self._sum, self._relu_grad,
            self._relu_grad, self._norm_grad, self._masked, self._other,
        ]  # fmt: skip
        for _ in range(calls):
            self.rng.choice(kinds)()
        written = [v for call in self.builder.calls for v in call.outs]
        chosen = {v for v in written if self.rng.random() < 0.15} | {written[-1]}
        self.builder.outputs = {f"out{v}": v for v in sorted(chosen)}
        return self.builder.build()

    def _norm(self) -> None:
        if self.rng.random() < 0.7:
            self.call(BatchNormApply(batch_stats=False), self.image(), *self.vectors)
        else:
            self.call(InstanceNormApply(False), self.image(), *self.of_images)

    def _norm_sum_relu(self) -> None:
        self._norm()
        terms = [self.images[-1], self.image()]
        self.rng.shuffle(terms)
        self.call(Add(), *terms)
        self._relu()

    def _relu(self) -> None:
        self.rectified.append(self.call(ReLU(), self.image()))

    def _sum(self) -> None:
        self.call(Add(), self.image(), self.image())

    def _relu_grad(self) -> None:
        """Its gradient is read by one or two calls, some of which can mask it themselves."""
        dz = self.call(ReLUGrad(), self.image(), self.mask())
        readers = [
            lambda: self.call(Add(), dz, self.image()), lambda: self.call(Add(), self.image(), dz),
            lambda: self.call(Add(), dz, dz), lambda: self.call(Scale(0.5), dz),
            lambda: self._norm_grad(dz), lambda: self._norm_grad(self.image(), dz),
            lambda: self.call(ReLUGrad(), dz, self.mask()),
        ]  # fmt: skip
        for _ in range(self.rng.randint(1, 2)):
            self.rng.choice(readers)()

    def _norm_grad(self, dy: int | None = None, x: int | None = None) -> None:
        dy, x = self.image() if dy is None else dy, self.image() if x is None else x
        mean, inv_std, gamma, _ = self.vectors
        kind = self.rng.randrange(3)
        if kind == 0:
            self.call(BatchNormGradReduce(), dy, x, mean, inv_std)
        elif kind == 1:
            self.call(BatchNormGradApply(batch_stats=False), dy, x, mean, inv_std, gamma)
        else:
            self.call(InstanceNormGradReduce(), dy, x, *self.of_images)

    def _masked(self) -> None:
        self.call(AddMasked(), self.image(), self.image(), self.mask())

    def _other(self) -> None:
        if self.rng.random() < 0.5:
            self.call(Scale(-1.5), self.image())
        else:
            flat = self.call(Reshape(IMAGE, (2, 12)), self.image())
            self.call(Reshape((2, 12), IMAGE), flat)


def random_calls(rng: random.Random, calls: int = 6) -> Trace:
    """A trace of `calls` random calls, or some more."""
    return _Writer(rng).write(calls)
