"""The interface that connects ranks, by MPI (`mpi.py`) or by threads (`testing/ranks.py`).

A few verbs are enough to get all ranks' arrays and small values, and the two that move arrays
return at once. All ranks call the verbs of one channel in the same order; channels know nothing of
each other. Read next: `exchange.py`, which sums in rank order on top of them.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


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
        """All of `send` goes to everybody; what rank s sends becomes row s of `receive`."""

    def everybodys(self, value: Any) -> list[Any]:
        """Small values of all ranks, in rank order."""

    def of_the_first(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""

    def channel(self) -> Communicator:
        """Another channel between the same ranks; all ranks ask for it together."""

    def abort(self, status: int) -> None:
        """Ends the processes of all ranks at once."""
