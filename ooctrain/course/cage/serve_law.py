"""A submission's law, asked in its process to try an arena that is in another.

The law gets an arena whose two methods ask through the pipe, and a generator of random numbers in
the state that the question gives. What it raises as an AssertionError is its verdict; any other
error is its own. Read next: `../remote.py`, the other side; `serve.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from ooctrain.course.cage.wire import Line, error_of
from ooctrain.errors import ConfigError
from ooctrain.plugins import resolve


def serve_law(line: Line, submission: str) -> Callable[[Mapping[str, Any]], Any]:
    """What answers the questions about a law."""
    law = resolve(submission, {}, group="ooctrain.nobody", what="law")
    if not callable(getattr(law, "check", None)) or not hasattr(law, "name"):
        raise ConfigError(
            f"{type(law).__name__} is not a law: it lacks `name` or `check`", code="OOC-108",
            fix="the handout of the assignment says what a law has",
        )  # fmt: skip

    def answer(question: Mapping[str, Any]) -> Any:
        if question["ask"] == "name":
            return {"name": str(law.name)}
        arena = ArenaThere(line, question["id"], question["size"])
        rng = random.Random()
        version, numbers, gauss = question["state"]
        rng.setstate((version, tuple(numbers), gauss))
        try:
            law.check(arena, rng)
        except AssertionError as error:
            return {"stopped": str(error) or "it is broken"}
        return {"stopped": ""}

    return answer


class ArenaThere:
    """An arena of the process that asks.

    Args:
        line: to that process.
        asked_in: id of the question that is being answered.
        size: bytes in all.
    """

    def __init__(self, line: Line, asked_in: str, size: int):
        self._line, self._asked_in, self.size = line, asked_in, size

    def allocate(self, size: int) -> int | None:
        """The offset of a new block; None where no free range takes it."""
        return self._call("allocate", size)

    def free(self, offset: int) -> None:
        """Gives a block back."""
        self._call("free", offset)

    def _call(self, method: str, value: int) -> Any:
        self._line.send({"id": self._asked_in, "call": method, "values": [value]})
        reply = self._line.receive()
        if "error" in reply:
            raise error_of(reply["error"])[0]
        return reply["value"]
