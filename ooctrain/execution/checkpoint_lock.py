"""One process at a time writes a checkpoint.

Two runs that write one file would each replace the other's, and a resumed run would continue from
the last one written. So a run locks a small file next to its checkpoint. The operating system holds
the lock and releases it when the process ends, however that happens, so a leftover lock file blocks
no later run. Source: flock(2). Read next: `checkpoint.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ooctrain.errors import CheckpointError
from ooctrain.execution.checkpoint import place_of


@contextmanager
def only_writer(path: str | Path | None) -> Iterator[None]:
    """Holds a checkpoint for this process; where the system has no flock, nobody is held up.

    Args:
        path: of the checkpoint; None: there is none to hold.

    Raises:
        CheckpointError: another process holds it (OOC-315), or the lock file cannot be made.
    """
    if path is None or os.name != "posix":
        yield
        return
    # Only POSIX systems have the module.
    import fcntl

    place = place_of(path)
    lock = place.with_name(f"{place.name}.lock")
    while True:
        descriptor = _opened(lock)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise _held(path, lock) from error
        if _is_still(lock, descriptor):
            break
        os.close(descriptor)  # its last holder removed it just now; the lock is on nothing
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(descriptor)


def _opened(lock: Path) -> int:
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise CheckpointError(
            f"{lock} cannot be made: {error.strerror}", code="OOC-314",
            fix="--checkpoint FILE in a folder that you may write to",
        ) from error  # fmt: skip


def _is_still(lock: Path, descriptor: int) -> bool:
    """Whether the name still stands for the file that was opened."""
    try:
        return os.path.samestat(os.stat(lock), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _held(path: str | Path, lock: Path) -> CheckpointError:
    holder = lock.read_text(encoding="ascii", errors="replace").strip()
    return CheckpointError(
        f"another process writes checkpoint {path}", code="OOC-315",
        where=f"process {holder}" if holder else "",
        fix="wait until it has ended, or give this run a --checkpoint of its own",
    )  # fmt: skip
