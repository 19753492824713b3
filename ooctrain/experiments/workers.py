"""Where the cases of a sweep are computed: this machine's cores, or the machines of `mpiexec`.

For a number of processes there is an executor with the interface of `concurrent.futures`. Both
sorts of workers have that interface, so a sweep does not depend on which of them compute:

    ooctrain compare ...                                               processes of this machine
    mpiexec -n 64 python -m mpi4py.futures -m ooctrain compare ...     63 workers, wherever they are

In the second line rank 0 runs the command and the others wait for cases. Plain `mpiexec python -m
ooctrain compare` would compute everything in every process, so it is refused. Source: mpi4py's
documentation, "mpi4py.futures". Read next: `spread.py`.
"""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

from ooctrain.distributed.mpi import launched_ranks
from ooctrain.errors import ConfigError
from ooctrain.step.presets import usable_cores

POOL = "mpi4py.futures"


def worker_count(processes: int | None, cases: int) -> int:
    """How many workers some cases get; 1: this process computes them itself.

    Args:
        processes: 1: this process; None: as many as there are cores, or ranks. Under `mpiexec` any
            other number means all its ranks.
        cases: how many there are.

    Raises:
        ConfigError: `mpiexec` started copies of the command.
    """
    _require_one_command()
    wanted = processes or _ranks() or usable_cores()
    return min(wanted, cases)


def open_executor(count: int) -> Executor:
    """The workers: all other ranks of `mpiexec`, else `count` processes of this machine."""
    if _ranks():
        from mpi4py.futures import MPIPoolExecutor  # an extra, which starts MPI when it is imported

        return MPIPoolExecutor()
    # "spawn": a fork would inherit locks of threads that do not exist in the child.
    return ProcessPoolExecutor(count, get_context("spawn"))


def _ranks() -> int:
    """Ranks that wait for cases; 0 without them."""
    return launched_ranks() - 1 if POOL in sys.orig_argv else 0


def _require_one_command() -> None:
    if launched_ranks() == 1 or POOL in sys.orig_argv:
        return
    installed = importlib.util.find_spec("mpi4py") is not None
    raise ConfigError(
        "mpiexec started several copies of this command, and each would compute everything",
        numbers=f"{launched_ranks()} processes",
        fix=("" if installed else 'pip install "ooctrain[mpi]", then ')
        + f"mpiexec -n {launched_ranks()} python -m {POOL} -m ooctrain ...",
    )
