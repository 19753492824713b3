"""Namespaces of its own: for this process, other processes, files and the network do not exist.

A process cannot reach what it cannot name. Here it keeps a list of paths that it sees read-only,
and one folder to write to. Inside a user namespace this needs no administrator. Some systems allow
no user namespaces; there the other layers must suffice. Sources: user_namespaces(7), pivot_root(2),
mount_namespaces(7). Read next: `supervise.py`, which enters them; `../isolation.py`, the same by a
program of that name.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_USER, _PIDS, _NET, _IPC, _NAMES, _MOUNTS = (
    0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x00020000,
)  # fmt: skip
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
_NO_ATIME, _NO_DIR_ATIME, _REL_ATIME = 1024, 2048, 1 << 21
#: What statvfs says of a mount, and the flags that mean the same to mount.
_KEPT = {2: _NO_SUID, 4: _NO_DEV, 8: _NO_EXEC, 1024: _NO_ATIME, 2048: _NO_DIR_ATIME,
         4096: _REL_ATIME}  # fmt: skip
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITY_VERSION_3 = 0x20080522
#: Of all files that can be written.
ROOM = "size=64m,nr_inodes=4096,mode=755"


def leave_the_others() -> bool:
    """Makes namespaces for users, processes, network and shared memory; whether that worked. The
    next child is the first process of them.

    Raises:
        OSError: they are made, and no user can be in them.
    """
    if sys.platform != "linux" or platform.machine() not in _PIVOT_ROOT:
        return False
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_USER | _PIDS | _NET | _IPC | _NAMES) != 0:
        return False
    with suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


def see_only(readable: Sequence[str], hidden: Sequence[str], root: str, home: str) -> None:
    """A root of its own with nothing in it but these paths, and a small folder to write to.

    Args:
        readable: files and folders, read-only there.
        hidden: folders below them that are empty there.
        root: an empty folder; the new root is made on it.
        home: the folder to write to, in memory.

    Raises:
        OSError: the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
        words = [word.encode() or None for word in (source, target, kind)]
        if libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None):
            number = ctypes.get_errno()
            raise OSError(number, f"mount {target}: {os.strerror(number)}")

    if libc.unshare(_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", "", _RECURSIVE | _PRIVATE)
    mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEV, ROOM)

    def show(path: str) -> None:
        inside = root + path
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        if os.path.islink(path) and not os.path.lexists(inside):
            os.symlink(os.readlink(path), inside)
        elif not os.path.lexists(inside) or os.path.isdir(inside):
            _make_alike(path, inside)
            mount(path, inside, "", _BIND | _RECURSIVE)
            kept = sum(flag for said, flag in _KEPT.items() if os.statvfs(inside).f_flag & said)
            devices = 0 if path.startswith("/dev/") else _NO_DEV
            mount("", inside, "", _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | devices | kept)

    for path in readable:
        show(path)
    for path in hidden:
        if os.path.isdir(root + path):
            mount("tmpfs", root + path, "tmpfs", _NO_SUID | _NO_DEV, "size=64k")
            for below in readable:
                if below.startswith(f"{path}/"):
                    show(below)
            mount("", root + path, "", _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEV)
    os.makedirs(root + home, exist_ok=True)
    os.chdir(root)
    if libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b".") or libc.umount2(b".", _DETACH):
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir(home)


def _make_alike(path: str, inside: str) -> None:
    if os.path.isdir(path):
        os.makedirs(inside, exist_ok=True)
    else:
        Path(inside).touch()


def give_up_capabilities() -> None:
    """Takes all rights over its namespaces from this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())
