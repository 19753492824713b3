"""The laws of blocks bite: each planted bug breaks a named border.

The laws and the names are in `../properties/test_blocks.py`.
"""

from __future__ import annotations

import pytest
from properties.test_bands import EVERY_ROW
from properties.test_blocks import BORDERS, law_of_a_skip, law_of_borders
from support.quick import quick
from zoo.block_bugs import BLOCK_BUGS

from ooctrain.errors import OoctrainError

#: Rows over a border of four: few runs, and several.
CUTS = ((5, 11, 19), EVERY_ROW, (2, 3, 18))


def all_named_borders() -> None:
    law_of_a_skip()
    for rows in CUTS:
        for case in BORDERS:
            for again in (False, True):
                law_of_borders(case, rows, again)


@pytest.mark.parametrize("bug", quick(list(BLOCK_BUGS), 0, 3, 8))
def test_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BLOCK_BUGS[bug](monkeypatch)
    with pytest.raises((AssertionError, OoctrainError, ValueError)):  # NumPy: shapes do not fit
        all_named_borders()
