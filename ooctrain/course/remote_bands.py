"""Bands by hand that are asked for in another process, for laws, tests and footprints.

A submission's process gets layers and cuts and answers with rows, as data: three numbers for each
band and tensor. The side that asks counts with these numbers and runs none of the submission's
code. Read next: `interview.py`; `../testing/tiled/bands_by_hand.py`, which counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooctrain.course.interview import Interview
from ooctrain.course.remote_planner import name_told


class RemoteBands:
    """A submission as `BandsByHand`.

    Args:
        interview: with its process.
    """

    def __init__(self, interview: Interview):
        self._interview = interview
        self.name = name_told(interview)

    def rows(self, layers: Sequence[Sequence[int]], cuts: Sequence[int]) -> Any:
        """The submission's answer. Raises what it raises, or ValueError: no list of lists."""
        asked = {"ask": "rows", "layers": [list(layer) for layer in layers], "cuts": list(cuts)}
        told = self._interview.ask(asked)
        rows = told.get("rows") if isinstance(told, dict) else None
        if not isinstance(rows, list) or not all(isinstance(band, list) for band in rows):
            raise ValueError("rows() gives no list of bands")
        return rows
