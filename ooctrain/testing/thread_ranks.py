"""Ranks without MPI: threads of one process that exchange arrays through a table.

A function runs on each of a number of ranks, and its results come back. What MPI leaves open is
drawn at random, so that no code depends on it: an exchange may end on one rank long after it ends
on another, and arrays that may not be read yet hold garbage. As between processes, a value that
comes in is a copy. A rank that fails ends the others.
Read next: `../distributed/exchange.py`, whose rules these ranks obey.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ooctrain.distributed.exchange import Communicator
from ooctrain.distributed.ranks import Ranks
from ooctrain.errors import RanksDiffer

Result = TypeVar("Result")
LONGEST_WAIT_S = 60.0
GARBAGE = 0xA5


@dataclass
class _Table:
    """What ranks have put down for each other, by channel and turn."""

    size: int
    change: threading.Condition = field(default_factory=threading.Condition)
    cells: dict[Hashable, dict[int, Any]] = field(default_factory=dict)
    failed: BaseException | None = None

    def put(self, place: Hashable, rank: int, value: Any) -> None:
        with self.change:
            self.cells.setdefault(place, {})[rank] = value
            self.change.notify_all()

    def is_full(self, place: Hashable) -> bool:
        with self.change:
            self._expect_all()
            return len(self.cells.get(place, ())) == self.size

    def take(self, place: Hashable) -> list[Any]:
        """What all ranks have put down there, once they have."""
        with self.change:
            full = self.change.wait_for(
                lambda: self.failed or len(self.cells.get(place, ())) == self.size, LONGEST_WAIT_S
            )
            self._expect_all()
            if not full:
                raise RanksDiffer(f"ranks wait for each other at {place}", fix="the same order")
            return [self.cells[place][rank] for rank in range(self.size)]

    def fail(self, error: BaseException) -> None:
        with self.change:
            self.failed = self.failed or error
            self.change.notify_all()

    def _expect_all(self) -> None:
        if self.failed is not None:
            raise RanksDiffer("another rank has failed", where=repr(self.failed))


@dataclass
class _ThreadRequest:
    """Copies what came in, when this rank finds that those of all ranks are there."""

    table: _Table
    place: Hashable
    receive: np.ndarray
    pick: Callable[[np.ndarray], np.ndarray]
    chance: random.Random
    done: bool = False

    def over(self) -> bool:
        if not self.done and self.chance.random() < 0.5 and self.table.is_full(self.place):
            self.wait()
        return self.done

    def wait(self) -> None:
        if not self.done:
            for row, sent in zip(self.receive, self.table.take(self.place), strict=True):
                row[...] = self.pick(sent)
            self.done = True


class ThreadCommunicator:
    """One rank's end of a channel."""

    def __init__(self, table: _Table, rank: int, chance: random.Random, channel: str = ""):
        self._table, self.rank, self.size = table, rank, table.size
        self._chance, self._channel = chance, channel
        self._turn, self._channels = 0, 0

    def start_exchange(self, send: np.ndarray, receive: np.ndarray) -> _ThreadRequest:
        """See `Communicator`."""
        mine = self.rank
        return self._start(send, receive, lambda sent: sent.reshape(self.size, -1)[mine])

    def start_gathering(self, send: np.ndarray, receive: np.ndarray) -> _ThreadRequest:
        """See `Communicator`."""
        return self._start(send, receive, lambda sent: sent)

    def all_ranks(self, value: Any) -> list[Any]:
        """See `Communicator`."""
        place = self._next_place("values")
        self._table.put(place, self.rank, pickle.dumps(value))
        return [pickle.loads(sent) for sent in self._table.take(place)]

    def of_the_first(self, value: Any) -> Any:
        """See `Communicator`."""
        return self.all_ranks(value if self.rank == 0 else None)[0]

    def channel(self) -> Communicator:
        """See `Communicator`."""
        self._channels += 1
        name = f"{self._channel}/{self._channels}"
        return ThreadCommunicator(self._table, self.rank, self._chance, name)

    def abort(self, status: int) -> None:
        """See `Communicator`."""
        self._table.fail(RuntimeError(f"abort with status {status}"))

    def _start(
        self, send: np.ndarray, receive: np.ndarray, pick: Callable[[np.ndarray], np.ndarray]
    ) -> _ThreadRequest:
        place = self._next_place("arrays")
        self._table.put(place, self.rank, send.copy())
        receive.view(np.uint8)[...] = GARBAGE
        return _ThreadRequest(self._table, place, receive, pick, self._chance)

    def _next_place(self, kind: str) -> Hashable:
        self._turn += 1
        return self._channel, kind, self._turn


def lone_rank() -> Ranks:
    """The only rank of a training."""
    return Ranks(ThreadCommunicator(_Table(1), 0, random.Random(0)))


def on_ranks(count: int, run: Callable[[Ranks], Result], seed: int = 0, **how: Any) -> list[Result]:
    """Runs a function on every rank at once, each in its own thread.

    Args:
        seed: seed of the chance by which ranks notice what has come.
        how: for each `Ranks`, such as bucket=64.

    Returns:
        What the function returned, in rank order.

    Raises:
        The first error that a rank raised by itself.
    """
    table = _Table(count)

    def one(rank: int) -> Result:
        chance = random.Random(seed * count + rank)
        try:
            return run(Ranks(ThreadCommunicator(table, rank, chance), **how))
        except BaseException as error:
            table.fail(error)
            raise

    with ThreadPoolExecutor(count, thread_name_prefix="rank") as pool:
        results = [pool.submit(one, rank) for rank in range(count)]
    if table.failed is not None:
        raise table.failed
    return [result.result() for result in results]
