"""A course wheel: the library without one assignment's solution, with all its par.

Par is computed here, where the solution still is, and travels in the wheel; the solution does not.
Read next: `strip.py`, `known_par.py`, `course_wheel.py`: the three parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ooctrain.course import known_par
from ooctrain.course.course_wheel import write_wheel
from ooctrain.course.footprints import par_number
from ooctrain.course.measures import par_us
from ooctrain.course.replays import par_bytes
from ooctrain.course.rubric import Compared, Rubric
from ooctrain.course.strip import stripped_files
from ooctrain.errors import ConfigError


def write_course_wheel(folder: Path, rubric: Rubric) -> Path:
    """Writes the wheel that students of an assignment install; returns where it is.

    Raises:
        ConfigError: the rubric withholds nothing.
    """
    assignment = rubric.folder.resolve().name
    if not rubric.withheld:
        raise ConfigError(
            f"the rubric of {assignment} does not say what to leave out", code="OOC-119",
            fix='withheld = ["sched/planners/lru.py"] in its grade.toml, for example',
        )  # fmt: skip
    files = stripped_files(rubric.withheld, assignment)
    files[known_par.FILE] = known_par.written(_numbers(rubric))
    label = ".".join(filter(str.isalnum, assignment.replace("-", "_").split("_")))
    return write_wheel(folder, files, f"course.{label}" if label else "course")


def _numbers(rubric: Rubric) -> Iterator[tuple[Compared, float]]:
    yield from ((part, par_us(part)) for part in rubric.measures)
    yield from ((part, par_bytes(part)) for part in rubric.replays)
    yield from ((part, par_number(part)) for part in rubric.footprints)
