"""What the tutorials share: prose, pauses, predictions, exercises and pictures.

Each tutorial runs whole (`python 00_tour.py`), paused (`python 00_tour.py
--step`), or cell by cell in a notebook or an editor that knows the percent format. A script prints
its own prose before each cell, since a terminal does not show comments. `predict` asks for the
reader's guess before an experiment, with `--step` at the keyboard and in a notebook in an input
box; `reveal` then prints how far off it was. `python 00_tour.py --check 2 ANSWER` prints
nothing but whether an answer to the second exercise is right, `python 00_tour.py --help` how it can
be started. Nothing is graded here: the asserts at the end of a tutorial are about the library, the
exercises about the reader.
"""

from __future__ import annotations

import ast
import atexit
import base64
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from types import FrameType

from ooctrain.cli.silence import never_silent

PICTURES = Path(__file__).parent / "pictures"
USAGE = """python {name}                     runs the tutorial whole
python {name} --step              waits for Enter before each cell, and asks for predictions
python {name} --check 1 ANSWER    says whether an answer to the first exercise is right"""
#: What begins an item of a list, or a line of a tutorial's head.
ITEM = re.compile(r"(\d+\.|[-*]) |(?=\*\*\w+:\*\*)")


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
        here = sys._getframe(1)
        self._script = Path(here.f_code.co_filename)
        if {"-h", "--help"} & {*words}:
            print(USAGE.format(name=self._script.name))
            raise SystemExit(0)
        # A notebook and a test have streams of their own, which stay as they are.
        if not self.paused and sys.stdout is sys.__stdout__:
            _break_silences()
        self._checked, self._answer, self._out = "", None, sys.stdout
        if "--check" in words:
            self._check_only(words[words.index("--check") + 1 :])
        self._prose = _prose_of(here)
        print(f"=== {title} ===")
        self._tell(here.f_lineno)

    def cell(self, text: str) -> None:
        """Marks the beginning of a cell: prints the prose above it and its one-line summary and,
        with --step, waits for Enter. Where none can come, the tutorial ends here.
        """
        self._tell(sys._getframe(1).f_lineno)
        print(f"\n--- {text}")
        if self.paused:
            _ask("    [Enter] ")

    def predict(self, what: str, guess: float | None = None) -> None:
        """Asks for a guess before an experiment; a script that runs as a whole does not ask.

        Args:
            what: what will be measured.
            guess: your number, written into the script in place of an answer at the keyboard.
        """
        if guess is None and (self.paused or _notebook_answers()):
            guess = _number(f"    your prediction: {what} = ")
        if guess is None:
            print(f"    prediction: {what} = ?   (--step asks you)")
            return
        self._guesses[what] = guess
        print(f"    prediction: {what} = {guess:g}")

    def reveal(self, what: str, measured: float) -> None:
        """Prints what was measured, and how far off the prediction of the same name was."""
        guess = self._guesses.pop(what, None)
        judged = "" if guess is None else f"   (the prediction was {_off(guess, measured)})"
        print(f"    measured:   {what} = {measured:g}{judged}")

    def exercise(self, question: str, check: Callable[[object], bool], answer: object) -> bool:
        """States an exercise and checks `answer` (None: not tried yet); returns whether it is
        right. With --check the script ends with the exercise that is asked for.

        Args:
            question: its number, a full stop, and what is asked for.
        """
        number = question.partition(".")[0]
        if self._checked and number != self._checked:
            return False
        if self._checked:
            sys.stdout = self._out
            raise SystemExit(0 if self._judged(question, check, self._answer) else 1)
        return self._judged(question, check, answer)

    def _judged(self, question: str, check: Callable[[object], bool], answer: object) -> bool:
        if answer is None:
            number = question.partition(".")[0]
            how = f"python {self._script.name} --check {number} ANSWER"
            if self._checked:
                how = f"put your answer behind --check {number}"
            elif not self._script.is_file():
                how = "replace None by your answer"
            print(f"    exercise: {question}  ({how})")
            return False
        try:
            right = check(answer)
        except (TypeError, ValueError):  # an answer of another kind, such as a word for a number
            right = False
        print(f"    exercise: {question}  -> {answer!r} is {'right' if right else 'not right yet'}")
        return right

    def picture(self, name: str, svg: str) -> None:
        """Writes an SVG picture into the folder `pictures` and says where; a notebook shows it
        under the cell.
        """
        PICTURES.mkdir(exist_ok=True)
        path = PICTURES / name
        path.write_text(svg, encoding="utf-8")
        print(f"    picture: {Path(os.path.relpath(path)).as_posix()}")
        if _in_notebook():
            from IPython.display import display

            # Jupyter shows bare SVG only in notebooks that it trusts; an image is always shown.
            data = base64.b64encode(svg.encode()).decode()
            image = f'<img alt="{path.stem}" src="data:image/svg+xml;base64,{data}">'
            display({"image/svg+xml": svg, "text/html": image}, raw=True)

    def _check_only(self, words: list[str]) -> None:
        """Checks one answer from the command line: the experiments run, and print nothing."""
        numbers = re.findall(r'lesson\.exercise\(\s*"(\d+)\.', self._script.read_text("utf-8"))
        if not words or words[0] not in numbers:
            known = ", ".join(numbers)
            raise SystemExit(f"--check NUMBER ANSWER; {self._script.name} has exercises {known}")
        self._checked, self.paused = words[0], False
        self._answer = answer_of(words[1:])
        sys.stdout = io.StringIO()

    def _tell(self, line: int) -> None:
        """Prints the prose that stands above a line of the script and was not printed yet."""
        width = shutil.get_terminal_size((100, 24)).columns
        while self._prose and self._prose[0][0] < line:
            print(f"\n{filled(self._prose.pop(0)[1], width)}")


def filled(text: str, width: int) -> str:
    """Prose whose lines end between words: a terminal would break them anywhere. Headings, tables
    and code stay as they are, and so does a paragraph that fits.
    """
    return "\n\n".join(_filled_block(block, width) for block in text.split("\n\n"))


def _filled_block(block: str, width: int) -> str:
    lines = block.split("\n")
    if max(map(len, lines)) <= width or block.startswith(("#", "|", "    ", "```")):
        return block
    items: list[str] = []
    for line in lines:
        if not items or ITEM.match(line):
            items.append(line)
        else:
            items[-1] += f" {line.strip()}"
    indents = [" " * len(found[0]) if (found := ITEM.match(item)) else "" for item in items]
    return "\n".join(
        textwrap.fill(
            item, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        for item, indent in zip(items, indents, strict=True)
    )


def answer_of(words: list[str]) -> object:
    """An answer from the command line as Python would read it: a number, True, a tuple; a fraction
    such as 1/3 is a number, anything else is text. None: no word.
    """
    text = " ".join(words)
    for read in (ast.literal_eval, lambda typed: float(Fraction(typed))):
        try:
            return read(text)
        except (ValueError, SyntaxError, ZeroDivisionError):
            continue
    return text or None


def _prose_of(frame: FrameType) -> list[tuple[int, str]]:
    """(line, text) of the prose cells of the percent-format script that a frame runs; empty in a
    notebook, which shows its own.
    """
    path = Path(frame.f_code.co_filename)
    if not path.is_file():
        return []
    script = path.read_text(encoding="utf-8")
    found = re.finditer(r"^# %% \[markdown\]\n((?:#.*\n)+)", script, re.M)
    return [
        (
            script.count("\n", 0, match.start()) + 1,
            re.sub(r"^# ?", "", match[1], flags=re.M).strip(),
        )
        for match in found
    ]


def _in_notebook() -> bool:
    """Whether the kernel of a notebook runs this."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def _notebook_answers() -> bool:
    """Whether somebody sits at the notebook: a kernel that only executes it allows no input."""
    if not _in_notebook():
        return False
    return bool(getattr(sys.modules["IPython"].get_ipython().kernel, "_allow_stdin", False))


def _break_silences() -> None:
    """Until the process ends, what takes long is said: a first run compiles kernels."""
    speaking = ExitStack()
    speaking.enter_context(never_silent())
    atexit.register(speaking.close)


def _ask(prompt: str) -> str:
    """A line from the keyboard; where none can come, the tutorial ends."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):  # Ctrl-D, Ctrl-C, or nobody at the keyboard
        print("\nleft here; without --step it runs to its end")
        raise SystemExit from None


def _number(prompt: str) -> float | None:
    """A number from the keyboard, also as "50%" or "1/2", asked for until it is one; None where
    only Enter is pressed.
    """
    while answer := _ask(prompt).strip():
        try:
            number = float(Fraction(answer.rstrip(" %").replace(",", ".")))
        except (ValueError, ZeroDivisionError):
            print("    a number, please; only Enter for no prediction")
        else:
            return number / 100 if answer.endswith("%") else number
    return None


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
