"""Training on several ranks, each with a part of every batch, with the bits of one.

MPI connects the processes, and `world()` gives the ranks that a `Trainer` takes as `ranks`. Ranks
exchange data by calls of the step, so the exchange is planned, verified, simulated and executed
like every other call. Read next: `ranks.py`, `recording.py`, `calls.py`, `exchange.py`, `mpi.py`.
"""

from __future__ import annotations

from typing import NoReturn

from ooctrain.distributed.mpi import world
from ooctrain.distributed.ranks import Ranks
from ooctrain.step.network import Network

__all__ = ["Network", "Ranks", "world"]


def __getattr__(name: str) -> NoReturn:
    # Not at the top: a table of words, read when a name is missing.
    from ooctrain.engine.torch_names import refusal

    raise refusal(__name__, name, "distributed", __all__)
