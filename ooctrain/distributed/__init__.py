"""Training on several ranks, each with a part of every batch, with the bits of one.

In: processes that MPI connects. Out: `world()`, which a `Trainer` takes as its `ranks`. The one
idea: what ranks exchange are calls of the step, so it is planned, verified, simulated and executed
like every other step. Read next: `ranks.py`, `recording.py`, `calls.py`, `exchange.py`, `mpi.py`.
"""

from __future__ import annotations

from ooctrain.distributed.mpi import world
from ooctrain.distributed.ranks import Ranks
from ooctrain.step.network import Network

__all__ = ["Network", "Ranks", "world"]
