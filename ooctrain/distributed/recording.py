"""The exchanges between ranks in a step, recorded among its calls.

A bucket of gradients is sent as soon as it is full, while backward goes on. It is received, and its
parameters are updated, when later buckets are under way. Values that depend on the labels or
statistics of all ranks are handled the same way: sent early, received late. So the step is still
one list of calls, whose order decides everything. Read next: `calls.py`; `../tracing.py`, which
calls this.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ooctrain.distributed.calls import SendMessage, TakeMessage
from ooctrain.distributed.ranks import Ranks
from ooctrain.engine.parts import Parts
from ooctrain.engine.tensor import Tape, Tensor
from ooctrain.errors import ConfigError
from ooctrain.layers.batch_norm import BatchNormApply, BatchNormGradApply, BatchNormGradReduce
from ooctrain.step.network import Message
from ooctrain.step.op import Op, Site, Spec, require
from ooctrain.step.trace import Kind

# Batch norm by the statistics of the whole batch, whose parts, all of one size, lie on several
# ranks. The mean of the batch is the mean of the parts' means, and its variance is the mean of
# their variances plus the variance of their means; in the gradient, two sums over all values are
# sums over ranks. Both exchanges take place in the middle of the step, where all ranks wait. The
# bits are not those of one rank with the whole batch. Source: Chan, Golub, LeVeque 1979, for
# variances of parts.


@dataclass(frozen=True, slots=True)
class JoinedStatistics(Op):
    """Mean, 1 / sqrt(var + eps) and variance of parts of one size. Reads (mean, var) of each."""

    eps: float = 1e-5
    name: ClassVar[str] = "batch_norm"
    verb: ClassVar[str] = "join"
    out_names: ClassVar[tuple[str, ...]] = ("mean", "inv_std", "var")
    out_kinds: ClassVar[tuple[Kind, ...]] = ("stat", "stat", "stat")

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        fits = len(ins) >= 2 and len(ins) % 2 == 0 and len(set(ins)) == 1
        require(fits, "batch_norm: wants mean and variance of each part", *ins)
        return ins[:1] * 3

    def reference(self, *arrays, scalars):
        means, variances = np.stack(arrays[::2]), np.stack(arrays[1::2])
        mean = means.mean(axis=0)
        var = variances.mean(axis=0) + np.square(means - mean).mean(axis=0)
        return mean, 1 / np.sqrt(var + mean.dtype.type(self.eps)), var

    def cpu(self, pool, ins, outs, workspace, scalars):
        """A few numbers a channel."""
        for out, value in zip(outs, self.reference(*ins, scalars=scalars), strict=True):
            out[...] = value

    def flops(self, ins, outs):
        return 4 * sum(spec.size for spec in ins)


@dataclass(frozen=True, slots=True)
class SyncedBatchNormApply(BatchNormApply):
    """Normalises by the statistics of all ranks; computed as `BatchNormApply` is.

    Args:
        rows: values per channel of all ranks.
        messages: `recording.Messages`, through which the gradient's sums are exchanged.
    """

    rows: int = 0
    messages: Any = field(default=None, compare=False, repr=False)

    def row_rule(self, ins):
        return None  # no band waits for other ranks

    def vjp(self, tape, ins, outs, grads):
        x, mean, inv_std, gamma, beta = ins
        (dy,) = grads
        mine = tape.call(BatchNormGradReduce(), (dy, x, mean, inv_std), of=(gamma, beta))
        path = tape.site.path
        dgamma, dbeta = self.messages.sums(f"{path}.sync", mine, "aux")
        apply = BatchNormGradApply(over=self.rows)
        dx = tape.gradient(apply, (dy, x, mean, inv_std, gamma, dgamma, dbeta), of=x)
        return dx, None, None, *mine


def joined_statistics(
    tape: Any, messages: Any, found: tuple[Any, ...], eps: float, rows: int
) -> tuple[tuple[Any, ...], SyncedBatchNormApply]:
    """Statistics of all ranks' parts, and the operation that normalises by them.

    Args:
        found: mean, 1 / std and variance of this rank's part.
        rows: values per channel of this rank's part.
    """
    mean, _, var = found
    path = tape.site.prefix(JoinedStatistics())
    all_ranks = messages.all_ranks(f"{path}.sync", (mean, var), "stat")
    together = [tensor for row in all_ranks for tensor in row]
    statistics = tape.call(JoinedStatistics(eps), together)
    apply = SyncedBatchNormApply(rows=rows * len(all_ranks), messages=messages)
    return statistics, apply


# Recording.


class _Sent(NamedTuple):
    """A message that has not been received yet."""

    path: str
    message: Message
    byte: Tensor
    tensors: Sequence[Tensor]


class _Later(NamedTuple):
    """An update of running statistics, put off until those of all ranks are there."""

    op: Op
    statistics: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    site: Site


class PartOfRank(Parts):
    """The part of the batch that this rank takes.

    Args:
        messages: to the other ranks.
    """

    def __init__(self, ranks: Ranks, messages: Messages):
        super().__init__(ranks.count)
        self.number, self._messages, self._sync = ranks.rank, messages, ranks.sync_batch_norm
        self.later: list[_Later] = []
        self._states_read: dict[Tensor, str] = {}

    def begin(self, number: int) -> None:
        """There is one part on each rank."""

    def follow(self, op: Op, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """Notes also which states the step reads."""
        super().follow(op, ins, outs)
        for tensor in ins:
            if tensor.kind == "state" and op.pure:
                self._states_read[tensor] = op.name

    def puts_off(self, op: Op, ins: Sequence[Tensor], states: Sequence[Tensor], site: Site) -> bool:
        """Whether an update waits for all ranks' statistics; it is noted then."""
        if site.phase != "forward" or self._sync:
            return False
        changed = set(states)  # which knows them by identity
        statistics = tuple(tensor for tensor in ins if tensor not in changed)
        self.later.append(_Later(op, statistics, tuple(states), site))
        return True

    def batch_statistics(
        self, tape: Tape, found: tuple[Tensor, ...], eps: float, rows: int
    ) -> tuple[tuple[Tensor, ...], BatchNormApply, int]:
        """Those of the whole batch where they are requested."""
        if not self._sync:
            return super().batch_statistics(tape, found, eps, rows)
        statistics, apply = joined_statistics(tape, self._messages, found, eps, rows)
        return statistics, apply, rows * self.count

    def check_states(self) -> None:
        """Raises ConfigError where a step reads what others of its parts are to change first."""
        for item in self.later:
            for state in item.states:
                if state in self._states_read:
                    raise ConfigError(
                        f"{state.name!r} is changed by the forward pass, and "
                        f"{self._states_read[state]} reads it in the same step", code="OOC-106",
                        fix="parts on several ranks cannot wait for each other; train on one rank, "
                        "with accumulate",
                    )  # fmt: skip


class Messages:
    """Records what is sent and taken, with a number for each message of the step."""

    def __init__(self, ranks: Ranks, tape: Tape):
        self._ranks, self._tape, self._sent = ranks, tape, 0

    def send(self, path: str, tensors: Sequence[Tensor], *, summed: bool) -> _Sent:
        """A message with these arrays."""
        size = sum(tensor.spec.nbytes for tensor in tensors)
        message = Message(self._sent, size, self._ranks.count, summed)
        self._sent += 1
        with self._tape.paused(), self._tape.at(path=path, leaf=True, forward_of=None):
            (byte,) = self._tape.call(SendMessage(message, self._ranks.exchange), tensors)
        return _Sent(path, message, byte, tensors)

    def take(self, sent: _Sent, specs: Sequence[Spec], kind: Kind) -> tuple[Tensor, ...]:
        """The result of a message as arrays: sums, or those of all ranks in rank order."""
        op = TakeMessage(sent.message, tuple(specs), (kind,) * len(specs), self._ranks.exchange)
        with self._tape.paused(), self._tape.at(path=sent.path, leaf=True, forward_of=None):
            return self._tape.call(op, (sent.byte,))

    def all_ranks(self, path: str, tensors: Sequence[Tensor], kind: Kind) -> list[list[Tensor]]:
        """Arrays of all ranks, in rank order; requested and waited for at once."""
        return self.rows(self.send(path, tensors, summed=False), kind)

    def sums(self, path: str, tensors: Sequence[Tensor], kind: Kind) -> tuple[Tensor, ...]:
        """Sums over all ranks; requested and waited for at once."""
        sent = self.send(path, tensors, summed=True)
        return self.take(sent, [tensor.spec for tensor in tensors], kind)

    def rows(self, sent: _Sent, kind: Kind) -> list[list[Tensor]]:
        """What each rank has sent, in rank order."""
        specs = [tensor.spec for tensor in sent.tensors]
        found = list(self.take(sent, specs * self._ranks.count, kind))
        width = len(specs)
        return [found[rank * width :][:width] for rank in range(self._ranks.count)]


class Sharing:
    """The exchanges of one training step, in the order in which it is recorded.

    Args:
        complete: called with each parameter whose summed gradient is in its `.grad`.

    Attributes:
        part: for the tape, `Tape.parts`.
    """

    def __init__(self, ranks: Ranks, tape: Tape, complete: Callable[[Tensor], None]):
        self._ranks, self._tape, self._complete = ranks, tape, complete
        self._messages = Messages(ranks, tape)
        self.part = PartOfRank(ranks, self._messages)
        self._open: list[Tensor] = []
        self._under_way: deque[_Sent] = deque()
        self._parameters: dict[int, Sequence[Tensor]] = {}
        self._loss: _Sent | None = None
        self._statistics: _Sent | None = None
        self._total: Tensor | None = None

    @property
    def count(self) -> int:
        """Parts of the batch."""
        return self._ranks.count

    def whole_target(self, target: Tensor) -> Tensor:
        """Everybody's labels, which a mean over labels needs; of other targets this rank's own."""
        if target.dtype != "int64":
            return target
        whole = Spec((target.shape[0] * self.count, *target.shape[1:]), target.dtype)
        sent = self._messages.send("target", (target,), summed=False)
        (found,) = self._messages.take(sent, (whole,), "aux")
        return found

    def send_loss(self, loss: Tensor) -> None:
        """The forward pass is over: loss and statistics leave."""
        self.part.check_states()
        self._loss = self._messages.send("loss", (loss,), summed=True)
        if self.part.later:
            tensors = [tensor for item in self.part.later for tensor in item.statistics]
            self._statistics = self._messages.send("statistics", tensors, summed=False)

    def gradient(self, parameter: Tensor) -> None:
        """One gradient of this rank is complete."""
        self._open.append(parameter)
        size = sum(4 * math.prod(other.shape) for other in self._open)
        if size >= self._ranks.bucket_bytes:
            self._send_bucket()
            while len(self._under_way) > self._ranks.ahead:
                self._take_bucket()

    def end(self) -> Tensor:
        """Takes all that is under way; the loss of the whole batch."""
        if self._open:
            self._send_bucket()
        while self._under_way:
            self._take_bucket()
        self._update_statistics()
        return self._whole_loss()

    def _send_bucket(self) -> None:
        gradients = [_gradient(parameter) for parameter in self._open]
        sent = self._messages.send(f"bucket{len(self._parameters)}", gradients, summed=True)
        self._parameters[sent.message.number] = self._open
        self._under_way.append(sent)
        self._open = []

    def _take_bucket(self) -> None:
        self._whole_loss()  # known before the first update, so that no value is kept aside
        sent = self._under_way.popleft()
        specs = [tensor.spec for tensor in sent.tensors]
        with self._tape.at(phase="backward"):
            sums = self._messages.take(sent, specs, "wgrad")
        parameters = self._parameters[sent.message.number]
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = total
            with self._tape.at(path=parameter.name, leaf=True, forward_of=None):
                self._complete(parameter)

    def _whole_loss(self) -> Tensor:
        if self._total is None:
            assert self._loss is not None, "the forward pass is over"
            with self._tape.at(phase="loss"):
                spec = self._loss.tensors[0].spec
                (self._total,) = self._messages.take(self._loss, (spec,), "aux")
        return self._total

    def _update_statistics(self) -> None:
        """Everybody's statistics move the running ones, in rank order."""
        if self._statistics is None:
            return
        with self._tape.at(phase="backward"):
            rows = self._messages.rows(self._statistics, "stat")
        for row in rows:
            at = 0
            for item in self.part.later:
                mine = row[at : at + len(item.statistics)]
                at += len(mine)
                self._update(item, mine)

    def _update(self, item: _Later, statistics: Sequence[Tensor]) -> None:
        with self._tape.at(path=item.site.path, leaf=True, phase="update", forward_of=None):
            self._tape.update(item.op, (*statistics, *item.states), item.states, {})


def _gradient(parameter: Tensor) -> Any:
    assert parameter.grad is not None, "it is complete"
    return parameter.grad
