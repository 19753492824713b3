"""Limits of this process's own control group, of all groups above it, and of `ulimit` are seen.

Trees of /proc and /sys/fs/cgroup as version 1, version 2, both at once, containers and batch
systems have them. The least over all ancestors counts, less what each is charged already.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory_group import memory_group

from ooctrain.devices.cpu.host_vm import available_memory_bytes, tightest_limit
from ooctrain.step.allowance import cpu_quotas, memory_limits, usable_cores

MIB = 1 << 20
FREE = {"proc/meminfo": f"MemAvailable: {9000 * 1024} kB\n"}
V2 = "24 1 0:21 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
HYBRID = V1 + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


def two(folder: str, limit: object, used: object, name: str = "memory.max") -> dict[str, str]:
    return {f"{folder}/{name}": f"{limit}\n", f"{folder}/memory.current": f"{used}\n"}


def one(folder: str, limit: object, used: object) -> dict[str, str]:
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
    }


def group(mounts: str, own: str) -> dict[str, str]:
    return {**FREE, "proc/self/mountinfo": mounts, "proc/self/cgroup": own}


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


CG, MEM = "sys/fs/cgroup", "sys/fs/cgroup/memory"
JOB = f"{MEM}/slurm/uid_0/job_1"
NONE = 9223372036854771712
#: {what: (files, free bytes, a part of the source)}
TREES = {
    "systemd, version 2": (
        group(V2, "0::/user.slice/run.scope\n") | two(f"{CG}/user.slice/run.scope", 500, 100)
        | two(f"{CG}/user.slice", "max", 4000), 400, "run.scope, memory.max",
    ),
    "an ancestor is tighter": (
        group(V2, "0::/a/b/c\n") | two(f"{CG}/a/b/c", 5000, 100) | two(f"{CG}/a/b", "max", 100)
        | two(f"{CG}/a", 3000, 2500), 500, "/a, memory.max",
    ),
    "only an ancestor has one": (
        group(V2, "0::/a/b/c\n") | two(f"{CG}/a/b/c", "max", 1) | two(f"{CG}/a", 70, 20), 50, "/a,",
    ),
    "memory.high": (
        group(V2, "0::/a\n") | two(f"{CG}/a", 800, 100) | two(f"{CG}/a", 300, 100, "memory.high"),
        200, "memory.high",
    ),
    "over memory.high": (group(V2, "0::/a\n") | two(f"{CG}/a", 30, 100, "memory.high"), 0, "high"),
    "SLURM, version 1": (
        group(V1, "9:cpu,cpuacct:/x\n4:memory:/slurm/uid_0/job_1/step_0\n0::/\n")
        | one(f"{JOB}/step_0", NONE, 200) | one(JOB, 900, 200)
        | one(f"{MEM}/slurm", NONE, 5) | one(MEM, NONE, 99), 700, "job_1, memory.limit_in_bytes",
    ),
    "both versions, version 1 has the memory": (
        group(HYBRID, "4:memory:/job\n0::/user\n") | one(f"{MEM}/job", 600, 100)
        | {f"{CG}/unified/user/cgroup.procs": ""}, 500, "/job",
    ),
    "both versions, version 2 has it": (
        group(HYBRID.replace(",memory", ",pids"), "4:pids:/job\n0::/user\n")
        | two(f"{CG}/unified/user", 600, 150), 450, "unified/user",
    ),
    "a container that shows its own group": (
        group(V1.replace("0:32 / ", "0:32 /docker/abc "), "4:memory:/docker/abc\n")
        | one(MEM, 640, 40), 600, "/sys/fs/cgroup/memory,",
    ),
    "a group below what a container shows": (
        group(V1.replace("0:32 / ", "0:32 /docker/abc "), "4:memory:/docker/abc/inner\n")
        | one(MEM, 640, 40) | one(f"{MEM}/inner", 50, 40), 10, "inner",
    ),
    "a namespace": (group(V2, "0::/../../other\n") | two(CG, 640, 40), 600, "/sys/fs/cgroup,"),
    "a path that is not shown": (group(V2, "0::/host/only\n") | two(CG, 70, 40), 30, "cgroup,"),
    "a group that is gone": (group(V2, "0::/a/b (deleted)\n") | two(f"{CG}/a", 70, 40), 30, "/a,"),
    "ancestors that are not shown, version 1": (
        group(V1, "4:memory:/\n") | one(MEM, NONE, 100)
        | {f"{MEM}/memory.stat": "cache 5\nhierarchical_memory_limit 400\n"}, 300, "memory.stat",
    ),
    "cache that is given up": (
        group(V2, "0::/a\n") | two(f"{CG}/a", 500, 480)
        | {f"{CG}/a/memory.stat": "anon 80\ninactive_file 400\n"}, 420, "/a,",
    ),
    "a checkpoint that was written and read again": (
        group(V1, "4:memory:/a\n") | one(f"{MEM}/a", 420, 357)
        | {f"{MEM}/a/memory.stat": "active_file 1\ntotal_rss 229\ntotal_inactive_file 7\n"
           "total_active_file 121\ntotal_mapped_file 200\ntotal_shmem 190\n"}, 181, "/a,",
    ),
    "libraries are in use": (
        group(V2, "0::/a\n") | two(f"{CG}/a", 500, 480)
        | {f"{CG}/a/memory.stat": "anon 80\nactive_file 400\nfile_mapped 300\n"}, 120, "/a,",
    ),
    "more is mapped than lately read": (
        group(V2, "0::/a\n") | two(f"{CG}/a", 500, 480)
        | {f"{CG}/a/memory.stat": "active_file 30\ninactive_file 9\nfile_mapped 99\n"}, 29, "/a,",
    ),
    "a mount elsewhere, with a space": (
        group(V2.replace("/sys/fs/cgroup", "/run/my\\040groups"), "0::/a b\n")
        | two("run/my groups/a b", 500, 1), 499, "a b",
    ),
    "no limit": (group(V2, "0::/a\n") | two(f"{CG}/a", "max", 5), 9000 * MIB, "the machine"),
    "no limit, version 1": (
        group(V1, "4:memory:/a\n") | one(f"{MEM}/a", NONE, 5), 9000 * MIB, "the machine",
    ),
    "ulimit -v": (
        {**FREE, "proc/self/limits": "Limit  Soft Limit  Hard Limit  Units\n"
         "Max address space         5000000              unlimited            bytes\n",
         "proc/self/status": "VmSize:\t 1000 kB\nVmData:\t 10 kB\n"}, 3976000, "ulimit -v",
    ),
    "ulimit -d": (
        {**FREE, "proc/self/limits": "Max data size         5000000  unlimited  bytes\n"
         "Max address space         unlimited   unlimited     bytes\n",
         "proc/self/status": "VmSize:\t 1000 kB\nVmData:\t 10 kB\n"}, 5000000 - 10240, "ulimit -d",
    ),
    "nonsense": (group("x\n - \n1 2 3 4 5 - cgroup2\n", "nothing\n0\n"), 9000 * MIB, "the machine"),
}  # fmt: skip


@pytest.mark.parametrize("what", TREES)
def test_memory(what: str, tmp_path: Path) -> None:
    files, free, source = TREES[what]
    room = tightest_limit(written(tmp_path, files))
    assert room is not None
    assert (room.free_bytes, source in room.source) == (free, True), room
    assert available_memory_bytes(tmp_path) == free


one_group = st.tuples(st.none() | st.integers(0, 99), st.integers(0, 99))


@given(st.lists(one_group, min_size=1, max_size=5))
def test_the_least_of_all_ancestors(
    tmp_path_factory: pytest.TempPathFactory, groups: list[tuple[int | None, int]]
) -> None:
    names = [f"g{depth}" for depth in range(len(groups))]
    files = group(V2, f"0::/{'/'.join(names)}\n")
    for depth, (limit, used) in enumerate(groups):
        folder = "/".join([CG, *names[: depth + 1]])
        files |= two(folder, "max" if limit is None else limit, used)
    root = written(tmp_path_factory.mktemp("groups"), files)
    expected = [max(0, limit - used) for limit, used in groups if limit is not None]
    assert sorted(room.free_bytes for room in memory_limits(root)) == sorted(expected)


def quota(microseconds: int) -> dict[str, str]:
    """Of version 1, for each 100,000 us."""
    folder = f"{CG}/cpu,cpuacct/job"
    return {
        **group(V1, "2:cpu,cpuacct:/job\n"), f"{folder}/cpu.cfs_quota_us": f"{microseconds}\n",
        f"{folder}/cpu.cfs_period_us": "100000\n",
    }  # fmt: skip


OF_A, OF_B = f"{CG}/a/cpu.max", f"{CG}/a/b/cpu.max"
QUOTAS = {
    "version 2": (group(V2, "0::/a/b\n") | {OF_B: "150000 100000\n"}, 1.5),
    "an ancestor": (
        group(V2, "0::/a/b\n") | {OF_B: "max 100000\n", OF_A: "5000 10000\n"}, 0.5,
    ),
    "version 1": (quota(200000), 2.0),
    "version 1 without": (quota(-1), None),
    "none": (group(V2, "0::/a\n") | {OF_A: "max 100000\n"}, None),
}  # fmt: skip


@pytest.mark.parametrize("what", QUOTAS)
def test_processor_time(what: str, tmp_path: Path) -> None:
    files, time = QUOTAS[what]
    written(tmp_path, files)
    assert min(cpu_quotas(tmp_path), default=None) == time
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    expected = allowed if time is None else max(1, min(allowed or 1, math.ceil(time)))
    assert usable_cores(tmp_path) == expected


def test_a_group_that_is_made_here() -> None:
    """The limit of a real group is seen from within; skipped where none may be made."""
    limit = 400 * MIB
    with memory_group(limit) as made:
        if made is None:
            pytest.skip("no control group may be made here")
        code = (
            "from ooctrain.devices.cpu.host_vm import tightest_limit\n"
            "room = tightest_limit(); print(room.limit_bytes, room.free_bytes)"
        )
        enter = lambda: (made / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        found = subprocess.run(
            [sys.executable, "-c", code], preexec_fn=enter, stdout=subprocess.PIPE, text=True,
            check=True,
        )  # fmt: skip
    limited, free = map(int, found.stdout.split())
    assert limited == limit
    assert 0 < free < limit
