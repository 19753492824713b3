"""A puzzle and an attempt at it: two numbers, a picture, and the first thing that is wrong.

A puzzle is solved by a few lines: a list in text, a function, a kernel, a law. An attempt at it,
right or wrong, always gives a picture and two numbers. Each number is shown with a target, which
the library computes when it is asked, and with the bound that no answer beats, where one is known.
An error is named with its place: the instruction, the row, the thread, the gradient. Errors of the
student's own code are caught here and shown with the line that raised them. The idea is that of
GPU-Puzzles and LLM-Training-Puzzles (Sasha Rush). Read next: `list_puzzles.py`, the first series.
"""

from __future__ import annotations

import base64
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from ooctrain.errors import OoctrainError, printable

Result = TypeVar("Result")
_WIDTH = 14
_PACKAGE = str(Path(__file__).resolve().parents[2])
_LIBRARIES = re.compile(r"[/\\](emulated|site-packages|lib[/\\]python3[.0-9]*)[/\\]")


class Wrong(Exception):
    """An answer breaks a law; the text says where."""


@dataclass(frozen=True, slots=True)
class Score:
    """One of the two numbers of an attempt: the smaller, the better.

    Args:
        name: what is counted, with its unit.
        yours: None where the answer is too wrong to be measured.
        target: that solves the puzzle; computed.
        bound: a limit that no answer beats; None: none is known.
    """

    name: str
    yours: float | None
    target: float
    bound: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the target is."""
        return self.yours is not None and self.yours <= self.target * (1 + 1e-9)

    def row(self) -> str:
        """A line of the table."""
        cells = ("-" if n is None else f"{n:,.6g}" for n in (self.yours, self.target, self.bound))
        return f"  {self.name:24}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an answer is worth.

    Args:
        title: title of the puzzle.
        numbers: two.
        wrong: the first law that is broken, and where; "" for none.
        hint: where time or memory is lost in an answer that is right; "" for nothing to say.
        picture: the text of an SVG file.
    """

    title: str
    numbers: tuple[Score, Score]
    wrong: str
    hint: str
    picture: str

    @property
    def solved(self) -> bool:
        """Right, and both targets are reached."""
        return not self.wrong and all(number.reached for number in self.numbers)

    def __str__(self) -> str:
        head = " " * 26 + "".join(f"{word:>{_WIDTH}}" for word in ("yours", "target", "bound"))
        lines = [self.title, head, *(number.row() for number in self.numbers)]
        if self.wrong:
            lines.append(f"  wrong: {self.wrong}")
        elif self.solved:
            lines.append("  solved")
        else:
            missed = " and ".join(n.name for n in self.numbers if not n.reached)
            lines.append(f"  right, but not there yet: {missed}")
        if self.hint and not self.solved and not self.wrong:
            lines.append(f"  {self.hint}")
        return printable("\n".join(lines))

    def __repr__(self) -> str:
        return f"<{self.title}: {'' if self.solved else 'not '}solved>"

    def _repr_svg_(self) -> str:
        return self.picture

    def _repr_html_(self) -> str:
        # Jupyter shows bare SVG only in notebooks that it trusts; an image is always shown.
        data = base64.b64encode(self.picture.encode()).decode()
        return f'<img alt="{escape(self.title)}" src="data:image/svg+xml;base64,{data}">'


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A puzzle; `check` tries an answer.

    Args:
        name: such as "a1"; its file in `tutorials/puzzles` begins with it.
        title: what it is about.
        judge: what makes an attempt of an answer.
        given: says what is given, as far as its file does not.
    """

    name: str
    title: str
    judge: Callable[[str, Any], Attempt]
    given: Callable[[], str] = str

    def __str__(self) -> str:
        return f"{self.name} {self.title}\n{self.given()}".rstrip()

    def check(self, answer: Any, picture: str | None = None) -> Attempt:
        """Tries an answer, and prints what it is worth.

        Args:
            answer: as the puzzle's file says.
            picture: a file for the picture; None: notebooks show the returned attempt.
        """
        attempt = self.judge(f"{self.name} {self.title}", answer)
        print(attempt)
        if picture is not None:
            Path(picture).write_text(attempt.picture, encoding="utf-8")
            print(f"  picture: {picture}")
        return attempt


def attempted(judge: Callable[[], Result]) -> tuple[str, Result | None]:
    """("", what a judge returns), or (what is wrong, None) where the answer fails."""
    try:
        return "", judge()
    except Exception as error:  # a student's code: whatever fails is shown to the student
        return reason_of(error), None


def reason_of(error: Exception) -> str:
    """What an answer does wrong, in words, with the line of the student's own that raised it."""
    if isinstance(error, Wrong):
        return str(error)
    if isinstance(error, OoctrainError):
        return str(error).replace("\n", "\n  ")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.line and _is_of_the_student(frame.filename)]
    place = f"\n    line {own[-1].lineno}: {own[-1].line}" if own else ""
    if isinstance(error, NotImplementedError):
        return f"nothing is there yet: {error}{place}"
    # Numba says a lot, and first of all that it failed.
    lines = [line for line in str(error).splitlines() if line and not line.startswith("Failed in")]
    return f"it raises {type(error).__name__}: {''.join(lines[:1])}{place}"


def _is_of_the_student(file: str) -> bool:
    return not file.startswith(_PACKAGE) and not _LIBRARIES.search(file)


def wanted(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """The value, if it is of a kind.

    Raises:
        Wrong: it is of another; `what` says what is missing.
    """
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Wrong(f"{what}, and it is {value!r:.60}")
    return value
