"""tape: a training step is a list of calls, and its gradient is more calls on the same list.

A network is recorded here, not computed. Each call notes its operation and the names of the values
that it reads; the value that it writes has the name of the call. `backward` walks the list from its
end and appends the calls of the gradient. What these read must survive from the forward pass until
then: that is why training needs so much memory, and what all other files are about. A call never
changes what it reads, so it may run again, and then gives the same bits.

Grown-up rooms: `ooctrain/engine` (tape and backward), `ooctrain/layers` (operations). They also
have scratch memory, operations that overwrite an input, running statistics, dropout, and kernels
for all cores and for a GPU. Read next: steplist.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ITEM_BYTES = 4  # every number is a float32
BYTES_PER_NS = 1  # a call takes as long as its machine needs to touch all that it reads and writes


@dataclass(frozen=True)
class Call:
    """One line of the step: it computes the value `name`."""

    name: str
    reads: tuple[str, ...]
    time_ns: int
    function: Callable | None = None  # from arrays to an array


@dataclass(frozen=True)
class Step:
    """A training step as data: all that planners, verifier and simulator know about it.

    Args:
        calls: in the order in which they run.
        size: {value: bytes}.
        on_device, on_host: what is where before the step: parameters, and inputs.
        lasting: {parameter: the value that takes its place in the next step}.
        turn: number of calls in the forward pass; the loss comes next.
    """

    calls: tuple[Call, ...]
    size: dict[str, int]
    on_device: tuple[str, ...]
    on_host: tuple[str, ...]
    lasting: dict[str, str]
    turn: int


class Tape:
    """Records a network, and differentiates it.

    Attributes:
        shapes: {value: shape}.
        gradient: {value: name of its gradient}, filled by `backward`.
    """

    def __init__(self):
        self.calls, self.shapes, self.gradient = [], {}, {}
        self.inputs, self.parameters, self.lasting = [], [], {}
        self._forward = []  # (operation, names of its inputs, name of its output)
        self._trained = set()  # values that depend on a parameter; others need no gradient

    def input(self, name, *shape):
        """A value that comes from the host in every step, such as images or labels."""
        self.inputs.append(name)
        self.shapes[name] = shape
        return name

    def parameter(self, name, *shape):
        """A value that the step updates."""
        self.parameters.append(name)
        self.shapes[name] = shape
        self._trained.add(name)
        return name

    def call(self, name, op, *inputs):
        """Records an operation of the forward pass; returns the name of its output."""
        self._forward.append((op, inputs, name))
        if not self._trained.isdisjoint(inputs):
            self._trained.add(name)
        shape = op.shape(*(self.shapes[value] for value in inputs))
        return self._append(name, shape, inputs, op.run)

    def backward(self, loss):
        """Appends the gradient of the loss with respect to every value that needs one."""
        self.turn = [call.name for call in self.calls].index(loss)
        for op, inputs, output in reversed(self._forward):
            if output != loss and output not in self.gradient:
                continue  # the loss does not depend on it
            roles = dict(zip(op.inputs, inputs, strict=True))
            values = roles | {"y": output, "dy": self.gradient.get(output)}
            for role, value in roles.items():
                if value in self._trained:
                    reads = [values[read] for read in op.gradient_reads[role]]
                    self._add_gradient(value, f"{output}.d{role}", reads, getattr(op, f"d{role}"))

    def _add_gradient(self, value, name, reads, function):
        """Appends a gradient of a value. A value that is used twice has two: they add up."""
        shape = self.shapes[value]
        self._append(name, shape, reads, function)
        if value in self.gradient:
            both = (self.gradient[value], name)
            name = self._append(f"{name} and others", shape, both, np.add)
        self.gradient[value] = name

    def update(self, rate):
        """Appends gradient descent: each parameter w gets a successor, w' = w - rate * dw."""

        def descend(w, dw):
            return w - np.float32(rate) * dw

        for w in self.parameters:
            reads = (w, self.gradient[w])
            self.lasting[w] = self._append(f"{w}'", self.shapes[w], reads, descend)

    def _append(self, name, shape, reads, function):
        assert name not in self.shapes, f"{name} is written twice"
        self.shapes[name] = shape
        touched = sum(self.bytes_of(value) for value in (*reads, name))
        self.calls.append(Call(name, tuple(reads), touched // BYTES_PER_NS, function))
        return name

    def bytes_of(self, value):
        return ITEM_BYTES * int(np.prod(self.shapes[value]))

    def step(self):
        """The whole step as data."""
        size = {value: self.bytes_of(value) for value in self.shapes}
        at_start = tuple(self.parameters), tuple(self.inputs)
        return Step(tuple(self.calls), size, *at_start, self.lasting, self.turn)


# The operations. `run` computes the output y from the inputs; dx, dw and db compute the gradients
# of the inputs from what `gradient_reads` names, where dy is the gradient of y. Images have the
# shape (N, C, H, W).


@dataclass(frozen=True)
class Conv:
    """y[n, k, h, w] = b[k] + sum of w[k, c, r, s] * x[n, c, h + r, w + s] over c, r and s.

    Args:
        kernel: odd. Columns of zeros are added so that the width stays what it is.
        top, bottom: rows of zeros that are added above and below the image.
    """

    kernel: int = 3
    top: int = 1
    bottom: int = 1
    inputs = ("x", "w", "b")
    gradient_reads = {"x": ("w", "dy"), "w": ("x", "dy"), "b": ("dy",)}

    def shape(self, x, w, b):
        n, _, height, width = x
        return n, w[0], height + self.top + self.bottom - self.kernel + 1, width

    def run(self, x, w, b):
        y = np.zeros(self.shape(x.shape, w.shape, b.shape), x.dtype)
        for r, s, part in self._parts(self._padded(x), y.shape):
            y += np.einsum("kc, nchw -> nkhw", w[:, :, r, s], part, optimize=True)
        return y + b[:, None, None]

    def dx(self, w, dy):
        n, _, rows, width = dy.shape
        edge = self.kernel // 2
        padded = np.zeros((n, w.shape[1], rows + 2 * edge, width + 2 * edge), dy.dtype)
        for r, s, part in self._parts(padded, dy.shape):
            part += np.einsum("kc, nkhw -> nchw", w[:, :, r, s], dy, optimize=True)
        return padded[:, :, self.top : rows + 2 * edge - self.bottom, edge : edge + width]

    def dw(self, x, dy):
        dw = np.zeros((dy.shape[1], x.shape[1], self.kernel, self.kernel), dy.dtype)
        for r, s, part in self._parts(self._padded(x), dy.shape):
            dw[:, :, r, s] = np.einsum("nkhw, nchw -> kc", dy, part, optimize=True)
        return dw

    def db(self, dy):
        return dy.sum((0, 2, 3))

    def _padded(self, x):
        edge = self.kernel // 2
        return np.pad(x, ((0, 0), (0, 0), (self.top, self.bottom), (edge, edge)))

    def _parts(self, padded, shape):
        """(r, s, the pixels that the weights at (r, s) are multiplied by), as views."""
        for r in range(self.kernel):
            for s in range(self.kernel):
                yield r, s, padded[:, :, r : r + shape[2], s : s + shape[3]]


class MaxPool:
    """y is the largest of each 2 x 2 pixels; the gradient goes to the first one that equals it."""

    inputs = ("x",)
    gradient_reads = {"x": ("x", "dy")}
    corners = ((0, 0), (0, 1), (1, 0), (1, 1))

    def shape(self, x):
        return *x[:2], x[2] // 2, x[3] // 2

    def run(self, x):
        return np.maximum.reduce([x[:, :, r::2, s::2] for r, s in self.corners])

    def dx(self, x, dy):
        y, dx = self.run(x), np.zeros_like(x)
        searching = np.ones(y.shape, bool)
        for r, s in self.corners:
            found = searching & (x[:, :, r::2, s::2] == y)
            dx[:, :, r::2, s::2] = found * dy
            searching &= ~found
        return dx


class BatchNorm:
    """Gives each channel mean 0 and variance 1 over the batch, then the scale w and the shift b."""

    inputs = ("x", "w", "b")
    gradient_reads = {"x": ("x", "w", "dy"), "w": ("x", "dy"), "b": ("dy",)}

    def shape(self, x, w, b):
        return x

    def run(self, x, w, b):
        normal, _ = self._normal(x)
        return w[:, None, None] * normal + b[:, None, None]

    def dx(self, x, w, dy):
        # Mean and deviation depend on x, too; the two terms that are subtracted come from there.
        normal, deviation = self._normal(x)
        dnormal = w[:, None, None] * dy
        return (dnormal - self._mean(dnormal) - normal * self._mean(dnormal * normal)) / deviation

    def dw(self, x, dy):
        normal, _ = self._normal(x)
        return (dy * normal).sum((0, 2, 3))

    def db(self, dy):
        return dy.sum((0, 2, 3))

    def _normal(self, x):
        centred = x - self._mean(x)
        deviation = np.sqrt(self._mean(centred**2) + np.float32(1e-5))
        return centred / deviation, deviation

    def _mean(self, x):
        return x.mean((0, 2, 3), keepdims=True)


class ReLU:
    """y = max(x, 0). The gradient reads y instead of x, so x may go as soon as y is there."""

    inputs = ("x",)
    gradient_reads = {"x": ("y", "dy")}

    def shape(self, x):
        return x

    def run(self, x):
        return np.maximum(x, 0)

    def dx(self, y, dy):
        return dy * (y > 0)


class Linear:
    """y = x w^T + b, where each image of x is one long row."""

    inputs = ("x", "w", "b")
    gradient_reads = {"x": ("w", "dy"), "w": ("x", "dy"), "b": ("dy",)}

    def shape(self, x, w, b):
        return x[0], w[0]

    def run(self, x, w, b):
        return x.reshape(len(x), -1) @ w.T + b

    def dx(self, w, dy):
        return dy @ w  # long rows, too; they are stored in the shape of x

    def dw(self, x, dy):
        return dy.T @ x.reshape(len(x), -1)

    def db(self, dy):
        return dy.sum(0)


class CrossEntropy:
    """The loss: -log(probability of the right class), averaged over the batch.

    `labels` has a row for each image: a 1 at the right class, 0 elsewhere.
    """

    inputs = ("x", "labels")
    gradient_reads = {"x": ("x", "labels")}

    def shape(self, x, labels):
        return ()

    def run(self, x, labels):
        return -(labels * np.log(self._probabilities(x))).sum() / np.float32(len(x))

    def dx(self, x, labels):
        return (self._probabilities(x) - labels) / np.float32(len(x))

    def _probabilities(self, x):
        powers = np.exp(x - x.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)
