"""The ranks of one training: their number, what they must have in common, what each of them reads.

A communicator gives `Ranks`, which a `Trainer` takes. Each rank holds the whole model and takes an
equal part of every batch, and the ranks exchange gradients in buckets. All sums are in rank order,
so k ranks give the bits of one that takes the k parts one after the other (`accumulate=k`). Source:
paper 004, section 6.5; the buckets are PyTorch's (Li et al. 2020). Read next: `recording.py`;
docs/distributed.md says what is exact and what is not.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

import ooctrain
from ooctrain.distributed.exchange import Communicator, Exchange
from ooctrain.errors import ConfigError, OoctrainError, RanksDiffer
from ooctrain.step.network import Network
from ooctrain.step.trace import Trace
from ooctrain.units import parse_bytes

Made = TypeVar("Made")
BUCKET = "1MiB"
UNDER_WAY = 2
#: How long a rank that fails waits for others that may have failed for the same reason.
PATIENCE_S = 3.0
_LONGEST = 60  # characters of what a rank says in an error
_LEFT = "left"  # among what ranks say of themselves: why one of them comes no more


class Ranks:
    """All ranks of a training, as one of them sees them.

    Args:
        communicator: between them; `mpi.world()` makes the usual one.
        bucket: how many bytes of gradients must be complete before they are sent.
        ahead: buckets that may be under way while the step goes on.
        sync_batch_norm: batch norm by the statistics of the whole batch; else of each rank's part.
        network: imposed on all messages; None: as fast as they go.

    Attributes:
        agreed_on: the step that all ranks were found to have in common last.

    Raises:
        ConfigError: a size that is not positive.
    """

    def __init__(
        self, communicator: Communicator, *, bucket: int | str = BUCKET, ahead: int = UNDER_WAY,
        sync_batch_norm: bool = False, network: Network | None = None,
    ):  # fmt: skip
        self.bucket_bytes = parse_bytes(bucket, what="bucket")
        if self.bucket_bytes < 1 or ahead < 0:
            raise ConfigError(
                f"buckets of {self.bucket_bytes} bytes, {ahead} of them under way",
                fix='bucket="1MiB", ahead=2',
            )
        self._communicator, self._network = communicator, network
        self.ahead, self.sync_batch_norm = ahead, sync_batch_norm
        self.agreed_on: Trace | None = None
        self._left = False  # since the ranks met last
        self._ends = communicator.channel() if communicator.size > 1 else communicator

    @property
    def rank(self) -> int:
        """Own number, from 0."""
        return self._communicator.rank

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return self._communicator.size

    @property
    def is_first(self) -> bool:
        """Whether this one prints and saves."""
        return self.rank == 0

    @property
    def settings(self) -> tuple[Any, ...]:
        """All that a step's trace depends on."""
        return self.rank, self.count, self.bucket_bytes, self.ahead, self.sync_batch_norm

    @cached_property
    def exchange(self) -> Exchange:
        """Of this rank's messages."""
        return Exchange(self._communicator, self._network)

    def sent(self) -> list[tuple[int, int, int]]:
        """(number, start in ns, end in ns) of the last step's messages."""
        if self.count == 1:
            return []
        return [(span.number, span.start_ns, span.end_ns) for span in self.exchange.spans]

    def part_of(self, batch: int) -> slice:
        """Which samples of a batch this rank takes.

        Raises:
            ConfigError: the batch cannot be cut into equal parts.
        """
        part, rest = divmod(batch, self.count)
        if rest or not part:
            more = (part + 1) * self.count
            raise ConfigError(
                f"a batch of {batch} cannot be cut into equal parts for {self.count} ranks",
                fix=f"--batch {more}, or a number of ranks that divides {batch}",
            )
        return slice(self.rank * part, (self.rank + 1) * part)

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Makes sure that all ranks have the same facts and the same version of this library; they
        meet here.

        Facts that were found to be the same cost one exchange of 32 bytes.

        Raises:
            RanksDiffer: on all ranks, naming the rank that differs from rank 0, in what.
        """
        if self.count == 1:
            return
        self._left = False
        own_facts = {"version": ooctrain.__version__}
        own_facts |= {name: repr(value) for name, value in facts.items()}
        digest = hashlib.sha256(repr(sorted(own_facts.items())).encode()).hexdigest()
        if len(set(self._communicator.all_ranks(digest))) == 1:
            return
        all_ranks = self._communicator.all_ranks(own_facts)
        for rank, its in enumerate(all_ranks):
            if _LEFT in its:
                raise RanksDiffer(
                    f"rank {rank} has left: {its[_LEFT]}", where="between two steps",
                    fix="all ranks have the values of the same step; begin again together",
                )  # fmt: skip
        first = all_ranks[0]
        found = [
            f"rank {rank}: {name} {_short(its.get(name, 'none'))}, "
            f"rank 0: {_short(first.get(name, 'none'))}"
            for rank, its in enumerate(all_ranks)
            for name in sorted(first.keys() | its.keys())
            if its.get(name) != first.get(name)
        ]
        raise RanksDiffer(
            "the ranks differ in what they were given", numbers="\n".join(found),
            fix="the same command, program and version for all ranks",
        )  # fmt: skip

    def leave(self, why: str, patience_s: float = PATIENCE_S) -> None:
        """Says to the others that this rank comes to no further step: they end with `RanksDiffer`
        where they would meet. Waits so long for them; ranks that leave together wait for nothing.
        """
        if self.count == 1 or self._left:
            return

        def meet() -> None:
            with suppress(RanksDiffer):
                self.agree({_LEFT: why})

        others = threading.Thread(target=meet, daemon=True, name="ooctrain-leave")
        others.start()
        others.join(patience_s)
        self._left = True

    def from_first(self, make: Callable[[], Made]) -> Made:
        """What rank 0 makes, or the error that it raises, on all ranks."""
        if self.count == 1:
            return make()
        found: Made | None = None
        error: OoctrainError | OSError | None = None
        if self.is_first:
            try:
                found = make()
            except (OoctrainError, OSError) as caught:
                error = caught
        found, error = self._communicator.of_the_first((found, error))
        if error is not None:
            raise error
        assert found is not None, "rank 0 has made it"
        return found

    def any(self, flag: bool) -> bool:
        """Whether any rank says so; all ranks ask together."""
        return flag if self.count == 1 else any(self._communicator.all_ranks(flag))

    def ends_alike(self, why: str, patience_s: float = PATIENCE_S) -> bool:
        """Whether all ranks end here for the same reason; waits so long for them to say so."""
        mine = np.frombuffer(hashlib.sha256(why.encode()).digest(), np.uint8).copy()
        all_ranks = np.empty((self.count, mine.size), np.uint8)
        request = self._ends.start_gathering(mine, all_ranks)
        until = time.monotonic() + patience_s
        while not request.over():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return bool((all_ranks == mine).all())

    def abort(self) -> None:
        """Ends all ranks at once, with status 1."""
        self._communicator.abort(1)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
