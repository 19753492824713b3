"""What made-up systems let a process take of memory and processors is what it was.

Each system is a few files, drawn: control groups of either version, nested, with and without
limits, accounts of page cache, mounts that show a part of the path, and resource limits. That each
limit is the right one, `../strangers/test_limits_of_ones_own_group.py` holds; `support/known.py`
says why the answers stand in a table.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from random import Random

import pytest
from support import known

from ooctrain.step.allowance import cpu_quotas, groups_of, memory_limits, usable_cores

NUMBERS = ("max", "0", "1000", "5000", "70000", "900000", str(1 << 60), str(1 << 62), "", "-1", "x")
STAT = ("total_mapped_file", "mapped_file", "file_mapped", "total_shmem", "shmem",
        "total_active_file", "active_file", "total_inactive_file", "inactive_file",
        "hierarchical_memory_limit")  # fmt: skip
FILES = ("memory.max", "memory.high", "memory.current", "memory.limit_in_bytes",
         "memory.usage_in_bytes", "cpu.cfs_quota_us", "cpu.cfs_period_us")  # fmt: skip


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def group(random: Random, folder: Path) -> None:
    """Its files, each there or not."""
    for name in FILES:
        if random.random() < 0.6:
            write(folder / name, random.choice(NUMBERS) + "\n")
    if random.random() < 0.6:
        words = random.choice(NUMBERS), random.choice(("100000", "0", "2000", ""))
        write(folder / "cpu.max", " ".join(words))
    if random.random() < 0.7:
        chosen = [name for name in STAT if random.random() < 0.5]
        lines = [f"{name} {random.choice((0, 10, 400, 3000, 20000))}" for name in chosen]
        write(folder / "memory.stat", "\n".join(lines))


def system(random: Random, root: Path) -> None:
    own = random.choice(("/", "/a", "/a/b", "/a/b/c", "/../a", "/a/b (deleted)", "/with space"))
    shown = random.choice(("/", "/", "/a", "/a/b", "/elsewhere"))
    tops = {"cgroup2": "mnt/two", "memory": "mnt/memory", "cpu,cpuacct": "mnt/c p u"}
    for top in (*tops.values(), "sys/fs/cgroup", "sys/fs/cgroup/memory", "sys/fs/cgroup/cpu"):
        for depth in ("", "a", "a/b", "b", "a/b/c", "with space"):
            if random.random() < 0.7:
                group(random, root / top / depth)
    lines = [f"7:{kinds}:{own}" for kinds in ("", "memory", "cpu,cpuacct", "pids")]
    random.shuffle(lines)
    if random.random() < 0.9:
        write(root / "proc/self/cgroup", "\n".join([*lines[: random.randint(1, 4)], "broken"]))
    mounts = [
        f"25 30 0:26 {shown} /{place.replace(' ', chr(92) + '040')} rw - "
        + ("cgroup2 cgroup2 rw" if kind == "cgroup2" else f"cgroup cgroup rw,{kind}")
        for kind, place in tops.items()
    ]
    if random.random() < 0.8:
        write(
            root / "proc/self/mountinfo", "\n".join([*mounts, "1 2 - x", "9 9 9 / / - ext4 d rw"])
        )
    limits = [f"Max {what:20} {random.choice(NUMBERS):12} unlimited bytes"
              for what in ("address space", "data size", "stack size")]  # fmt: skip
    write(root / "proc/self/limits", "Limit Soft Hard\n" + "\n".join(limits))
    write(root / "proc/self/status", f"VmSize:\t {random.choice((0, 3, 60))} kB\nVmData:\t 2 kB\n")


@pytest.mark.parametrize("seed", range(8))
def test_systems_allow_what_they_did(seed, tmp_path):
    rows, cores = [], usable_cores(tmp_path / "nothing")
    for number in range(12):
        random, root = Random(100 * seed + number), tmp_path / str(number)
        system(random, root)
        quotas = cpu_quotas(root)
        assert usable_cores(root) == max(1, min([cores, *map(ceil, quotas)]))
        rows.append(quotas)
        for controller in ("memory", "cpu"):
            folders = [path.relative_to(root).as_posix() for path in groups_of(root, controller)]
            rows.append([controller, *folders])
        rows += [(room.free_bytes, room.limit_bytes, room.source) for room in memory_limits(root)]
    known.check_rows("limits", str(seed), rows)
