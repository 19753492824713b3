"""The laws of tiling bite: each planted bug of tiles or of bands breaks a law.

A bug of tiles passes the plain tests, those of tests/unit/test_tile_trace.py, run here with the bug
in place, and breaks the law of tests/properties/test_tiled_gradients.py, in the reference mode,
which needs no kernel. A bug of bands breaks a named case of its law: bands are held to
tests/properties/test_bands.py, and to what a student reads first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import test_tiled_equals_untiled as FIRST
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from properties.test_bands import CASES, EVERY_ROW, GRAPHS, Cut, check_bits, graph_trace
from strangers.test_any_segment_in_bands import (
    test_a_segment_that_ends_with_a_product as check_product,
)
from support.check_tile import check_tile, random_values
from support.quick import all_but
from support.tile_chains import Chain, chains, exact_values
from unit import test_tile_trace as PLAIN
from zoo.band_bugs import BAND_BUGS, OF_KERNELS, OF_PRODUCTS
from zoo.tile_bugs import BUGS

from ooctrain import manual_seed, nn
from ooctrain.engine.incore import Mode
from ooctrain.errors import OoctrainError
from ooctrain.step import rows as row_rules
from ooctrain.step.rows import Read, Span, Window


def plain_tests() -> Iterator[Callable[[], None]]:
    """All plain tests that take no arguments."""
    for name, function in list(vars(PLAIN).items()):  # a warning leaves a mark in its module
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


#: The search for them takes seconds.
LONG = ("dilation forgotten", *[*BUGS][1::4], *[*BUGS][2::4], *[*BUGS][3::4])


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=pytest.mark.slow if bug in LONG else ()) for bug in BUGS]
)
def test_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    for function in plain_tests():
        function()
    with pytest.raises((AssertionError, OoctrainError)):
        the_law(examples=400)


def law_of_bands(case: str, cut: Cut, mode: Mode) -> None:
    """A named case on whole numbers: by definition, or by the kernels."""
    if case in GRAPHS:
        trace, ends = graph_trace(GRAPHS[case], (2, 2, 26, 12)), ("first", "last")
    else:
        chain = Chain(nn.Sequential(*CASES[case]), (2, 2, 26, 11), (1, 1))
        trace, ends = chain.trace("direct"), (None, None)
    assert trace is not None
    check_bits(trace, cut.of(trace, *ends), random_values(trace, 1, integers=1), mode)


def all_named_cases(mode: Mode) -> None:
    """The quick ones first."""
    for rows in ((8, 9, 23), EVERY_ROW):
        for case in (*CASES, *GRAPHS):
            for again in (False, True):
                law_of_bands(case, Cut(rows, again), mode)


@pytest.mark.parametrize(
    "bug",
    all_but(
        BAND_BUGS,
        "a band of padding alone", "weight gradients of a transposed convolution by its output",
        "an upsampled border half-way", "the first channels of a concatenation",
        "upsampled as a window", "what others read is not put together",
        "unread last rows without gradient", *[*BAND_BUGS][1::3], *[*BAND_BUGS][2::3],
    ),
)  # fmt: skip
def test_bug_of_bands(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BAND_BUGS[bug](monkeypatch)
    # NumPy: shapes do not fit; or rows of a tensor that nobody has made.
    with pytest.raises((AssertionError, OoctrainError, ValueError, KeyError)):
        all_named_cases("cpu" if bug in OF_KERNELS else "reference")


def test_a_factor_that_decides_where_the_gradient_of_a_product_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    OF_PRODUCTS(monkeypatch)
    with pytest.raises(AssertionError):
        check_product("multiply", swapped=False, again=False)


def test_what_a_student_reads_first_names_layer_row_and_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one halo row removed: the last row that a band reads below its own becomes padding."""
    plain = row_rules.read_span

    def short(outputs: Span, window: Window, extent: int) -> Read:
        read = plain(outputs, window, extent)
        if window.kernel == 1 or read.inside.hi == extent:
            return read
        return Read(Span(read.inside.lo, read.inside.hi - 1), read.pad_lo, read.pad_hi + 1)

    manual_seed(0)
    model = nn.Sequential(FIRST.LAYERS[0](), nn.ReLU(), FIRST.LAYERS[0]())
    law = FIRST.test_tiled_equals_untiled.hypothesis.inner_test
    assert law(model, 12, 3, 0) is None
    monkeypatch.setattr(row_rules, "read_span", short)
    with pytest.raises(AssertionError, match=r"0\.out, row 2: expected \[.*\], got \[.*\]"):
        law(model, 12, 3, 0)
