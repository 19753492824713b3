"""What an assignment counts: its rubric, a small file next to the handout.

A `Rubric` is read from the folder of an assignment. Every number of the assignment (points, limits,
what is measured against what) stands in one file that a teacher can edit without reading code. Only
par is not in the file: it is computed when it is requested, so it cannot be out of date. Read next:
`tutorials/assignments/lru_planner/grade.toml`, then `grade.py`.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooctrain.errors import ConfigError, did_you_mean, reason
from ooctrain.step.schema import Misfit, fitted
from ooctrain.testing.allocator_laws import LAWS as ALLOCATOR_LAWS
from ooctrain.testing.allocator_laws import SAFETY as ALLOCATOR_SAFETY
from ooctrain.testing.law_by_hand import LAW_LAWS
from ooctrain.testing.planner_laws import LAWS as PLANNER_LAWS
from ooctrain.testing.tiled.bands_by_hand import BANDS_LAWS

RUBRIC = "grade.toml"
#: {what is written: what of it is a matter of degree}
KINDS = {
    "planner": "measures", "allocator": "replays", "bands": "footprints", "law": "hunts",
}  # fmt: skip
#: {what is written: the laws that are needed to pass}: a list that is wrong, blocks that lie on
#: each other, rows that are not there. A rubric may name more.
SAFETY = {
    "planner": ("plans are legal", "results are exact"),
    "allocator": ALLOCATOR_SAFETY,
    "bands": ("rows are there",),
    "law": ("right arenas pass",),
}  # fmt: skip
#: The points of a rubric, so that points and shares are one number.
ALL_POINTS = 100
#: What is counted of bands.
COUNTS = ("work", "peak")
#: As par: what no list beats that swaps and computes nothing again; what no allocator can.
BOUND = "bound"


@dataclass(frozen=True, slots=True)
class Laws:
    """The promises of every planner, allocator, or way to run bands, tried on random cases.

    Args:
        points: for all of them together, the same for each.
        examples: random cases for each law.
        required: names of laws that are needed to pass, with those of `SAFETY`.
    """

    points: float
    examples: int
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tests:
    """The assignment's public tests.

    Args:
        file: in the assignment's folder.
        points: {test function: points}; other tests of the file do not count.
        required: those that are needed to pass.
        hidden: those whose cases depend on the seed: a student's report does not show them.
    """

    file: str
    points: Mapping[str, float]
    required: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """A real step that is planned and timed, compared with par.

    Args:
        model, batch: the training step.
        budget: as typed: "25%", "8GiB".
        machine: a preset's name, on which lists are simulated.
        ranges: whether parts of a variable may move.
        par: a planner of the library, or "bound".
        points: for at most `full_ratio` times par; from `none_ratio` times on there are none, and
            in between they fall evenly.
    """

    model: str
    batch: int
    budget: str
    machine: str
    ranges: bool
    par: str
    full_ratio: float
    none_ratio: float
    points: float


@dataclass(frozen=True, slots=True)
class Replay:
    """A real step whose blocks an allocator has to place, compared with par.

    Args:
        model, batch, budget, machine: describe the step that is planned.
        planner: the library's planner that plans it; values move as a whole.
        par: an allocator of the library, or "bound": the most that lives at one time.
        points, full_ratio, none_ratio: as in `Measure`.
    """

    model: str
    batch: int
    budget: str
    machine: str
    planner: str
    par: str
    full_ratio: float
    none_ratio: float
    points: float


@dataclass(frozen=True, slots=True)
class BandsPart:
    """A network that runs in bands of rows, compared with the library's own frontiers.

    Args:
        model: whose longest chain is cut; rows: of its image; bands: how many.
        counts: "work", rows that are computed, or "peak", bytes of rows that are held.
        par: "frontiers".
        points, full_ratio, none_ratio: as in `Measure`.
    """

    model: str
    rows: int
    bands: int
    counts: str
    par: str
    full_ratio: float
    none_ratio: float
    points: float


@dataclass(frozen=True, slots=True)
class Hunt:
    """Broken arenas, drawn from the seed, that a law has to tell from right ones.

    Args:
        draws: how many of each kind of bug.
        points: for all of them together, the same for each.
    """

    draws: int
    points: float


#: What is compared with par.
Compared = Measure | Replay | BandsPart


def name_of(part: Compared) -> str:
    """A part in words."""
    if isinstance(part, BandsPart):
        return f"{part.model}, {part.rows} rows, {part.bands} bands: {part.counts}"
    return f"{part.model}, batch {part.batch}, {part.budget}"


def points_for(part: Compared, ratio: float) -> float:
    """Points for a ratio to par, to a tenth."""
    share = (part.none_ratio - ratio) / (part.none_ratio - part.full_ratio)
    return round(part.points * min(1.0, max(0.0, share)), 1)


@dataclass(frozen=True, slots=True)
class Rubric:
    """What is counted, and how much of it passes.

    Args:
        folder: folder of the assignment.
        kind: what is written, of `KINDS`.
        submission: "file.py:Class" in that folder, graded where nothing else is named.
        pass_points: the least that passes.
        time_limit_s: for each test, and for each measure, replay or footprint.
        measures, replays, footprints, hunts: for planners, for allocators, for bands, for laws.
        withheld: what a course wheel leaves out (`handout.py`).
    """

    folder: Path
    kind: str
    submission: str
    pass_points: float
    time_limit_s: float
    laws: Laws
    tests: Tests
    measures: tuple[Measure, ...]
    replays: tuple[Replay, ...]
    footprints: tuple[BandsPart, ...]
    hunts: tuple[Hunt, ...] = ()
    withheld: tuple[str, ...] = ()

    @property
    def most_points(self) -> float:
        """All points that can be had."""
        parts = sum(part.points for part in (*self.compared, *self.hunts))
        return self.laws.points + sum(self.tests.points.values()) + parts

    @property
    def compared(self) -> tuple[Compared, ...]:
        """What is compared with par."""
        return (*self.measures, *self.replays, *self.footprints)


def read_rubric(folder: Path) -> Rubric:
    """The rubric of an assignment.

    Raises:
        ConfigError: no such folder or file, or a word or number in it that cannot be.
    """
    path = folder / RUBRIC
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refuse(path, reason(error)) from error
    try:
        parts = {
            "laws": _made(Laws, data.pop("laws")),
            "tests": _made(Tests, data.pop("tests")),
            "measures": tuple(_made(Measure, row) for row in data.pop("measures", [])),
            "replays": tuple(_made(Replay, row) for row in data.pop("replays", [])),
            "footprints": tuple(_made(BandsPart, row) for row in data.pop("footprints", [])),
            "hunts": tuple(_made(Hunt, row) for row in data.pop("hunts", [])),
            "withheld": tuple(map(str, data.pop("withheld", []))),
        }
        rubric = _made(Rubric, {"folder": folder, **data, **parts})
        _check(rubric, path)
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refuse(path, _words(error)) from error
    return rubric


def _words(error: Exception) -> str:
    """What is wrong, of an error that Python or `_made` raised."""
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def _made(kind: type, data: Mapping[str, Any]) -> Any:
    """An object of a class whose fields are just the keys of a table. Raises ValueError."""
    try:
        return fitted(kind, data)
    except Misfit as misfit:
        raise ValueError(f"{kind.__name__.lower()}, {misfit}") from misfit


def _check(rubric: Rubric, path: Path) -> None:
    """Raises ConfigError where a number of a rubric cannot be."""
    if not (rubric.folder / rubric.tests.file).is_file():
        raise _refuse(path, f"there is no file {rubric.tests.file!r} beside it")
    _check_tests(rubric, path)
    given = [rubric.laws.points, *rubric.tests.points.values()]
    given += [part.points for part in (*rubric.compared, *rubric.hunts)]
    if min(given) < 0 or abs(rubric.most_points - ALL_POINTS) > 1e-6:
        raise _refuse(path, f"its points are {rubric.most_points:g} in all, not {ALL_POINTS}, or "
                      "some are below 0")  # fmt: skip
    if not 0 < rubric.pass_points <= rubric.most_points:
        had, most = f"{rubric.pass_points:g}", f"{rubric.most_points:g}"
        raise _refuse(path, f"{had} of {most} points cannot pass")
    if not (rubric.time_limit_s > 0 and rubric.laws.examples > 0):
        raise _refuse(path, "a limit of time and a number of examples are above 0")
    own = getattr(rubric, KINDS.get(rubric.kind, "tests"))
    if rubric.kind not in KINDS or len(own) < len((*rubric.compared, *rubric.hunts)):
        raise _refuse(
            path, "a planner has measures, an allocator replays, bands footprints, a law hunts, "
            "and there is no other",
        )  # fmt: skip
    if any(hunt.draws < 1 for hunt in rubric.hunts):
        raise _refuse(path, "a hunt has at least one draw")
    for part in rubric.compared:
        if not 1 <= part.full_ratio < part.none_ratio:
            raise _refuse(path, f"{name_of(part)}: 1 <= full_ratio < none_ratio does not hold")
        if isinstance(part, BandsPart) and (part.counts not in COUNTS or part.par != "frontiers"):
            raise _refuse(path, f"{name_of(part)}: counts 'work' or 'peak' beside 'frontiers'")


def _check_tests(rubric: Rubric, path: Path) -> None:
    """Raises ConfigError: a test or law that the rubric names is not there."""
    source = (rubric.folder / rubric.tests.file).read_text(encoding="utf-8")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise _refuse(path, f"{rubric.tests.file} is not Python: {error}") from error
    there = {
        node.name for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }  # fmt: skip
    tests = rubric.tests
    for name in (*tests.points, *tests.required, *tests.hidden):
        if name not in there:
            near = did_you_mean(name, there)
            raise _refuse(path, f"{tests.file} has no test {name!r}{near and f'; {near}'}")
    for name in (*tests.required, *tests.hidden):
        if name not in tests.points:
            raise _refuse(path, f"the test {name!r} is required or hidden, and has no points")
    known = _laws(rubric.kind)
    for name in rubric.laws.required:
        if name not in known:
            near = did_you_mean(name, known)
            raise _refuse(path, f"there is no law {name!r}{near and f'; {near}'}")


def _laws(kind: str) -> Collection[str]:
    """Names of the laws of a kind."""
    found: dict[str, Collection[str]] = {
        "planner": PLANNER_LAWS, "allocator": ALLOCATOR_LAWS, "bands": BANDS_LAWS, "law": LAW_LAWS,
    }  # fmt: skip
    return found.get(kind, ())


def _refuse(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is not a rubric of an assignment: {why}", code="OOC-119",
        fix=f"name an assignment of `ooctrain course list`, or a folder with a {RUBRIC}",
    )  # fmt: skip
