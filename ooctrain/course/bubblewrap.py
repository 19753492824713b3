"""Bubblewrap, where it is installed: namespaces made by a program that many systems trust.

The list of what may be seen becomes the words that go before a command. Some systems allow user
namespaces only to this program, so it is tried first; where it does not work, the process makes its
own namespaces (`cage/namespaces.py`). Source: bwrap(1). Read next: `interview.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PROGRAM = "bwrap"


def wrapped(program: str, readable: Sequence[str], hidden: Sequence[str], home: str) -> list[str]:
    """The beginning of a command that then sees nothing but these paths.

    Args:
        program: where bwrap is.
        readable: files and folders, read-only there.
        hidden: folders below them that are empty there.
        home: a folder to write to, in memory.
    """
    words = [program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    for path in readable:
        if Path(path).is_symlink():
            words += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).exists() and not path.startswith("/dev/"):
            words += ["--ro-bind", path, path]
    for path in filter(lambda path: Path(path).is_dir(), hidden):
        words += ["--tmpfs", path]
        for below in (inner for inner in readable if inner.startswith(f"{path}/")):
            words += ["--ro-bind", below, below]
        words += ["--remount-ro", path]
    return [*words, "--dev", "/dev", "--proc", "/proc", "--tmpfs", home, "--chdir", home]
