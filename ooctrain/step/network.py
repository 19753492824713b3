"""The messages between the ranks of a step, and how long a network takes for them.

On a ring of k ranks a sum goes around twice, with (k - 1) / k of its bytes each time, in whatever
order its terms are added; a gathering goes around once. So the bytes of each rank and the number of
ranks give a time in whole nanoseconds. Source: Patarasuk and Yuan 2009, the ring's 2 (k - 1) / k,
which paper 004 rounds up to 2. Read next: `machine.py`; `../distributed/calls.py`, whose calls send
messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """What one call gives to the network, and another one waits for.

    Args:
        number: in the step, in the order of sending.
        size_bytes: what each rank gives.
        ranks: number of ranks that take part.
        summed: each rank gets the sum; else the bytes of all ranks.
    """

    number: int
    size_bytes: int
    ranks: int
    summed: bool


@dataclass(frozen=True, slots=True)
class Network:
    """What lies between ranks; one message at a time.

    Args:
        bytes_per_us: rate at which a rank sends, and receives at the same time.
        latency_us: latency of each way around.
    """

    bytes_per_us: float
    latency_us: float = 0.0

    def message_ns(self, message: Message) -> int:
        """Duration of a message: 2 (k - 1) / k of a sum's bytes, (k - 1) of a gathering's."""
        others, ways = message.ranks - 1, 2 if message.summed else 1
        share = ways * others / message.ranks if message.summed else others
        latency_ns = ways * round(self.latency_us * 1000)
        return latency_ns + math.ceil(message.size_bytes * share * 1000 / self.bytes_per_us)
