"""Evaluation of a data set as if it were one batch, however small the parts that fit.

The results of the evaluation steps, one for each batch, are combined into an `Evaluation`. A
batch's loss is a mean over the labels that count (by their weights), a mean over its elements, or a
sum. The trace says which, so the batches' losses are averaged with exactly these weights, and sums
are added (`Averages`). A batch that does not fit is evaluated in parts (`InParts`). Source: ours.
Read next: `../train.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np

from ooctrain.engine.nested import put_in_place
from ooctrain.errors import ConfigError, DoesNotFit, Infeasible, ShapeError, TrainingStopped, warn
from ooctrain.execution.sessions import Images, as_images, expect_batch, value_on_host
from ooctrain.layers.arithmetic import Arithmetic
from ooctrain.layers.combine import Add, Scale
from ooctrain.layers.layout import Reshape
from ooctrain.layers.losses import ClassLoss, LabelWeight, MeanError, ValueLoss
from ooctrain.layers.reduction import Sum
from ooctrain.step.op import Op
from ooctrain.step.trace import Call, Trace
from ooctrain.step.user_values import as_target

#: How far weights of two terms may be from a constant ratio: roundings of their sums.
_ROUNDING = 1e-9
#: The label that cross-entropy ignores by default, as in PyTorch.
_IGNORED = -100


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Averages over a data set. `accuracy` is None where no target is a class that counts, such as
    a number to be predicted, and of a model with several outputs, or one value for each sample."""

    loss: float
    accuracy: float | None
    samples: int


def pair_of(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch.

    Raises:
        ConfigError: it is not a pair, such as images alone; or a sample, as a data set gives it.
    """
    if not (isinstance(batch, Sequence) and len(batch) == 2):
        raise ConfigError(
            f"a batch of type {type(batch).__name__} is not a pair (x, y)", code="OOC-106",
            fix="a list of (images, labels), or a DataLoader; of mixup and CutMix (images, class "
            "probabilities), lam * eye[ya] + (1 - lam) * eye[yb]",
        )  # fmt: skip
    is_one = isinstance(batch[1], Integral) or getattr(batch[1], "shape", None) == ()
    if is_one and np.ndim(batch[0]) in (1, 3):  # features, or an image
        raise ShapeError(
            "a single sample is not a batch",
            numbers=f"one target, for numbers of shape {np.shape(batch[0])}",
            fix="data.DataLoader(dataset, batch_size=32) in place of the data set",
        )  # fmt: skip
    return batch[0], batch[1]


def ignored_by(loss: Any) -> int:
    """The label that a loss ignores."""
    return getattr(loss, "ignore_index", _IGNORED)


def expect_labels(loss: float, y: np.ndarray, ignored: int, step: int) -> None:
    """Raises TrainingStopped: the loss is not a number, since no label of the batch counts."""
    if math.isfinite(loss) or y.dtype.kind not in "iu" or not y.size or np.any(y != ignored):
        return
    raise TrainingStopped(
        f"all {y.size} labels of step {step} are ignored ({ignored}), so the loss is {loss}",
        step=step, fix="leave such batches out; the step has changed nothing",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch's loss, and by how much each mean in it counts; `sums`: there are sums in it."""

    loss: float
    weights: tuple[float, ...]
    sums: bool


def _are_classes(output: np.ndarray, target: np.ndarray) -> bool:
    """Whether the target counts classes among which the output chooses."""
    fits = output.ndim == target.ndim + 1 and output.shape[1] > 1
    return fits and target.dtype.kind in "iu"


@dataclass
class Averages:
    """Sums up batches.

    Args:
        ignored: the label that is neither a hit nor a miss.
    """

    ignored: int
    _batches: list[_Batch] = field(default_factory=list, init=False)
    _samples: int = field(default=0, init=False)
    _hits: int = field(default=0, init=False)
    _judged: int = field(default=0, init=False)
    _classes: bool = field(default=True, init=False)

    def add(self, trace: Trace, outputs: Mapping[str, np.ndarray], y: np.ndarray) -> None:
        """Adds a batch.

        Args:
            outputs: its "loss" and "output", or what its output consists of.

        Raises:
            ConfigError: the loss is not one number.
        """
        output, loss, target = outputs.get("output"), outputs["loss"], np.asarray(y)
        if loss.size != 1:
            raise ConfigError(
                f"the loss of an evaluation is one number, not of shape {loss.shape}",
                code="OOC-106", fix='reduction="mean" or "sum"',
            )  # fmt: skip
        terms = list(_terms(trace, target))
        weights = tuple(weight for weight in terms if weight is not None)
        # A loss of other operations is taken for a mean over samples.
        weights = weights if terms else (float(len(target)),)
        self._batches.append(_Batch(float(loss.reshape(())), weights, len(weights) < len(terms)))
        self._samples += len(target)
        # With several outputs it is not known which one predicts the class.
        self._classes &= output is not None and _are_classes(output, target)
        if self._classes and output is not None:
            counts = target != self.ignored
            self._hits += int(((output.argmax(axis=1) == target) & counts).sum())
            self._judged += int(counts.sum())

    def result(self) -> Evaluation:
        """The averages.

        Raises:
            ConfigError: there was no batch, or no weights make one loss of the batches' ones.
        """
        if not self._batches:
            raise ConfigError(
                "the data set to evaluate is empty",
                code="OOC-106",
                fix="one batch at least; a generator that has been read once is empty",
            )
        accuracy = self._hits / self._judged if self._classes and self._judged else None
        return Evaluation(self._loss(), accuracy, self._samples)

    def _loss(self) -> float:
        first = self._batches[0]
        if not any(any(batch.weights) or batch.sums for batch in self._batches):
            warn("all labels of the data set are ignored: no loss, no accuracy")
        if len(self._batches) == 1:
            return first.loss
        if not any(batch.weights for batch in self._batches):
            return sum(batch.loss for batch in self._batches)
        if any(batch.sums for batch in self._batches) or not self._in_proportion():
            raise ConfigError(
                "the terms of the loss are means over different numbers of labels or values, or "
                "sums besides means: batches have no common average", code="OOC-106",
                fix="evaluate one batch, or each term by itself",
            )  # fmt: skip
        # A batch without any label has no mean, and counts nothing.
        parts = [(b.loss * b.weights[0], b.weights[0]) for b in self._batches if b.weights[0]]
        whole = sum(weight for _, weight in parts)
        return sum(loss for loss, _ in parts) / whole if parts else float("nan")

    def _in_proportion(self) -> bool:
        """Whether the means of a batch count by the same share of all batches."""
        table = np.array([batch.weights for batch in self._batches])
        shares = table / np.maximum(table.sum(axis=0), np.finfo(float).tiny)
        return bool(np.allclose(shares, shares[:, :1], rtol=_ROUNDING, atol=_ROUNDING))


def summed_terms(trace: Trace, target: np.ndarray) -> list[Call] | None:
    """The terms whose sum the loss of an evaluation is, each times a constant; so averages of parts
    are those of the whole. None where it is made of them in another way, or of no known one.

    What depends on no sample, such as a penalty of the weights, may be added if all are means.
    """
    terms, weights = [], list(_terms(trace, target))
    batch = _of_batch(trace)

    def is_sum(v: int) -> bool:
        if v not in batch:
            return None not in weights
        call = trace.calls[trace.producer[v] or 0]
        match call.op:
            case ClassLoss() | MeanError() | ValueLoss():
                terms.append(call)
                return call.op.reduction != "none" and v == call.outs[0]
            case Add(relu=False) | Arithmetic(function="add" | "subtract"):
                return all(map(is_sum, call.ins))
            case Arithmetic(function="divide"):
                divisor = trace.producer[call.ins[1]]
                labels = divisor is not None and isinstance(trace.calls[divisor].op, LabelWeight)
                return labels and is_sum(call.ins[0])  # the mean of a term
            case Scale() | Reshape() | Sum():
                return is_sum(call.ins[0])
        return False

    loss = trace.outputs["loss"]
    return terms if trace.producer[loss] is not None and is_sum(loss) and terms else None


def _of_batch(trace: Trace) -> set[int]:
    """The values that depend on the batch."""
    found = {v for v in trace.initial if not trace.variables[v].persistent}
    for call in trace.calls:
        if found.intersection(call.ins):
            found.update(call.outs)
    return found


def _terms(trace: Trace, target: np.ndarray) -> Iterator[float | None]:
    """By how much each mean in a loss counts; None for a sum."""
    for call in trace.calls:
        if isinstance(call.op, MeanError | ValueLoss) and call.op.reduction != "none":
            mean = call.op.reduction == "mean"
            yield float(np.prod(trace.variables[call.ins[0]].shape)) if mean else None
        elif isinstance(call.op, ClassLoss) and call.op.reduction != "none":
            yield _label_weight(trace, call, target) if call.op.reduction == "mean" else None


def _label_weight(trace: Trace, call: Call, target: np.ndarray) -> float:
    """The weight of a batch's labels that count."""
    given = {trace.variable_by_name["target"].id: target}
    labels = value_on_host(trace, call.ins[1], given)
    if labels is None:
        raise ConfigError(
            "the labels of the loss are computed: it is not known by how much a batch counts",
            code="OOC-106", where=call.name, fix="hand the target on as it is",
        )  # fmt: skip
    counted = labels[labels != call.op.ignore_index]
    if len(call.ins) == 2:
        return float(counted.size)
    values = trace.calls[trace.producer[call.ins[2]] or 0].op.values
    return float(np.asarray(values)[counted].sum())


# A batch in parts. An evaluation that computes each sample by itself has the same results in any
# parts. So what is refused as a whole is tried in halves, halves of these, down to one sample.
# Where samples are mixed (statistics of the batch, a sum over it), or the loss is not a sum of
# known terms, parts would compute something else, and the refusal stands. Parts are planned in a
# moment, and bands of a layer have thousands of calls; so where Python's objects of a list count as
# memory, bands are tried last. Outputs of parts are those of the whole batch, up to rounding where
# a convolution of few tiles has another algorithm (`../layers/conv2d.py`).


#: An evaluation step of (x, y, samples of the whole batch, whether bands may be tried): its trace,
#: and what it gave.
Forward = Callable[[Images, np.ndarray | None, int, bool], tuple[Trace, dict[str, np.ndarray]]]
#: Its trace, what it gave, and its targets.
Answer = tuple[Trace, dict[str, np.ndarray], Any]


class InParts:
    """Evaluates batches, those that do not fit in parts.

    Args:
        forward: evaluates one part; it raises `Infeasible` or `DoesNotFit` before it has begun.
        trace: makes the trace of such a part.
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
        """The results of a batch, part by part, each with its targets.

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
        """Whether the results of samples are those of their parts."""
        trace = self._trace(x, y)
        terms = [] if y is None else summed_terms(trace, y)
        return terms is not None and samples_apart(
            trace,
            [*(v for name, v in trace.outputs.items() if name != "loss"),
             *(v for term in terms for v in term.ins[:2])],
        )  # fmt: skip

    def averages(self, batches: Iterable[tuple[Any, Any]], ignored: int) -> Evaluation:
        """The averages of all batches; see `Averages`.

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

    By induction: the first axis of each value that depends on the batch is that of its samples,
    each of which has the same number of rows, side by side: one, or one for each head of attention.
    """
    inputs = [v for v in trace.initial if trace.variables[v].name in ("input", "target")]
    samples, needed = set(inputs), _needed(trace, wanted)
    rows = [trace.variables[v].shape[0] for v in inputs if trace.variables[v].shape]
    count = max(min(rows, default=1), 1)
    for call in trace.calls:
        if call.id in needed and samples.intersection(call.ins):
            if not _apart(trace, call, samples, count):
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


def _apart(trace: Trace, call: Call, samples: set[int], count: int) -> bool:
    read = [position for position, v in enumerate(call.ins) if v in samples]
    ins, outs = ([trace.variables[v].shape for v in side] for side in (call.ins, call.outs))
    return isinstance(call.op, Op) and call.op.samples_apart(read, ins, outs, count)
