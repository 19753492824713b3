"""What is graded, as an ordinary planner or allocator: one of a file, or one of the library's.

A submission is named by a file or by a name. The code of a file is not trusted, so it is asked in a
process of its own, under a time limit, which lives as long as it is asked. A name stands for a
planner or an allocator of the library, or of a package that the teacher has installed, and is
simply called. Read next: `interview.py`, `remote.py`; `measures.py`,
`replays.py`, `footprints.py`, which ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ooctrain.alloc.registry import choose_allocator
from ooctrain.course.interview import Interview, NoCage
from ooctrain.course.remote import (
    AllocatorsOf,
    RemoteBands,
    RemoteLaw,
    RemotePlanner,
    name_in_answer,
)
from ooctrain.errors import ConfigError
from ooctrain.execution.planners import get_planner
from ooctrain.plugins import parse_spec
from ooctrain.sched.planning.planner import Planner
from ooctrain.testing.tiled.bands_by_hand import BandsByHand

SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Introduced:
    """What is known of a submission before anything counts.

    Args:
        fault: why it cannot be asked, in one line; "" where it can.
        isolation: the layers around its process.
    """

    fault: str
    isolation: tuple[str, ...]


def is_file(submission: str) -> bool:
    """Whether a submission is a file, and not a name."""
    return bool(parse_spec(submission).file)


@contextmanager
def planner_of(submission: str, limit_s: float) -> Iterator[Planner]:
    """The planner that is graded."""
    if not is_file(submission):
        yield get_planner(submission)
        return
    with Interview(submission, "planner", limit_s) as interview:
        yield RemotePlanner(interview)


@contextmanager
def allocator_of(submission: str, limit_s: float) -> Iterator[str | Callable[[Any], Any]]:
    """The allocator that is graded, as `choose_allocator` takes it."""
    if not is_file(submission):
        yield submission
        return
    with Interview(submission, "allocator", limit_s) as interview:
        yield AllocatorsOf(interview)


@contextmanager
def bands_of(submission: str, limit_s: float) -> Iterator[BandsByHand]:
    """The bands that are graded. Raises ConfigError: no file; the library has none by name."""
    if not is_file(submission):
        raise ConfigError(
            f"no bands are called {submission!r}", code="OOC-106", fix="file.py:Class"
        )
    with Interview(submission, "bands", limit_s) as interview:
        yield RemoteBands(interview)


@contextmanager
def law_of(submission: str, limit_s: float) -> Iterator[RemoteLaw]:
    """The law that is graded. Raises ConfigError: no file; the library has none by name."""
    if not is_file(submission):
        raise ConfigError(f"no law is called {submission!r}", code="OOC-106", fix="file.py:Class")
    with Interview(submission, "law", limit_s) as interview:
        yield RemoteLaw(interview)


def introduced(submission: str, kind: str, limit_s: float) -> Introduced:
    """Loads a submission, to see whether it can be asked at all."""
    if not is_file(submission):
        if kind == "planner":
            get_planner(submission)
        elif kind == "allocator":
            choose_allocator(submission, SAMPLE_BYTES, binding=False)
        else:
            with (law_of if kind == "law" else bands_of)(submission, limit_s):
                pass
        return Introduced("", ())
    with Interview(submission, kind, limit_s) as interview:
        try:
            name_in_answer(interview)
            if kind == "allocator":
                choose_allocator(AllocatorsOf(interview), SAMPLE_BYTES, binding=False)
            fault = ""
        except NoCage:
            raise
        except Exception as error:  # untrusted code: whatever fails, it cannot be run
            fault = why_not(error)
        return Introduced(fault, interview.applied)


def why_not(error: Exception, otherwise: str = "") -> str:
    """An error in one line: a submission's own as its author should read it.

    Args:
        otherwise: goes before an error that is not the submission's own.
    """
    line = getattr(error, "line", "")
    text = line or f"{otherwise}{error}"
    return next(iter(text.splitlines()), "") or type(error).__name__
