"""Checkpoints: all of a run in one safetensors file, which is whole or absent.

Named arrays and a `RunState` are written to a file and read back. The new file is written next to
the old one, flushed to the disk, and only then takes its name; a process killed at any moment
leaves the last whole checkpoint under that name. A SHA-256 over names, shapes, bytes and state
detects later corruption on the disk, and the previous files ("run.safetensors.1", ...) then serve
as replacements. The file is never a pickle, since loading a pickle can run code. Read next:
`checkpoint_file.py`; `saved_state.py`, which decides what a run's state contains.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from ooctrain.errors import CheckpointError, ConfigError, warn
from ooctrain.execution.checkpoint_file import (
    CHECKSUM_KEY,
    STATE_KEY,
    FileArrays,
    Storable,
    checksum_of,
    size_bytes,
    write,
)
from ooctrain.step.schema import Count, Whole, fitted, parse_json
from ooctrain.step.user_values import as_path
from ooctrain.units import format_bytes

#: 2 has `RunState.updates`; files that need none are written as 1.
FORMAT_VERSION = 2
KEEP = 2
#: {errno: why there is no room for a file}
TOO_MUCH: Mapping[int, str] = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "it is beyond this user's quota",
    errno.EFBIG: "no file may be of this size (ulimit -f)",
}


class _VersionOf(msgspec.Struct):
    """What is read first of a state."""

    version: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run stands, apart from its arrays.

    Args:
        step: steps done.
        epoch: epochs done.
        seed: seed of weights, dropout and data order.
        data: the loader's state (epoch and position).
        schedule: the learning-rate schedule's state.
        config: what must be the same to go on with the same bits (model, batch, optimizer, ...).
        history: what the run wants to remember (losses).
        updates: {parameter: how many it has seen}, where that is not `step`: it was frozen, or came
            later.
    """

    step: Count
    epoch: Count = 0
    seed: Whole = 0
    data: Mapping[str, int] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, Any] = field(default_factory=dict)
    updates: Mapping[str, Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file's content. `path` is the file that was read, perhaps a previous one; `arrays` reads
    each one when it is asked for."""

    arrays: Mapping[str, np.ndarray]
    run: RunState
    path: Path


#: Settings that must be those of a saved run; or what makes them from its state.
Expected = Mapping[str, Any] | Callable[[RunState], Mapping[str, Any]]


def save(
    path: str | Path, arrays: Mapping[str, Storable], run: RunState, *, keep: int = KEEP
) -> None:
    """Writes a checkpoint; a file of that name becomes the previous one, and hands on its access
    rights.

    Args:
        path: the file, ".safetensors" by custom; of a link what it points to is written.
        arrays: or tensors, whose values are fetched one after the other, each once, in the order of
            their names.
        keep: files kept in all, the new one included.

    Raises:
        CheckpointError: it cannot be written; the last checkpoint is as it was.
        ConfigError: the state is nothing that can be read again; the last checkpoint is as it was.
    """
    ordered = {name: arrays[name] for name in sorted(arrays)}
    put_in_place(place_of(path), ordered, _state_text(run), keep)


def put_in_place(
    target: Path, ordered: Mapping[str, Storable], state: str | None, keep: int
) -> None:
    """Writes a file next to its place, and gives it its name when it is whole.

    Args:
        state: of a run; None: weights alone.
        keep: as of `save`.

    Raises:
        CheckpointError: as of `save`.
    """
    temporary = _temporary(target)
    try:
        _make_place(target)
        write(temporary, ordered, state, _before(target))
        _keep_previous(target, keep)
        os.replace(temporary, target)
        _sync_folder(target.parent)
        _remove_abandoned(target)
    except OSError as error:
        raise _cannotwrite(target, ordered, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def expect_writable(path: str | Path) -> None:
    """Tries, before hours of work go into it, whether a checkpoint can be written: a file next to
    it is made and removed.

    Raises:
        CheckpointError: it cannot.
    """
    target = place_of(path)
    temporary = _temporary(target)
    try:
        _make_place(target)
        write(temporary, {}, "")
    except OSError as error:
        raise _cannotwrite(target, {}, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def load(path: str | Path) -> Checkpoint:
    """Reads a checkpoint, or where it is broken the newest whole one before it, with a warning.

    Raises:
        CheckpointError: there is none, none is whole, or it comes from a newer version.
    """
    target = place_of(path)
    first_error: CheckpointError | None = None
    for candidate in (target, *previous_files(target)):
        try:
            checkpoint = read(candidate)
        except CheckpointError as error:
            if error.code == "OOC-312":
                raise
            first_error = first_error or error
            continue
        if first_error:
            warn(
                f"{target} cannot be used ({first_error.what}); going on from {candidate}, step "
                f"{checkpoint.run.step}"
            )
        return checkpoint
    assert first_error is not None
    older = previous_files(target)
    if older:
        names = " and ".join(map(str, older))
        first_error.fix = f"{names} cannot be used either: begin again without --resume"
    raise first_error


def read(path: str | Path) -> Checkpoint:
    """Reads exactly this file.

    Raises:
        CheckpointError: missing, truncated, altered, foreign, or of a newer version (OOC-312).
    """
    if Path(path).is_dir():
        raise CheckpointError(
            f"{path} is a folder, not a checkpoint", code="OOC-311",
            fix=f"one of its files: `ls {path}` shows them",
        )  # fmt: skip
    try:
        with safe_open(str(path), "np"):  # it looks at the whole header
            arrays = FileArrays(path)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"there is no checkpoint {path}",
            code="OOC-311",
            fix="--resume takes a file that --checkpoint has written; "
            f"`ls {Path(path).parent}` shows what is there",
        ) from error
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _broken(path, str(error)) from error
    run = _parse_state(path, arrays.metadata)
    try:
        checksum = checksum_of(arrays, arrays.metadata[STATE_KEY])
    except (OSError, ValueError, KeyError) as error:
        raise _broken(path, str(error)) from error
    if arrays.metadata.get(CHECKSUM_KEY) != checksum:
        raise _broken(path, "its checksum does not match its content")
    return Checkpoint(arrays, run, Path(path))


def place_of(path: str | PathLike[str]) -> Path:
    """Where a checkpoint lies: of a link what it points to, which need not be there yet."""
    found = as_path(path)
    return Path(os.path.realpath(found)) if found.is_symlink() else found


def previous_files(path: str | Path) -> list[Path]:
    """The previous checkpoints of a file, newest first: "run.safetensors.1", "run.safetensors.2",
    ..."""
    path = place_of(path)
    found = {
        int(other.suffix[1:]): other
        for other in path.parent.glob(f"{_escaped(path.name)}.*")
        if other.suffix[1:].isdecimal() and other.stem == path.name
    }
    return [found[number] for number in sorted(found)]


def older_than(path: str | Path) -> str:
    """What is there in place of a checkpoint that cannot be used, as a fix."""
    older = previous_files(path)
    if older:
        return f"{older[0]} is the one before it: --resume {older[0]}"
    return f"there is no {path}.1, the one before it: begin again without --resume"


def check_arrays(checkpoint: Checkpoint, expected: Mapping[str, np.ndarray]) -> None:
    """Raises CheckpointError, naming the first array that is missing, foreign, or of another
    shape."""
    for name in sorted({*expected, *checkpoint.arrays}):
        if name not in checkpoint.arrays:
            raise _foreign(checkpoint, f"{name!r} is missing")
        if name not in expected:
            raise _foreign(checkpoint, f"it holds {name!r}, which this model does not have")
        have, want = checkpoint.arrays[name], expected[name]
        if have.shape != want.shape or have.dtype != want.dtype:
            raise _foreign(
                checkpoint,
                f"{name!r} is {have.dtype}{have.shape}, the model's {want.dtype}{want.shape}",
            )


def check_config(checkpoint: Checkpoint, expected: Mapping[str, Any]) -> None:
    """Raises CheckpointError, naming each setting that differs from the run that was saved."""
    saved = checkpoint.run.config
    pairs = {key: (saved.get(key), expected.get(key)) for key in sorted({*expected, *saved})}
    other = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    if other:
        names = [
            f"{'other' if isinstance(pair[0], list) else 'another'} {k}"
            for k, pair in other.items()
        ]
        raise CheckpointError(
            f"{checkpoint.path} was saved with {' and '.join(names)}",
            code="OOC-313",
            numbers="; ".join(f"{key}: {_difference(*pair)}" for key, pair in other.items()),
            fix="resume with the settings of the run that was saved",
        )


def _difference(before: Any, now: Any) -> str:
    """Of two settings; of two lists, such as of classes, the first places that differ."""
    if not isinstance(before, list) or not isinstance(now, list):
        return f"saved {before!r}, now {now!r}"
    length = max(len(before), len(now))
    pairs = list(
        zip(*(each + [None] * (length - len(each)) for each in (before, now)), strict=True)
    )
    place, (was, is_) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    return f"saved {len(before)}, now {len(now)}; number {place} was {was!r} and is {is_!r}"


def _as_json(run: RunState) -> dict[str, Any]:
    values = asdict(run)
    if not run.updates:
        del values["updates"]  # so that readers of version 1 can read it
    return {"version": FORMAT_VERSION if run.updates else 1, **values}


def _state_text(run: RunState) -> str:
    """The state as it is written. Raises ConfigError: it could not be read back."""
    try:
        text = json.dumps(_as_json(run), sort_keys=True, allow_nan=False, default=_plain_number)
        state = parse_json(text)
        del state["version"]
        fitted(RunState, state)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"this state of a run cannot be saved: {error}", code="OOC-106",
            fix="RunState with whole numbers of 64 bits, text, and lists and dicts of plain values",
        ) from error  # fmt: skip
    return text


def _plain_number(value: Any) -> Any:
    """A number of NumPy as Python's own. Raises TypeError: something else."""
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r:.40} is not a plain value")


def _temporary(target: Path) -> Path:
    return target.with_name(f"{target.name}.tmp.{os.getpid()}.{secrets.token_hex(4)}")


def _make_place(target: Path) -> None:
    """Makes the folder. Raises OSError: there are no files, but folders or devices, where this
    checkpoint and its previous ones are to be: they would be renamed or overwritten."""
    if target.is_symlink():  # what it points to is a link again, and so on
        raise OSError(f"{target.name} is a link in a circle of links")
    for file in (target, *previous_files(target)):
        if file.exists() and not file.is_file():
            raise OSError(f"there is something called {file.name} that is not a file")
    target.parent.mkdir(parents=True, exist_ok=True)


def _before(target: Path) -> os.stat_result | None:
    """The file that is there, whose access rights the new one gets; None: there is none."""
    try:
        return target.stat()
    except FileNotFoundError:
        return None


def _keep_previous(target: Path, keep: int) -> None:
    for old in reversed(previous_files(target)):
        number = int(old.suffix[1:]) + 1
        if number < keep:
            os.replace(old, target.with_name(f"{target.name}.{number}"))
        else:
            old.unlink()
    if keep > 1 and target.exists():
        # A second name for the same file: at no moment is there no file called `target`.
        try:
            os.link(target, target.with_name(f"{target.name}.1"))
        except OSError:
            os.replace(target, target.with_name(f"{target.name}.1"))


def _remove_abandoned(target: Path) -> None:
    """Removes what processes left that were killed while they wrote this checkpoint."""
    for part in target.parent.glob(f"{_escaped(target.name)}.tmp.*.*"):
        writer = part.name.removeprefix(f"{target.name}.tmp.").partition(".")[0]
        if writer.isdecimal() and _has_ended(int(writer)):
            with suppress(OSError):
                part.unlink()


def _has_ended(process: int) -> bool:
    """Whether no process has this number; elsewhere than on POSIX systems that is unknown."""
    if os.name != "posix":
        return False
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass  # another user's process, or not a process number
    return False


def _sync_folder(folder: Path) -> None:
    """Makes the new name itself durable; not every system lets a folder be opened."""
    with suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _parse_state(path: str | Path, metadata: Mapping[str, str]) -> RunState:
    if STATE_KEY not in metadata:
        raise CheckpointError(
            f"{path} is a safetensors file, but no checkpoint of this library",
            fix="weights alone are loaded with `model.load_state_dict`",
        )
    try:
        state = parse_json(metadata[STATE_KEY])
        found = fitted(_VersionOf, state)
        if found.version > FORMAT_VERSION:
            raise CheckpointError(
                f"{path} was written by a newer version of this library",
                code="OOC-312",
                numbers=f"format {found.version}, this library knows {FORMAT_VERSION}",
                fix="update ooctrain",
            )
        del state["version"]
        return fitted(RunState, state)
    except ValueError as error:
        raise _broken(path, f"its state cannot be read: {error}") from error


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _broken(path: str | Path, why: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {path} is broken: {why}", fix=older_than(path))


def _foreign(checkpoint: Checkpoint, why: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.path} belongs to another model: {why}",
        code="OOC-313",
        fix="resume with the model, number of classes and optimizer of the run that was saved",
    )


def _cannotwrite(target: Path, arrays: Mapping[str, Storable], error: OSError) -> CheckpointError:
    size = sum(map(size_bytes, arrays.values()))
    full = TOO_MUCH.get(error.errno or 0)
    what = full or error.strerror or str(error)
    kept = "; the last one is kept" if target.exists() else ""
    return CheckpointError(
        f"checkpoint {target} cannot be written: {what}{kept}",
        code="OOC-314",
        numbers=f"{format_bytes(size)} needed, previous files included while it is written"
        if arrays
        else "",
        fix="free some space, or save elsewhere with --checkpoint"
        if full
        else "--checkpoint FILE in a folder that you may write to",
    )


# One process at a time writes a checkpoint: two runs that write one file would each replace the
# other's. The operating system holds the lock on a small file next to it and releases it when the
# process ends, however that happens, so a leftover lock file blocks no later run. Source: flock(2).


@contextmanager
def only_writer(path: str | Path | None) -> Iterator[None]:
    """Holds a checkpoint for this process; where the system has no flock, no process waits.

    Args:
        path: that of the checkpoint; None: there is none to hold.

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
        return os.path.samefile(lock, descriptor)
    except FileNotFoundError:
        return False


def _held(path: str | Path, lock: Path) -> CheckpointError:
    holder = lock.read_text(encoding="ascii", errors="replace").strip()
    return CheckpointError(
        f"another process writes checkpoint {path}", code="OOC-315",
        where=f"process {holder}" if holder else "",
        fix="wait until it has ended, or give this run a --checkpoint of its own",
    )  # fmt: skip
