"""What a submission's process may see, and the ways to keep it to that.

The ways to isolate a process are tried from the strongest to the weakest, among the layers that may
be used. All of them enforce the same list of what may be seen: Python itself, NumPy, the copy of
the interfaces, the submission's own file, and a small folder to write to. Read next:
`interview.py`, which starts the process; `cage/namespaces.py` and `cage/landlock.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ooctrain.course.bubblewrap import PROGRAM, wrapped
from ooctrain.course.interfaces import copy_interfaces, numpy_folders

#: {layer: what it does, for a report}
IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "bubblewrap": "files, processes and network of its own (bubblewrap)",
        "namespaces": "files, processes and network of its own (namespaces)",
        "landlock": "no other files (Landlock)",
        "system-calls": "no processes, signals or sockets (seccomp)",
        "limits": "limits of memory, files and time",
        "subreaper": "no process outlives it",
    }
)
#: Those that may be left out.
LAYERS = frozenset({"bubblewrap", "namespaces", "landlock", "system-calls"})
#: Without these it can read what the user can read who grades.
_HIDING = ("bubblewrap", "namespaces", "landlock")
_SYSTEM = (
    "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache",
    "/etc/alternatives", "/dev/null", "/dev/zero", "/dev/urandom",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class InSight:
    """What a process may see.

    Args:
        library: the copy of the interfaces.
        submission: the copy of the submission's file.
        home: the folder that it may write to.
        root: an empty folder, on which a root of its own is mounted.
        readable: all that it may read.
        hidden: what of that is hidden nevertheless: other packages.
    """

    library: Path
    submission: Path
    home: Path
    root: Path
    readable: tuple[str, ...]
    hidden: tuple[str, ...]

    @staticmethod
    def made(folder: Path, file: Path) -> InSight:
        """Fills a folder for one process of the submission in a file."""
        library, home, root = folder / "library", folder / "home", folder / "root"
        submission = folder / "submission" / file.name
        for place in (library, home, root, submission.parent):
            place.mkdir()
        copy_interfaces(library)
        shutil.copyfile(file, submission)
        standard = os.path.realpath(sysconfig.get_path("stdlib"))
        # Behind a virtual environment this is the Python that it was made of.
        libraries = os.path.realpath(Path(sys.base_prefix) / "lib")
        own = [libraries] if libraries not in ("/lib", "/usr/lib") else []
        named = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
        paths = [
            *_SYSTEM, *own, *map(os.path.realpath, named), standard,
            *map(str, numpy_folders()), str(library), str(submission.parent),
        ]  # fmt: skip
        pythons = [Path(standard), *Path(libraries).glob("python3*")]
        hidden = [
            str(place / name)
            for place in (*pythons, *Path("/usr/lib").glob("python3*"))
            for name in ("site-packages", "dist-packages")
        ]
        readable = tuple(dict.fromkeys(path for path in paths if os.path.exists(path)))
        return InSight(library, submission, home, root, readable, tuple(dict.fromkeys(hidden)))


@dataclass(frozen=True, slots=True)
class Isolation:
    """One way to isolate a process.

    Args:
        layers: what the process shall try by itself.
        program: bubblewrap's place, or "".
    """

    layers: frozenset[str]
    program: str = ""

    @property
    def applied(self) -> list[str]:
        """What is in force before the process begins."""
        return ["bubblewrap"] if self.program else []

    def before(self, seen: InSight) -> list[str]:
        """What goes before its command."""
        if not self.program:
            return []
        python = os.path.realpath(sys.executable)
        readable = [path for path in (*seen.readable, python) if path != str(seen.home)]
        return wrapped(self.program, readable, seen.hidden, str(seen.home))


def isolations(allowed: frozenset[str] = LAYERS) -> list[Isolation]:
    """The ways that there are here, the strongest first; the last one always works."""
    program = shutil.which(PROGRAM) if "bubblewrap" in allowed else None
    ways = [Isolation(allowed - {"namespaces"}, program)] if program else []
    # Where libraries lie in places that are not on the list, hiding them hides Python's own.
    fewer: tuple[set[str], ...] = (
        {"bubblewrap"}, {"bubblewrap", "namespaces"}, {"bubblewrap", "namespaces", "landlock"},
        {*allowed},
    )  # fmt: skip
    ways += [Isolation(allowed - left_out) for left_out in fewer]
    return list(dict.fromkeys(ways))


def in_words(applied: Sequence[str]) -> str:
    """What was in force, and what was not though it matters."""
    words = [IN_WORDS.get(layer, layer) for layer in applied]
    if not any(layer in applied for layer in _HIDING):
        words.append("files of this user were NOT hidden from it")
    if "system-calls" not in applied and not {"bubblewrap", "namespaces"} & set(applied):
        words.append("processes of this user were NOT out of its reach")
    return "; ".join(words)
