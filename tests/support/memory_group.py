"""A control group with a hard limit of memory and no swap, where one may be made; for a child.

Version 2 of the control groups has `memory.max` and `memory.swap.max`; version 1 has one limit of
memory and one of memory and swap together. What is over the limit and cannot be given back is
killed by the kernel, so a child that lives has kept to it. Where no group may be made the parent
looks at the child from outside all the time (`ooctrain/devices/cpu/process_memory.py`).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ooctrain.devices.cpu.process_memory import MemoryWatch

#: For version 2 and version 1: the folder, the limits in the order in which they may be set.
VERSIONS = (
    (Path("/sys/fs/cgroup"), ("memory.max", "memory.swap.max")),
    (Path("/sys/fs/cgroup/memory"), ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
)


@dataclass(frozen=True, slots=True)
class Done:
    """How a child ended.

    Args:
        limited: whether a control group held it to the limit.
        most_bytes: that it held at any look from outside.
    """

    status: int
    out: str
    limited: bool
    most_bytes: int


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """A fresh group with this limit and no swap; None: no group may be made here."""
    group = next(filter(None, (_made(*version, limit_bytes) for version in VERSIONS)), None)
    try:
        yield group
    finally:
        if group is not None:
            for _ in range(50):  # until the kernel has taken leave of the last process
                with suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.1)


def _made(root: Path, names: tuple[str, str], limit_bytes: int) -> Path | None:
    group = root / f"ooctrain-test-{os.getpid()}"
    if not (root / "cgroup.procs").is_file():
        return None
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        (group / names[0]).write_text(str(limit_bytes))
    except OSError:
        group.rmdir()
        return None
    with suppress(OSError):  # a kernel that does not count swap
        swap = 0 if names[1] == "memory.swap.max" else limit_bytes
        (group / names[1]).write_text(str(swap))
    return group


def run_limited(command: Sequence[str], limit_bytes: int, timeout_s: float, cwd: Path) -> Done:
    """Runs a child under the limit, and looks at it from outside."""
    with memory_group(limit_bytes) as group:

        def enter() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        child = subprocess.Popen(
            command, cwd=cwd, preexec_fn=enter, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            with MemoryWatch(child.pid) as watch:
                out, _ = child.communicate(timeout=timeout_s)
        finally:
            child.kill()
            child.wait()
        return Done(child.returncode, out, group is not None, watch.most_bytes)
