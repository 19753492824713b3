"""Landlock: from now on this process can open only the files on a list.

The list has paths to read and paths to write below. A process needs no privilege and no namespace
to give up rights of its own. Once that has worked, no file that is not on the list can be opened,
no process outside can be traced or signalled, and no TCP port can be reached. Linux 5.13 or newer.
Source: linux/landlock.h, landlock(7). Read next: `namespaces.py`, the stronger way where it is
allowed.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator, Sequence

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH = 1, 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
#: Rights that a rule for a single file may give: execute, write, read, truncate, ioctl.
_OF_FILES = 1 | 1 << 1 | _READ_FILE | 1 << 14 | 1 << 15
#: How many rights on files each version knows.
_KNOWN = {1: 13, 2: 14, 3: 15, 4: 15}
_NEWEST_KNOWN = 16
_TCP, _SCOPES = 3, 3


def see_only(readable: Sequence[str], hidden: Sequence[str], home: str) -> bool:
    """Takes away the sight of all other files; whether that worked. New privileges must be refused
    before.

    Args:
        readable: files and folders to read.
        hidden: folders below them that are not.
        home: a folder to write to.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    every = (1 << _KNOWN.get(version, _NEWEST_KNOWN)) - 1
    words = [every, _TCP, _SCOPES][: 1 + (version >= 4) + (version >= 6)]
    attributes = struct.pack(f"{len(words)}Q", *words)
    rules = libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        return False
    try:
        for whole in readable:
            for path in _without(whole, hidden):
                _allow(libc, rules, path, _READ_FILE | _READ_DIR)
        _allow(libc, rules, home, every & ~1)
        return libc.syscall(_RESTRICT, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH)
    except OSError:
        return  # what is not there needs no rule
    try:
        allowed = rights if os.path.isdir(path) else rights & _OF_FILES
        libc.syscall(_ADD, rules, _BENEATH, struct.pack("=Qi", allowed, place), 0)
    finally:
        os.close(place)


def _without(path: str, hidden: Sequence[str]) -> Iterator[str]:
    """A path, or, where some of it is hidden, what else is in it."""
    if path in hidden:
        return
    if not any(place.startswith(f"{path}/") for place in hidden):
        yield path
        return
    for name in sorted(os.listdir(path)) if os.path.isdir(path) else ():
        yield from _without(f"{path}/{name}", hidden)
