"""Messages between ranks while the step goes on, with sums that have the same bits in every run.

MPI may add in any order, so its allreduce need not give the bits of a second run, let alone those
of one rank that takes the parts one after the other. Here rank r receives part r of every rank
(all-to-all) and adds these in rank order, and all ranks receive all sums (allgather). The traffic
is that of a ring, but the order is fixed. Both halves run while the step computes; the end of a
half is noticed whenever a function here is called. Ranks notice it at different times, and one
channel needs one order, so the second halves have a channel of their own. Read next: `calls.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ooctrain.errors import RanksDiffer
from ooctrain.step.network import Message, Network

# The interface that connects ranks, by MPI (`mpi.py`) or by threads (`testing/thread_ranks.py`): a
# few verbs with all ranks' arrays and small values, of which the two that move arrays return at
# once. All ranks call the verbs of one channel in the same order; channels are independent of each
# other.


class OngoingExchange(Protocol):
    """An exchange that has begun. Its arrays belong to it until it is over."""

    def over(self) -> bool:
        """Whether it is over; does some of its work."""

    def wait(self) -> None:
        """Returns when it is over."""


class Communicator(Protocol):
    """One channel between ranks.

    Attributes:
        rank: own number, from 0.
        size: how many ranks there are.
    """

    rank: int
    size: int

    def start_exchange(self, send: np.ndarray, receive: np.ndarray) -> OngoingExchange:
        """Part r of `send` goes to rank r; what rank s sends here becomes row s of `receive`."""

    def start_gathering(self, send: np.ndarray, receive: np.ndarray) -> OngoingExchange:
        """All of `send` goes to all ranks; what rank s sends becomes row s of `receive`."""

    def all_ranks(self, value: Any) -> list[Any]:
        """Small values of all ranks, in rank order."""

    def of_the_first(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""

    def channel(self) -> Communicator:
        """Another channel between the same ranks; all ranks ask for it together."""

    def abort(self, status: int) -> None:
        """Ends the processes of all ranks at once."""


FLOAT = np.dtype(np.float32)


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A message whose result has not been fetched yet.

    Args:
        send, receive: buffers of the half that is going on.
        due_ns: when an imposed network would have it there.
    """

    message: Message
    send: np.ndarray
    receive: np.ndarray
    request: OngoingExchange
    begun_ns: int
    due_ns: int


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """When a message was under way, by `time.perf_counter_ns`: on the imposed network, else until
    its arrival was noticed.

    Args:
        waited_ns: how long this rank waited for the network after it had requested the result;
            on an imposed network without what it waited for ranks that were late.
    """

    number: int
    start_ns: int
    end_ns: int
    waited_ns: int


class Exchange:
    """What one rank has under way.

    Args:
        communicator: whose channels it takes two of; all ranks make one together.
        network: imposed on messages, so that they take as long as on a slower one.

    Attributes:
        spans: spans of the messages of the last step.
    """

    def __init__(self, communicator: Communicator, network: Network | None = None):
        self._first, self._second = communicator.channel(), communicator.channel()
        self._rank, self._network = communicator.rank, network
        self._under_way: dict[int, _UnderWay] = {}
        self._to_sum: deque[_UnderWay] = deque()
        self._spare: dict[int, list[np.ndarray]] = {}
        self._next, self._line_free_ns = 0, 0
        self.spans: list[MessageSpan] = []

    def start(self, message: Message, arrays: Sequence[np.ndarray]) -> None:
        """Sends arrays, one behind the other. What they hold may change afterwards.

        Raises:
            RanksDiffer: not the message that is the turn of; ranks would wait for each other.
        """
        self._expect_turn(message)
        size, ranks = message.size_bytes, message.ranks
        room = -(-size // (FLOAT.itemsize * ranks)) * FLOAT.itemsize * ranks
        send = self._buffer(room if message.summed else size)
        at = 0
        for array in arrays:
            flat = array.reshape(-1).view(np.uint8)
            send[at : at + flat.size] = flat
            at += flat.size
        send[at:] = 0
        begun_ns, due_ns = self._times_ns(message, time.perf_counter_ns())
        if message.summed:
            receive = self._buffer(room)
            request = self._first.start_exchange(send, receive.reshape(ranks, -1))
        else:
            receive = self._buffer(size * ranks)
            request = self._first.start_gathering(send, receive.reshape(ranks, -1))
        item = _UnderWay(message, send, receive, request, begun_ns, due_ns)
        self._under_way[message.number] = item
        if message.summed:
            self._to_sum.append(item)
        self._go_on()

    def finish(self, number: int) -> np.ndarray:
        """The bytes of a message's result; valid until the next call.

        Returns:
            uint8: the sums, one behind the other; or the bytes of all ranks, in rank order.
        """
        item, asked_ns = self._under_way.pop(number), time.perf_counter_ns()
        while item in self._to_sum:
            self._to_sum[0].request.wait()
            self._sum(self._to_sum.popleft())
        item.request.wait()
        self._wait_until(item.due_ns)
        end_ns = time.perf_counter_ns() if self._network is None else item.due_ns
        waited_ns = max(0, end_ns - max(asked_ns, item.begun_ns))
        self.spans.append(MessageSpan(number, item.begun_ns, end_ns, waited_ns))
        for buffer in (item.send, item.receive):
            self._spare.setdefault(buffer.size, []).append(buffer)
        self._go_on()
        ranks = 1 if item.message.summed else item.message.ranks
        return item.receive[: item.message.size_bytes * ranks]

    def _go_on(self) -> None:
        """Takes sums whose first half is over to their second one, in order."""
        while self._to_sum and self._to_sum[0].request.over():
            self._sum(self._to_sum.popleft())
        for item in self._under_way.values():
            item.request.over()

    def _sum(self, item: _UnderWay) -> None:
        """Adds what came in rank order, and begins to hand the sums round."""
        parts = item.receive.view(FLOAT).reshape(item.message.ranks, -1)
        total = parts[0]
        for part in parts[1:]:
            np.add(total, part, out=total)
        # The first half is over, so its send buffer is free for the sums of all ranks.
        own, all_ranks = item.receive[: total.nbytes], item.send
        item.send, item.receive = item.receive, all_ranks
        rows = all_ranks.reshape(item.message.ranks, -1)
        item.request = self._second.start_gathering(own, rows)

    def _expect_turn(self, message: Message) -> None:
        if message.number == 0 and not self._under_way:
            self._next, self.spans = 0, []
        if message.number != self._next:
            raise RanksDiffer(
                f"message {message.number} is sent out of turn, before message {self._next}",
                where=f"rank {self._rank}",
                fix="a planner or rewrite that leaves calls that run once in their order",
            )
        self._next += 1

    def _times_ns(self, message: Message, now_ns: int) -> tuple[int, int]:
        """When an imposed network begins with a message that is sent now, and is done with it."""
        if self._network is None:
            return now_ns, now_ns
        begin_ns = max(now_ns, self._line_free_ns)
        self._line_free_ns = begin_ns + self._network.message_ns(message)
        return begin_ns, self._line_free_ns

    def _wait_until(self, due_ns: int) -> None:
        left_ns = due_ns - time.perf_counter_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)

    def _buffer(self, size_bytes: int) -> np.ndarray:
        """A buffer of one size that is no longer in use."""
        spare = self._spare.get(size_bytes)
        return spare.pop() if spare else np.empty(size_bytes, np.uint8)
