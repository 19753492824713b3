"""A batch that is evaluated in parts, where the whole of it does not fit.

An evaluation in which each sample has its answer by itself has the same answers in any parts. So
what is refused as a whole is tried in halves, halves of these, and so on down to one sample. Where
samples are mixed (statistics of the batch, a sum over it), or the loss is no sum of known terms,
the parts would answer another question, and the refusal stands. Parts are planned in a moment, and
bands of a layer have thousands of calls; so where Python's objects of a list count as memory, bands
are the last that is tried. Outputs of parts are those of the whole batch, up to rounding where a
convolution of few tiles has another algorithm (`../layers/conv_algorithms.py`); how losses are
averaged says `evaluation.py`. Read next: `../train.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ooctrain.engine.nested import put_in_place
from ooctrain.errors import ConfigError, DoesNotFit, Infeasible
from ooctrain.execution.evaluation import Averages, Evaluation, summed_terms
from ooctrain.execution.sessions import Images, as_images, expect_batch
from ooctrain.layers.arithmetic import Arithmetic, BytesToFloat
from ooctrain.layers.average_pooling import AdaptiveAvgPool2d, AvgPool2d
from ooctrain.layers.batch_norm import BatchNormApply
from ooctrain.layers.combine import Concat
from ooctrain.layers.conv2d import Conv2d
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.instance_norm import InstanceNormApply, InstanceNormStats
from ooctrain.layers.layout import ConstantPad, Pad, Reshape
from ooctrain.layers.linear import Linear
from ooctrain.layers.permute import Permute
from ooctrain.layers.pooling import MaxPool2d
from ooctrain.layers.reduction import Spread, Sum
from ooctrain.layers.reflection import ReflectionPad2d
from ooctrain.layers.regions import Insert, Slice
from ooctrain.layers.relu import Pointwise
from ooctrain.layers.softmax import SoftmaxAlong
from ooctrain.layers.upsample import Upsample
from ooctrain.step.foreign import as_target
from ooctrain.step.op import Op
from ooctrain.step.trace import Call, Trace

#: An evaluation step of (x, y, samples of the whole batch, whether bands may be tried): its trace,
#: and what it gave.
Forward = Callable[[Images, np.ndarray | None, int, bool], tuple[Trace, dict[str, np.ndarray]]]
#: Its trace, what it gave, and its targets.
Answer = tuple[Trace, dict[str, np.ndarray], Any]
#: Each sample by itself, if all else that is read is no sample.
EACH_IMAGE = (
    Conv2d, ConvTranspose2d, Linear, BatchNormApply, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d,
    Upsample, Pad, ConstantPad, ReflectionPad2d, InstanceNormStats,
)  # fmt: skip
#: Element by element, of several samples too.
EACH_ELEMENT = (Pointwise, Arithmetic, BytesToFloat, Dropout, InstanceNormApply)


class InParts:
    """Evaluates batches, those that do not fit in parts.

    Args:
        forward: evaluates one part; it raises `Infeasible` or `DoesNotFit` before it has begun.
        trace: of such a part, as a network makes it.
        bands_last: whether bands are tried only where no parts fit without.
    """

    def __init__(
        self, forward: Forward, trace: Callable[[Images, np.ndarray | None], Trace], *,
        bands_last: bool = False,
    ):  # fmt: skip
        self._forward, self._trace, self._bands_first = forward, trace, not bands_last
        #: samples of a part and whether in bands, by whether a batch can be cut and the shape
        self._most: dict[tuple[bool | int, ...], tuple[int, bool]] = {}
        #: the last refusal that was met by smaller parts
        self.refusal: Infeasible | DoesNotFit | None = None

    def of(self, x: Images, y: np.ndarray | None) -> Iterator[Answer]:
        """The answers of a batch, part by part, each with its targets.

        Raises:
            Infeasible, DoesNotFit: not even one sample fits, or samples are mixed.
        """
        expect_batch(x.shape)
        whole, at = x.shape[0], 0
        can_be_cut = isinstance(x, np.ndarray) and (y is None or y.shape[:1] == (whole,))
        shape = can_be_cut, *x.shape[1:]
        while at < whole or whole == 0:
            most, bands = self._most.get(shape, (whole, self._bands_first))
            size = min(most, whole - at) if can_be_cut else whole
            part, target = (x, y) if size == whole else _cut(x, y, slice(at, at + size))
            try:
                trace, found = self._forward(part, target, whole, bands)
            except (Infeasible, DoesNotFit) as refusal:
                if size > 1 and can_be_cut and self._apart(part, target):
                    self.refusal, self._most[shape] = refusal, (-(-size // 2), bands)
                elif not bands:
                    self._most[shape] = size, True
                else:
                    raise
                continue
            yield trace, found, target
            at += size
            if whole == 0:
                return

    def _apart(self, x: Images, y: np.ndarray | None) -> bool:
        """Whether the answers of samples are those of their parts."""
        trace = self._trace(x, y)
        terms = [] if y is None else summed_terms(trace, y)
        return terms is not None and samples_apart(
            trace,
            [*(v for name, v in trace.outputs.items() if name != "loss"),
             *(v for term in terms for v in term.ins[:2])],
        )  # fmt: skip

    def averages(self, batches: Iterable[tuple[Any, Any]], ignored: int) -> Evaluation:
        """Of all batches; see `Averages`.

        Raises:
            ConfigError: there is no batch, or the loss's terms have no common average.
            Infeasible, DoesNotFit: a batch does not fit, nor do parts of it.
        """
        averages = Averages(ignored)
        for x, y in batches:
            x = as_images(x)
            for trace, outputs, target in self.of(x, as_target(y, rows=next(iter(x.shape), None))):
                averages.add(trace, outputs, target)
        try:
            return averages.result()
        except ConfigError as error:  # perhaps it is parts of one batch that have no average
            raise self.refusal or error from None

    def output(self, x: Images) -> Any:
        """The output of a whole batch, in the form that the model gives it."""
        traces, parts, _ = zip(*self.of(x, None), strict=True)
        found = {
            name: parts[0][name] if len(parts) == 1 else np.concatenate([p[name] for p in parts])
            for name in parts[0]
        }
        form = traces[0].form
        return found["output"] if "output" in found else put_in_place(form, found)


def _cut(x: Any, y: np.ndarray | None, samples: slice) -> tuple[np.ndarray, np.ndarray | None]:
    return x[samples], None if y is None else y[samples]


def samples_apart(trace: Trace, wanted: Sequence[int]) -> bool:
    """Whether the wanted values of an evaluation have what belongs to each sample in its row,
    whatever the other samples are. What is not known to be so counts as mixed. Cost: O(calls).

    By induction: the first axis of each value that depends on the batch is that of its samples.
    """
    inputs = (v for v in trace.initial if trace.variables[v].name in ("input", "target"))
    samples, needed = set(inputs), _needed(trace, wanted)
    for call in trace.calls:
        if call.id in needed and samples.intersection(call.ins):
            if not _apart(trace, call, samples):
                return False
            samples.update(call.outs)
    return samples.issuperset(wanted)


def _needed(trace: Trace, wanted: Sequence[int]) -> set[int]:
    """Calls on the way to these values."""
    values, calls = set(wanted), set[int]()
    for call in reversed(trace.calls):
        if values.intersection(call.outs):
            calls.add(call.id)
            values.update(call.ins)
    return calls


def _apart(trace: Trace, call: Call, samples: set[int]) -> bool:
    op, variables = call.op, trace.variables
    read = [position for position, v in enumerate(call.ins) if v in samples]
    shapes = [variables[v].shape for v in call.ins]
    if isinstance(op, EACH_ELEMENT):
        rank = max(map(len, shapes))  # the output's: others are repeated along its first axes
        return isinstance(op, InstanceNormApply) or all(
            len(shape) == rank if position in read else len(shape) < rank or shape[0] == 1
            for position, shape in enumerate(shapes)
        )
    if isinstance(op, EACH_IMAGE) or (isinstance(op, Op) and op.window() is not None):
        return read == [0]
    return _axis_is_kept(op, [*shapes, *(variables[v].shape for v in call.outs)])


def _axis_is_kept(op: Any, shapes: list[tuple[int, ...]]) -> bool:
    """Whether an operation that works along axes leaves that of the samples alone.

    Args:
        shapes: of its inputs and outputs.
    """
    match op:
        case Sum(axes=axes):
            return 0 not in axes
        case SoftmaxAlong(axis=axis) | Concat(axis=axis):
            return axis != 0
        case Permute(axes=axes):
            return axes[0] == 0
        case Reshape() | Slice() | Insert() | Spread():
            return len({shape[0] for shape in shapes}) == 1
    return False
