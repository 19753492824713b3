"""The law of tiling bites: each planted bug passes the plain tests and breaks the law.

The plain tests are those of tests/unit/test_tile_trace.py, run here with the bug in place; the law
is that of tests/properties/test_tiled_gradients.py, in the reference mode, which needs no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from support.check_tile import check_tile
from support.tile_chains import Chain, chains, exact_values
from unit import test_tile_trace as PLAIN
from zoo.tile_bugs import BUGS

from ooctrain.errors import OoctrainError


def plain_tests() -> Iterator[Callable[[], None]]:
    """All plain tests that take no arguments."""
    for name, function in vars(PLAIN).items():
        if name.startswith("test_") and not function.__code__.co_argcount:
            yield function


def the_law(examples: int) -> None:
    """Tries the law on chains that are the same in each run; shrinks nothing."""

    @settings(max_examples=examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(chains(), st.integers(0, 99))
    def law(chain: Chain, seed: int) -> None:
        trace = chain.trace("direct")
        assume(trace is not None)
        values = exact_values(trace, seed)
        assume(values is not None)
        check_tile(trace, chain.grid, values, mode="reference")

    law()


def test_the_law_holds_without_bugs() -> None:
    assert the_law(examples=30) is None


@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    for function in plain_tests():
        function()
    with pytest.raises((AssertionError, OoctrainError)):
        the_law(examples=400)
