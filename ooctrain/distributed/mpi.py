"""Ranks that MPI connects: `mpiexec -n 2 python -m mpi4py PROGRAM`.

The processes that `mpiexec` has started get `world()`, a `Ranks` for a `Trainer`. mpi4py does the
communication. This file maps its non-blocking verbs to those of `exchange.py`, and makes sure
that a rank that fails does not leave the others waiting for ever. Source: MPI 4.0, chapter 6
(non-blocking collectives). Read next: `ranks.py`; docs/distributed.md.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ooctrain.distributed.exchange import Communicator
from ooctrain.distributed.ranks import BUCKET, UNDER_WAY, Ranks
from ooctrain.errors import ConfigError
from ooctrain.step.network import Network

#: Set by the launchers of MPICH and Intel, of Open MPI, and of Slurm.
_RANK_COUNTS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE")
_COUNTS_HERE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
#: A wait asks so often at once, then at these intervals.
_POLLS_AT_ONCE, _POLL_S = 100, 20e-6


@dataclass(frozen=True, slots=True)
class MpiRequest:
    """A non-blocking collective of MPI."""

    request: Any

    def over(self) -> bool:
        """Whether it is over; MPI goes on with it meanwhile."""
        return bool(self.request.Test())

    def wait(self) -> None:
        """Returns when it is over; unlike MPI's own, leaves the core to others meanwhile."""
        for _ in range(_POLLS_AT_ONCE):
            if self.over():
                return
        while not self.over():
            time.sleep(_POLL_S)


class MpiCommunicator:
    """A communicator of mpi4py as `communicator.Communicator`."""

    def __init__(self, communicator: Any):
        self._mpi = communicator
        self.rank, self.size = int(communicator.rank), int(communicator.size)

    def start_exchange(self, send: np.ndarray, receive: np.ndarray) -> MpiRequest:
        """See `Communicator`."""
        return MpiRequest(self._mpi.Ialltoall(send, receive))

    def start_gathering(self, send: np.ndarray, receive: np.ndarray) -> MpiRequest:
        """See `Communicator`."""
        return MpiRequest(self._mpi.Iallgather(send, receive))

    def all_ranks(self, value: Any) -> list[Any]:
        """See `Communicator`."""
        return list(self._mpi.allgather(value))

    def of_the_first(self, value: Any) -> Any:
        """See `Communicator`."""
        return self._mpi.bcast(value)

    def channel(self) -> Communicator:
        """See `Communicator`."""
        return MpiCommunicator(self._mpi.Dup())

    def abort(self, status: int) -> None:
        """See `Communicator`."""
        self._mpi.Abort(status)


def world(
    *, bucket: int | str = BUCKET, ahead: int = UNDER_WAY, sync_batch_norm: bool = False,
    network: Network | None = None,
) -> Ranks:  # fmt: skip
    """All ranks that `mpiexec` has started; without it there is one.

    From now on an uncaught exception ends all ranks, not this one alone.

    Args:
        bucket, ahead, sync_batch_norm, network: see `Ranks`.

    Raises:
        ConfigError: mpi4py or an MPI library is missing.
    """
    communicator = MpiCommunicator(_mpi().COMM_WORLD)
    if communicator.size == 1 < launched_ranks():
        raise ConfigError(
            f"a launcher has started {launched_ranks()} ranks, and mpi4py sees one",
            fix="the mpiexec of the MPI library that mpi4py loads: both in one environment",
        )
    if communicator.size > 1:
        _abort_on_exception(communicator)
    return Ranks(
        communicator, bucket=bucket, ahead=ahead, sync_batch_norm=sync_batch_norm, network=network
    )


def find_mpiexec() -> str:
    """The program that starts ranks: next to the interpreter, where pip puts that of the mpich
    wheel, or on the path.

    Raises:
        ConfigError: no MPI library, or no mpi4py, is installed.
    """
    folders = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    found = shutil.which("mpiexec", path=os.pathsep.join(folders))
    if found is None or find_spec("mpi4py") is None:
        missing = "mpiexec" if found is None else "mpi4py"
        raise ConfigError(
            f"ranks need {missing}, which is not installed", fix='pip install "ooctrain[mpi]"'
        )
    return found


def launcher_of_ranks() -> int:
    """How many ranks a launcher of MPI has started on this machine, this one included; as many as
    there are, where it does not say."""
    return _from_launcher(_COUNTS_HERE) or launched_ranks()


def launched_ranks() -> int:
    """How many ranks a launcher of MPI says that it has started; 1 without a launcher."""
    return _from_launcher(_RANK_COUNTS) or 1


def _from_launcher(names: tuple[str, ...]) -> int | None:
    counts = [os.environ[name] for name in names if name in os.environ]
    return next((int(count) for count in counts if count.isdigit() and int(count)), None)


def _mpi() -> Any:
    """The module `mpi4py.MPI`, which begins MPI when it is first imported."""
    try:
        from mpi4py import MPI  # an extra; it begins MPI, so it waits until ranks are wanted
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            "mpi4py is missing, or finds no MPI library",
            where=str(error).partition("\n")[0], fix='pip install "ooctrain[mpi]"',
        ) from error  # fmt: skip
    return MPI


def _abort_on_exception(communicator: Communicator) -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        sys.stderr.flush()
        communicator.abort(1)

    sys.excepthook = hook
