"""What a submission is given of the library: a copy of the interfaces, in a folder of its own.

The folder gets an `ooctrain` without planners and allocators, and links to NumPy. `GIVEN` lists the
files that are given, one by one, so a reader can check it. All other files of this library are
absent: they cannot be imported and, where the folder is all that can be read, they cannot be read
or copied either. Read next: `cage/given.py`, the copy's first file; `interview.py`, which starts a
process on it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

PACKAGE = Path(__file__).resolve().parents[1]
#: Files that are copied, below the package.
GIVEN = (
    "errors.py", "plugins.py", "units.py",
    "step/__init__.py", "step/builder.py", "step/chain.py", "step/machine.py", "step/network.py",
    "step/op.py",
    "step/presets.py", "step/shown.py", "step/trace.py",
    "sched/__init__.py", "sched/budget.py", "sched/host_life.py", "sched/instructions.py",
    "sched/simulate.py", "sched/ledger.py", "sched/list_text.py", "sched/simulate.py",
    "sched/plan_file.py", "sched/schedule.py",
    "sched/simulate.py", "sched/spans.py", "sched/timeline.py",
    "sched/planning/__init__.py", "sched/planning/list_writer.py", "sched/planning/planner.py",
    "sched/planning/question.py",
    "alloc/arena_map.py", "alloc/base.py",
    "testing/planner_cases.py",
    "course/cage/__init__.py", "course/cage/given.py", "course/cage/landlock.py",
    "course/cage/limits.py", "course/cage/namespaces.py", "course/cage/serve.py",
    "course/cage/serve_allocator.py", "course/cage/serve_law.py", "course/cage/step_data.py",
    "course/cage/supervise.py",
    "course/cage/system_calls.py", "course/cage/told.py", "course/cage/wire.py",
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
    """NumPy, and the folder beside it with the libraries that it brings."""
    numpy = Path(np.__file__).resolve().parent
    return [numpy, *filter(Path.is_dir, (numpy.with_name("numpy.libs"),))]
