"""What a submission's process may see, and what keeps it to that.

There are two ways to run a submission. A cage lets it see Python itself, NumPy, the copy of the
interfaces, the submission's own file and a small folder to write to, and refuses it all system
calls that reach other processes or the network. Where the system has no cage, the submission is
trusted: its process is limited, and the report of a grade says that nothing was hidden from it.
Read next: `interview.py`, which starts the process; `cage/supervise.py`, which makes the cage.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

# Isolation.

#: {layer: what it does, for a report}
IN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "namespaces": "files, processes and network of its own (namespaces)",
        "landlock": "no other files (Landlock)",
        "system-calls": "no processes, signals or sockets (seccomp)",
        "limits": "limits of memory, files and time",
        "subreaper": "no process outlives it",
    }
)
#: Those of a cage. Containers often allow no namespaces; the others do without.
LAYERS = frozenset({"namespaces", "landlock", "system-calls"})
#: One of these hides files.
_HIDING = frozenset({"namespaces", "landlock"})
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


def is_cage(applied: Collection[str]) -> bool:
    """Whether layers keep a process from files of this user, and from what else it has."""
    return "system-calls" in applied and not _HIDING.isdisjoint(applied)


def in_words(applied: Sequence[str]) -> str:
    """What was in force; where that was not a cage, that the submission was trusted."""
    words = [IN_WORDS.get(layer, layer) for layer in applied]
    if not is_cage(applied):
        words.append(
            "it was TRUSTED: files of this user were NOT hidden from it, and processes of this "
            "user NOT out of its reach"
        )
    return "; ".join(words)


# The copy of the interfaces: an `ooctrain` without planners and allocators, with links to NumPy.
# `GIVEN` lists the files that are given, one by one, so a reader can check it. All other files are
# absent: they cannot be imported and, where the folder is all that can be read, they cannot be read
# either.

PACKAGE = Path(__file__).resolve().parents[1]
#: Files that are copied, below the package.
GIVEN = (
    "errors.py", "moved.csv", "plugins.py", "units.py",
    "step/__init__.py", "step/arguments.py", "step/builder.py", "step/chain.py", "step/machine.py",
    "step/network.py", "step/op.py", "step/presets.py", "step/rows.py", "step/shown.py",
    "step/trace.py", "step/user_values.py",
    "sched/__init__.py", "sched/budget.py", "sched/instructions.py", "sched/ledger.py",
    "sched/list_text.py", "sched/plan_file.py", "sched/schedule.py",
    "sched/simulate.py", "sched/spans.py", "sched/timeline.py",
    "sched/planning/__init__.py", "sched/planning/decisions.py", "sched/planning/effort.py",
    "sched/planning/list_writer.py", "sched/planning/planner.py", "sched/planning/question.py",
    "sched/planning/residency.py",
    "alloc/arena_map.py", "alloc/base.py",
    "testing/planner_cases.py",
    "course/cage/__init__.py", "course/cage/given.py", "course/cage/landlock.py",
    "course/cage/process_limits.py", "course/cage/namespaces.py", "course/cage/serve.py",
    "course/cage/serve_allocator.py", "course/cage/serve_law.py", "course/cage/step_data.py",
    "course/cage/supervise.py", "course/cage/system_calls.py", "course/cage/wire.py",
)  # fmt: skip
#: Folders whose first file names or loads what is not given; theirs is empty.
_EMPTY = ("alloc", "course", "testing")


def copy_interfaces(folder: Path) -> None:
    """Puts the interfaces, and links to NumPy, into a folder that is there and empty."""
    copy = folder / "ooctrain"
    for name in GIVEN:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PACKAGE / name, copy / name)
    for name in _EMPTY:
        (copy / name / "__init__.py").write_text("", encoding="utf-8")
    shutil.copyfile(PACKAGE / "course" / "cage" / "given.py", copy / "__init__.py")
    for path in numpy_folders():
        (folder / path.name).symlink_to(path)


def numpy_folders() -> list[Path]:
    """NumPy, and the adjacent folder with the libraries that it brings."""
    numpy = Path(np.__file__).resolve().parent
    return [numpy, *filter(Path.is_dir, (numpy.with_name("numpy.libs"),))]
