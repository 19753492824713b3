"""The cases of an experiment, spread over cores or machines, kept, computed again if need be.

The input is a function and its cases, the output its results. Planning and replaying are pure
functions of plain data, so a case may run in any process of any machine. Its result may be kept
under a name made of the function, the case and the sources. If its process died (the system kills
one that takes too much memory), the case may run again in another one. Under `mpiexec` a process
that dies ends the others too, which is MPI's rule: the same command, given again, computes what is
not kept yet. Read next: `kept.py`; `paper_000/fragmentation.py`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, get_type_hints

from ooctrain.activity import doing
from ooctrain.distributed.mpi import launched_ranks
from ooctrain.engine.finished import interrupts_wait
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.experiments.kept import ResultStore, digest, package_sources, revived
from ooctrain.step.presets import usable_cores

Case = TypeVar("Case")
Result = TypeVar("Result")
#: Cases that a process pool has handed out beyond one for each process.
QUEUED = 1


def spread(
    work: Callable[[Case], list[Any]], cases: Sequence[Case], processes: int | None = None,
    keep: Path | None = None,
) -> Iterator[list[Any]]:  # fmt: skip
    """Calls `work` for each case; the rows of each as soon as they and those before it are there.

    Args:
        work: a function of a module, since it travels to other processes; annotated as one that
            returns a list of dataclasses of plain data. What decides them is the case, and the
            package's sources.
        processes: None: as many as this process may use cores, or `mpiexec` ranks; 1: this one.
        keep: folder of what was found; what it has is not computed again. None: nothing is kept.
    """
    early: dict[int, list[Any]] = {}
    after = 0
    keeping = work if keep is None else partial(kept_rows, work, keep)
    with doing("computing", of=len(cases)) as one_more:
        for place, rows in finished(keeping, cases, processes):
            one_more()
            early[place] = rows
            while after in early:
                yield early.pop(after)
                after += 1


def kept_rows(work: Callable[[Case], list[Any]], keep: Path, case: Case) -> list[Any]:
    """The rows of a case, from the folder if they are there."""
    store = ResultStore(keep)
    name = f"rows-{digest(work.__module__, work.__qualname__, case, package_sources())}.json"
    kept = store.read(name)
    if kept is not None:
        return revived(get_type_hints(work)["return"], kept)
    rows = work(case)
    store.write(name, [asdict(row) for row in rows])
    return rows


def finished(
    work: Callable[[Case], Result], cases: Sequence[Case], processes: int | None = None
) -> Iterator[tuple[int, Result]]:
    """Calls `work` for each case: (place of the case, result), as soon as it is there.

    Args:
        work: a function of a module, or a partial of one.
        processes: as for `spread`.

    Raises:
        OoctrainError: a case kills each process that computes it; the others are done.
    """
    count = worker_count(processes, len(cases))
    if count <= 1:
        yield from ((place, work(case)) for place, case in enumerate(cases))
        return
    missing, fatal = dict(enumerate(cases)), []
    while missing:
        for place, result in _until_a_death(work, missing, count):
            del missing[place]
            yield place, result
        # Cases begin in their order, so one of these has killed its process, if any is left.
        for place in list(missing)[: count + QUEUED]:
            suspect = missing.pop(place)
            alone = list(_until_a_death(work, {place: suspect}, 1))
            yield from alone
            fatal += [] if alone else [suspect]
    if fatal:
        raise OoctrainError(
            "computing a case of a sweep kills its process, also when nothing else runs",
            code="OOC-166", where=", ".join(map(repr, fatal)),
            numbers=f"{len(cases) - len(fatal)} of {len(cases)} cases are done",
            fix="a machine with more memory, or a sweep without it; the others are kept",
        )  # fmt: skip


def _until_a_death(
    work: Callable[[Case], Result], missing: dict[int, Case], count: int
) -> Iterator[tuple[int, Result]]:
    """What workers finish before one of them dies, which ends them all."""
    with open_executor(count) as pool:
        waiting: dict[Future[Result], int] = {}
        try:
            for place, case in missing.items():
                with interrupts_wait():
                    future = pool.submit(work, case)
                waiting[future] = place
            for future in as_completed(list(waiting)):
                result = future.result()
                yield waiting.pop(future), result
        except BrokenExecutor:
            # Others may have been finished at the same moment.
            for future, place in waiting.items():
                if future.done() and not future.exception():
                    yield place, future.result()
        finally:
            if waiting:  # else the pool ends in order, its thread too
                pool.shutdown(wait=False, cancel_futures=True)


# The workers: this machine's cores, or the machines of `mpiexec`. Both have the interface of
# `concurrent.futures`, so a sweep does not depend on which of them compute:
#
#     ooctrain compare ...                                             processes of this machine
#     mpiexec -n 64 python -m mpi4py.futures -m ooctrain compare ...   63 workers, wherever they are
#
# In the second line rank 0 runs the command and the others wait for cases. Plain `mpiexec python -m
# ooctrain compare` would compute everything in every process, so it is refused. No worker outlives
# the process that it works for, however that one ends: each watches a pipe of which only that
# process holds the other end, and the system closes it at the latest. Source: mpi4py's
# documentation, "mpi4py.futures".

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
    """In a worker: it ends as soon as the other end of a pipe is closed. Ctrl-C and a closed
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
    """Within it SIGTERM and SIGHUP raise KeyboardInterrupt, unless the program handles or ignores
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
