"""A law that runs in another process, for the laws of laws and for hunts.

The submission's process gets the size of an arena and a random generator's state, so it draws what
it would draw at home; it asks for blocks through the pipe, and answers with what its law says. The
arena stays on this side. Read next: `interview.py`; `cage/serve_law.py`, which answers; `hunt.py`.
"""

from __future__ import annotations

import random
from typing import Any

from ooctrain.course.cage.told import error_data, printable
from ooctrain.course.interview import Interview
from ooctrain.course.remote_planner import name_told
from ooctrain.testing.law_by_hand import AskedArena
from ooctrain.units import MAX_BYTES

#: Of what a law says.
MOST_LETTERS = 200


class RemoteLaw:
    """A submission as `LawByHand`.

    Args:
        interview: with its process.
    """

    def __init__(self, interview: Interview):
        self._interview = interview
        self.name = name_told(interview)

    def begin(self) -> None:
        """From now on its time counts anew."""
        self._interview.begin()

    def check(self, arena: AskedArena, rng: random.Random) -> None:
        """Raises AssertionError where the law stops the arena, and what else it raises."""

        def called(what: str, values: list[Any]) -> dict[str, Any]:
            known = what in ("allocate", "free") and len(values) == 1
            if not known or type(values[0]) is not int or not 0 <= values[0] < MAX_BYTES:
                return {"error": error_data(ValueError(f"{what}: no size or offset"), "")}
            try:
                return {"value": getattr(arena, what)(values[0])}
            except KeyError:
                return {"error": error_data(KeyError(f"there is no block at {values[0]}"), "")}

        asked = {"ask": "try", "size": arena.size, "state": rng.getstate()}
        told = self._interview.ask(asked, called)
        stopped = told.get("stopped") if isinstance(told, dict) else None
        if not isinstance(stopped, str):
            raise TypeError("check() gives no answer")
        if stopped:
            raise AssertionError(printable(stopped).replace("\n", " ")[:MOST_LETTERS])
