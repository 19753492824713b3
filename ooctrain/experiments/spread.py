"""The cases of an experiment, spread over cores or machines, kept, and computed again if need be.

The input is a function and its cases, the output its results. Planning and replaying are pure
functions of plain data, so a case may run in any process of any machine. Its result may be kept
under a name made of the function, the case and the sources. If its process died (the system kills
one that takes too much memory), the case may run again in another one. Under `mpiexec` a process
that dies ends the others too, which is MPI's rule: the same command, given again, computes what is
not kept yet. Read next: `workers.py`, `kept.py`; `paper_000/fragmentation.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ooctrain.errors import OoctrainError
from ooctrain.experiments.kept import ResultStore, digest, package_sources, revived
from ooctrain.experiments.workers import open_executor, worker_count

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
    for place, rows in finished(keeping, cases, processes):
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
                waiting[pool.submit(work, case)] = place
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
