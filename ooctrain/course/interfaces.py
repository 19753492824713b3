"""What of the library a submission is given: a copy of the interfaces, in a folder of its own.

In: a folder. Out: `ooctrain` in it, without any planner or allocator, and links to NumPy. The one
idea: a list that can be read. What stands in `GIVEN` is given, file by file; everything else of
this library is not there, neither to import nor, where the folder is all that can be read, to be
read and copied. Read next: `cage/given.py`, the copy's first file; `interview.py`, which starts a
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
    "step/__init__.py", "step/builder.py", "step/chain.py", "step/machine.py", "step/op.py",
    "step/presets.py", "step/trace.py",
    "sched/__init__.py", "sched/budget.py", "sched/host_life.py", "sched/instructions.py",
    "sched/interference.py", "sched/ledger.py", "sched/list_text.py", "sched/plan_file.py",
    "sched/schedule.py",
    "sched/simulate.py", "sched/spans.py", "sched/timeline.py",
    "sched/planning/__init__.py", "sched/planning/planner.py", "sched/planning/question.py",
    "alloc/arena_map.py", "alloc/base.py",
    "testing/planner_cases.py",
    "course/cage/__init__.py", "course/cage/given.py", "course/cage/landlock.py",
    "course/cage/limits.py", "course/cage/namespaces.py", "course/cage/serve.py",
    "course/cage/serve_allocator.py", "course/cage/step_data.py", "course/cage/supervise.py",
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
