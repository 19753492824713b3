"""What the tutorials share: pauses, predictions, exercises, pictures, and one chain of stages.

Each tutorial runs whole (`python tutorials/00_tour.py`), cell by cell in an editor that knows the
percent format, or paused (`python tutorials/00_tour.py --step`). `predict` is called before an
experiment with the reader's guess; `reveal` then prints how far off it was. Nothing is graded here:
the asserts at the end of a tutorial are about the library, the exercises about the reader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import ooctrain as oc
from ooctrain.step.trace import Trace

PICTURES = Path(__file__).parent / "pictures"


class Lesson:
    """One run of a tutorial.

    Args:
        title: printed first.
        arguments: the command line, without the program's name; None: that of this process.
    """

    def __init__(self, title: str, arguments: list[str] | None = None):
        words = sys.argv[1:] if arguments is None else arguments
        self.paused = "--step" in words
        self._guesses: dict[str, float] = {}
        print(f"=== {title} ===")

    def cell(self, text: str) -> None:
        """Marks the beginning of a cell: prints its one-line summary and, with --step, waits for
        Enter. Where none can come, the tutorial ends here.
        """
        print(f"\n--- {text}")
        if not self.paused:
            return
        try:
            input("    [Enter] ")
        except (EOFError, KeyboardInterrupt):  # Ctrl-D, Ctrl-C, or nobody at the keyboard
            print("\nleft here; without --step it runs to its end")
            raise SystemExit from None

    def predict(self, what: str, guess: float) -> None:
        """Notes a guess before an experiment. Change the number in the script to your own."""
        self._guesses[what] = guess
        print(f"    prediction: {what} = {guess:g}")

    def reveal(self, what: str, measured: float) -> None:
        """Prints what was measured, and how far off the prediction of the same name was."""
        off = _off(self._guesses.pop(what), measured)
        print(f"    measured:   {what} = {measured:g}   (the prediction was {off})")

    def exercise(self, question: str, check: Callable[[object], bool], answer: object) -> bool:
        """States an exercise and checks `answer` (None: not tried yet); returns whether it is
        right.
        """
        if answer is None:
            print(f"    exercise: {question}  (put your answer into the script)")
            return False
        try:
            right = check(answer)
        except (TypeError, ValueError):  # an answer of another kind, such as a word for a number
            right = False
        print(f"    exercise: {question}  -> {answer!r} is {'right' if right else 'not right yet'}")
        return right

    def picture(self, name: str, svg: str) -> None:
        """Writes an SVG picture into the folder `pictures` and says where."""
        PICTURES.mkdir(exist_ok=True)
        path = PICTURES / name
        path.write_text(svg, encoding="utf-8")
        print(f"    picture: {path.relative_to(PICTURES.parent.parent).as_posix()}")


def equal_stages(stages: int, size_bytes: int = 100, forward_us: int = 10) -> Trace:
    """A chain of equal stages: each value has `size_bytes`, each stage runs `forward_us` forward
    and twice as long backward. Small enough to be worked out by hand.
    """
    sizes, times = [size_bytes] * (stages + 1), [forward_us] * stages
    return oc.chain(
        x=sizes,  # x[i] is what stage i reads, y[i] its gradient
        y=sizes,
        u_forward=times,
        u_backward=[2 * time for time in times],
        extra_forward=[0] * stages,  # bytes that a stage needs only while it runs
        extra_backward=[0] * stages,
    )


def _off(guess: float, measured: float) -> str:
    """How far off a guess was, in words: a percentage; a factor where it is above two; a difference
    where one of the two numbers is zero or their signs differ.
    """
    if guess * measured <= 0:
        return "right" if guess == measured else f"{abs(guess - measured):g} off"
    factor = guess / measured
    if factor > 2:
        return f"{factor:.3g} times too high"
    if factor < 0.5:
        return f"{1 / factor:.3g} times too low"
    return f"{abs(factor - 1):.0%} off"
