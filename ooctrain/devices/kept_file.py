"""The file of a trainer's host slabs: its space stays taken from one session to the next.

A trainer that evaluates closes the session that trains and opens another one, and then the first
one again. If each had a file of its own, the space on the disk would be free in between, and a disk
that another program fills meanwhile would end a run that had its space. So all sessions get the
same file, one after the other; for a larger slab more space is taken, and none is given back.
Read next: `host_file.py`; `execution/residence.py`, which opens sessions.
"""

from __future__ import annotations

import os
import weakref

from ooctrain.devices.host_file import HostFile
from ooctrain.devices.spill import Spill


class KeptFile:
    """A host slab on a disk for one session after the other; none before the first."""

    def __init__(self) -> None:
        self._file: HostFile | None = None
        self._spill: Spill | None = None
        self._ending: weakref.finalize[..., KeptFile] | None = None

    def slab(self, spill: Spill, size_bytes: int) -> HostFile:
        """The file, with at least so much space; its `close` does nothing.

        Args:
            spill: where; another place, or another rate, is another file.
            size_bytes: of the slab.

        Raises:
            ConfigError: nothing, or not so much, can be spilled to the folder.
        """
        if self._spill != spill:
            self.close()
        if self._file is None:
            self._file, self._spill = HostFile(spill, size_bytes), spill
            self._file.kept = True
            self._ending = weakref.finalize(self, _end, self._file, os.getpid())
            self._ending.atexit = False  # the system takes it back
        self._file.resize(size_bytes)
        return self._file

    def close(self) -> None:
        """Gives the file back. No session may be open."""
        if self._ending is not None:
            self._ending()
        self._file = self._spill = self._ending = None


def _end(file: HostFile, process: int) -> None:
    if os.getpid() == process:  # a fork has neither the threads nor the right
        file.kept = False
        file.close()
