"""What the system lets this process take of the machine: control groups, quotas, resource limits.

Where the kernel's control groups are mounted, and in which group of each hierarchy this process is,
follow from /proc/self/mountinfo and /proc/self/cgroup. A limit holds for a group with all groups
below it, so that of every ancestor counts: batch systems (SLURM), systemd units and containers nest
them. Both versions exist, also side by side. What a container does not show of the path is not
there to be read, but version 1 has it in `hierarchical_memory_limit`. `memory.high` counts as a
limit, since what is above it is throttled to a crawl; the soft limit of version 1, which limits
nothing while memory is free, does not. Page cache is free but for what a process has mapped, such
as its libraries: the kernel gives the rest up, also where it was read twice, as a checkpoint that
was written and resumed. All files are below a root that tests may replace. Source: the kernel's
admin guide, control groups v1 and v2; proc(5). Read next: `presets.py`, `devices/cpu/host_vm.py`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType

#: Version 1 writes an unlimited group as the largest multiple of a page below 2**63.
_UNLIMITED = 1 << 60
#: In each version the limits of a group, and what it is charged.
_MEMORY_FILES = (
    (("memory.max", "memory.high"), "memory.current"),
    (("memory.limit_in_bytes",), "memory.usage_in_bytes"),
)
#: Resource limits that hold for memory, and what counts against them in /proc/self/status.
_RESOURCES = MappingProxyType(
    {"Max address space": ("ulimit -v", "VmSize"), "Max data size": ("ulimit -d", "VmData")}
)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What may still be taken of one limit.

    Args:
        free_bytes: bytes left of the limit; 0 where it is exceeded.
        limit_bytes: as the system has it.
        source: what sets it, in words.
    """

    free_bytes: int
    limit_bytes: int
    source: str


def memory_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """Every limit of memory that holds for this process, the tightest first; none where the system
    knows none.
    """
    rooms = [*_group_rooms(root), *_resource_rooms(root)]
    return sorted(rooms, key=lambda room: room.free_bytes)


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: those that it may run on, and no more than its control
    groups have processor time for, of which a part counts as one.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min([cores, *(math.ceil(quota) for quota in cpu_quotas(root))]))


def cpu_quotas(root: Path = Path("/")) -> list[float]:
    """Processors that the control groups of this process have time for, of each group that has a
    quota.
    """
    found = []
    for group in groups_of(root, "cpu"):
        words = (_read(group / "cpu.max") or "").split()
        if not words:
            quota = (_read(group / "cpu.cfs_quota_us") or "").strip()
            words = [quota, (_read(group / "cpu.cfs_period_us") or "100000").strip()]
        if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return [quota for quota in found if quota > 0]


def groups_of(root: Path, controller: str) -> list[Path]:
    """The folders of this process's groups that may limit what a controller counts ("memory",
    "cpu"), each before its ancestors, as far as they are mounted.
    """
    paths = _own_paths(root)
    found: dict[Path, None] = {}
    for kinds, top, shown in _mounts(root, controller):
        own = next((path for words, path in paths if kinds & words), "/")
        found |= dict.fromkeys(_upwards(top, _below(own, shown)))
    return [*found]


def _group_rooms(root: Path) -> Iterator[MemoryLimit]:
    for group in groups_of(root, "memory"):
        stat = dict(re.findall(r"^(\w+) (\d+)$", _read(group / "memory.stat") or "", re.MULTILINE))
        cache = _given_up_bytes({name: int(value) for name, value in stat.items()})
        for names, usage_name in _MEMORY_FILES:
            usage = _number(group / usage_name) or 0
            limits = {name: _number(group / name) for name in names}
            if names == ("memory.limit_in_bytes",):
                limits["memory.stat"] = int(stat.get("hierarchical_memory_limit", _UNLIMITED))
            for name, limit in limits.items():
                if limit is not None and limit < _UNLIMITED:
                    free = limit - max(0, usage - cache)
                    where = f"control group {_shown(group, root)}, {name}"
                    yield MemoryLimit(max(0, free), limit, where)


def _given_up_bytes(stat: Mapping[str, int]) -> int:
    """Page cache of a memory.stat that the kernel gives up before a limit is exceeded. What is
    mapped is in use; shared memory is counted among it, but not among files."""

    def of(*names: str) -> int:
        return next((stat[name] for name in names if name in stat), 0)

    mapped = of("total_mapped_file", "mapped_file", "file_mapped") - of("total_shmem", "shmem")
    active = of("total_active_file", "active_file")
    return of("total_inactive_file", "inactive_file") + max(0, active - max(0, mapped))


def _resource_rooms(root: Path) -> Iterator[MemoryLimit]:
    held = dict(
        re.findall(r"^(Vm\w+):\s+(\d+) kB$", _read(root / "proc/self/status") or "", re.MULTILINE)
    )
    for line in (_read(root / "proc/self/limits") or "").splitlines():
        for name, (source, counted) in _RESOURCES.items():
            soft = line.removeprefix(name).split()
            if line.startswith(name) and soft and soft[0].isdecimal():
                limit = int(soft[0])
                free = limit - int(held.get(counted, "0")) * 1024
                yield MemoryLimit(max(0, free), limit, source)


def _own_paths(root: Path) -> list[tuple[set[str], str]]:
    """(controllers, path) of this process in each hierarchy; of version 2 the controller is ""."""
    lines = (_read(root / "proc/self/cgroup") or "").splitlines()
    rows = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return [(set(kinds.split(",")), path.removesuffix(" (deleted)")) for _, kinds, path in rows]


def _mounts(root: Path, controller: str) -> Iterator[tuple[set[str], Path, str]]:
    """(what the hierarchy is called in /proc/self/cgroup, where it is mounted, which group is shown
    there) of those that may have the controller; where the system does not say, the usual places.
    """
    text = _read(root / "proc/self/mountinfo")
    if text is None:
        top = root / "sys/fs/cgroup"
        yield {""}, top, "/"
        yield {controller}, top / controller, "/"
    for line in (text or "").splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(" "), after.split(" ")
        if len(words) < 5 or len(kind) < 3:
            continue
        shown, where = map(_unescaped, words[3:5])
        place = root / where.lstrip("/")
        if kind[0] == "cgroup2":
            yield {""}, place, shown
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            yield {controller}, place, shown


def _below(own: str, shown: str) -> tuple[str, ...]:
    """The names from the group that a mount shows down to this process's own; none where it lies
    elsewhere, as namespaces may have it ("/../..").
    """
    parts, top = PurePosixPath(own).parts, PurePosixPath(shown).parts
    rest = parts[len(top) :] if parts[: len(top)] == top else ()
    return () if ".." in rest else rest


def _upwards(top: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """The folder below `top`, then each above it; those that are not there are left out."""
    for depth in range(len(names), -1, -1):
        folder = top.joinpath(*names[:depth])
        if folder.is_dir():
            yield folder


def _shown(group: Path, root: Path) -> str:
    return f"/{group.relative_to(root)}"


def _unescaped(text: str) -> str:
    """A path of mountinfo, in which a space is "\\040"."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
