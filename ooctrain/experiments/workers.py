"""Where the cases of a sweep are computed: this machine's cores, or the machines of `mpiexec`.

For a number of processes there is an executor with the interface of `concurrent.futures`. Both
sorts of workers have that interface, so a sweep does not depend on which of them compute:

    ooctrain compare ...                                               processes of this machine
    mpiexec -n 64 python -m mpi4py.futures -m ooctrain compare ...     63 workers, wherever they are

In the second line rank 0 runs the command and the others wait for cases. Plain `mpiexec python -m
ooctrain compare` would compute everything in every process, so it is refused. No worker outlives
the process that it works for, however that one ends: each watches a pipe of which only that process
holds the other end, and the system closes it at the latest. Source: mpi4py's documentation,
"mpi4py.futures". Read next: `spread.py`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import FrameType

from ooctrain.distributed.mpi import launched_ranks
from ooctrain.errors import ConfigError
from ooctrain.step.presets import usable_cores

POOL = "mpi4py.futures"
#: What ends this process as Ctrl-C does while workers compute; not every system has all.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


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


@contextmanager
def open_executor(count: int) -> Iterator[Executor]:
    """The workers: all other ranks of `mpiexec`, else `count` processes of this machine.

    Processes end with the block; at once, whatever they compute, where it is left by an exception.

    Raises:
        KeyboardInterrupt: the process was asked to end, by SIGTERM or SIGHUP too.
    """
    if _ranks():
        from mpi4py.futures import MPIPoolExecutor  # an extra, which starts MPI when it is imported

        with MPIPoolExecutor() as pool:
            yield pool
        return
    # "spawn": a fork would inherit locks of threads that do not exist in the child.
    context = get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    with (
        _ending_interrupts(), watched, held,
        ProcessPoolExecutor(count, context, initializer=_end_with, initargs=(watched,)) as pool,
    ):  # fmt: skip
        try:
            yield pool
        except BaseException:
            held.close()  # else the pool would wait for what they compute
            raise


def _end_with(watched: Connection) -> None:
    """In a worker: it ends as soon as nobody holds the other end of a pipe. Ctrl-C and a closed
    terminal, which reach all processes of a command, are left to the one that started them.
    """
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    def wait() -> None:
        watched.poll(None)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _ending_interrupts() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP raise KeyboardInterrupt, unless somebody handles or ignores
    them; the default would end this process without a word. Only a main thread may ask for it.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"ended by {signal.Signals(number).name}")

    main = threading.current_thread() is threading.main_thread()
    mine = [n for n in ENDING if main and signal.getsignal(n) is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


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
