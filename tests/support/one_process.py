"""Both sides of a graded submission in one process: the interview without its cage.

The submission's side runs in a thread and is what the cage runs, over the same two pipes; so a law
compares what a proxy gives with what the submission gives directly, and a mutant of either side is
seen (`docs/mutants.md`). Read next: `ooctrain/course/interview.py`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ooctrain.course.cage.serve import serve
from ooctrain.course.cage.wire import MOST_REPLY_BYTES, MOST_REQUEST_BYTES, Line, error_of
from ooctrain.course.interview import Called

#: An answer takes no longer, unless there will never be one.
LONGEST_S = 20


class OneProcess:
    """Asks a submission, as an `Interview` does.

    Args:
        line: to the submission's side.
    """

    def __init__(self, line: Line):
        self._line = line
        self.processes = 1
        self.asked: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Nobody counts time here."""

    def ask(self, question: Mapping[str, Any], called: Called | None = None) -> Any:
        """The answer to a question. Raises what the submission raises."""
        name = str(len(self.asked))
        self.asked.append(dict(question))
        until = time.monotonic() + LONGEST_S
        self._line.send({**question, "id": name}, until)
        told = self._line.receive(until)
        while "call" in told:
            assert called is not None
            self._line.send({**called(told["call"], told["values"]), "id": name}, until)
            told = self._line.receive(until)
        assert told["id"] == name
        if "error" in told:
            raised, line = error_of(told["error"])
            raised.__dict__.update(line=line, of_driver=told["error"].get("driver") is True)
            raise raised
        return told.get("answer")


@contextmanager
def in_one_process(kind: str, submission: str) -> Iterator[Any]:
    """A submission that can be asked until the block ends."""
    asked, ask = os.pipe()
    answer, answered = os.pipe()
    there = Line(asked, answered, MOST_REQUEST_BYTES, patient=True)
    here = Line(answer, ask, MOST_REPLY_BYTES)

    def serves() -> None:
        try:
            serve(there, kind, submission)
        finally:
            there.close()  # so that whoever asks hears of it

    thread = threading.Thread(target=serves, daemon=True)
    thread.start()
    try:
        yield OneProcess(here)
    finally:
        here.close()
        thread.join(LONGEST_S)
