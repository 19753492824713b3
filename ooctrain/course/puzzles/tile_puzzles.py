"""Series c: tiles. Which rows can be computed, kept or read, which sums are carried on.

A layer is a `Window` along one axis: output row o reads the input rows o s - p to o s - p + k - 1
that exist. The laws are tried on many windows, row by row, straight from that definition: nothing
of the library's own arithmetic (`rewrite/tile/`) is needed to judge an answer, and the first row
that is wrong is named. The two numbers are computed on one network of four layers in four bands.
Read next: `../../rewrite/tile/frontier.py` for the library's answers, `kernel_puzzles.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ooctrain.course.puzzles.attempt import Attempt, Puzzle, Score, Wrong, attempted, wanted
from ooctrain.report.charts import Piece, strips_svg
from ooctrain.step.rows import Window

# The network of four layers in four bands.

ROWS, BANDS = 32, 4
#: The network of the picture: the second layer halves the rows.
LAYERS = (
    Window(3, 1, 1, 1, 1), Window(2, 2), Window(5, 1, 1, 2, 2), Window(3, 1, 1, 1, 1),
)  # fmt: skip
_WINDOWS = [
    Window(kernel, stride, 1, pad, pad)
    for kernel, stride in ((1, 1), (3, 1), (5, 1), (2, 2), (3, 2), (7, 2), (4, 3))
    for pad in range(kernel // 2 + 1)
]


def rows_out(window: Window, rows: int) -> int:
    """How many rows a layer writes."""
    return (rows + window.pad_lo + window.pad_hi - window.kernel) // window.stride + 1


def rows_read(window: Window, row: int, rows: int) -> range:
    """The input rows that an output row reads, of those that exist."""
    first = row * window.stride - window.pad_lo
    return range(max(first, 0), min(first + window.kernel, rows))


def named(window: Window, rows: int) -> str:
    """A window in words."""
    pads = f"padding {window.pad_lo}"
    return f"kernel {window.kernel}, stride {window.stride}, {pads}, {rows} input rows"


def _cases() -> Iterator[tuple[Window, int]]:
    yield from ((window, rows) for window in _WINDOWS for rows in (7, 12, 16))


def _row(value: Any, what: str) -> int:
    return wanted(value, int, f"{what} returns a whole number")


# c1: the frontier


def true_frontier(window: Window, there: int, rows: int) -> int:
    """How many output rows can be computed from the first `there` input rows, by definition."""
    count = rows_out(window, rows)
    late = (o for o in range(count) if any(i >= there for i in rows_read(window, o, rows)))
    return next(late, count)


def judge_frontier(title: str, frontier: Callable[..., int]) -> Attempt:
    """`frontier(there, kernel, stride, padding, rows)`: rows that can be computed."""

    def tried() -> None:
        for window, rows in _cases():
            for there in range(rows + 1):
                _check_frontier(window, there, rows, ask(window, there, rows))

    def ask(window: Window, there: int, rows: int) -> int:
        found = frontier(there, window.kernel, window.stride, window.pad_lo, rows)
        return _row(found, "frontier")

    wrong, _ = attempted(tried)
    _, yours = attempted(lambda: frontiers_of(ask))
    best = frontiers_of(true_frontier)
    numbers = (
        Score(
            "rows computed", _computed(yours) if yours else None, _computed(best), _computed(best)
        ),
        Score("rows kept at borders", _kept(yours) if yours else None, _kept(best), _kept(best)),
    )
    return Attempt(title, numbers, wrong, "a row that is computed late is kept longer",
                   bands_picture(title, yours or best))  # fmt: skip


def _check_frontier(window: Window, there: int, rows: int, found: int) -> None:
    right = true_frontier(window, there, rows)
    if found > right:
        missing = [i for i in rows_read(window, right, rows) if i >= there]
        raise Wrong(
            f"row {right} of the output cannot be computed yet ({named(window, rows)}): "
            f"it reads row {missing[0]}, and {_first(there)}; you say {found} rows"
        )
    if found < right:
        raise Wrong(
            f"row {found} of the output can be computed already ({named(window, rows)}): "
            f"it reads rows {_span(rows_read(window, found, rows))}, and {_first(there)}; "
            f"you say {found} rows"
        )


def frontiers_of(frontier: Callable[[Window, int, int], int]) -> list[list[int]]:
    """For each layer's output, the input first, where its bands end."""
    ends, rows = [[ROWS * band // BANDS for band in range(BANDS + 1)]], ROWS
    for window in LAYERS:
        count = rows_out(window, rows)
        ends.append([min(max(frontier(window, there, rows), 0), count) for there in ends[-1]])
        rows = count
    return ends


def _computed(ends: Sequence[Sequence[int]]) -> int:
    return sum(max(hi - lo, 0) for layer in ends[1:] for lo, hi in pairwise(layer))


def _kept(ends: Sequence[Sequence[int]]) -> int:
    """Rows that later bands read again, over all borders."""
    count, rows = 0, ROWS
    for window, before, after in zip(LAYERS, ends[:-1], ends[1:], strict=True):
        for there, done in zip(before[1:-1], after[1:-1], strict=True):
            lo, hi = true_kept(window, there, done, rows)
            count += hi - lo
        rows = rows_out(window, rows)
    return count


def bands_picture(title: str, ends: Sequence[Sequence[int]]) -> str:
    """The bands of each layer as strips."""
    strips = [
        (
            f"output of layer {number}" if number else "input",
            [
                Piece(lo, hi, f"band {t}", t)
                for t, (lo, hi) in enumerate(pairwise(layer))
                if hi > lo
            ],
        )
        for number, layer in enumerate(ends)
    ]
    legend = [f"band {t}" for t in range(BANDS)]
    return strips_svg(title, strips, extent=ROWS, axis="row", legend=legend)


# c2: kept rows


def true_kept(window: Window, there: int, done: int, rows: int) -> tuple[int, int]:
    """[lo, hi): the rows below `there` that output rows from `done` on read, by definition."""
    later = range(done, rows_out(window, rows))
    needed = [i for o in later for i in rows_read(window, o, rows) if i < there]
    return (min(needed), there) if needed else (there, there)


def judge_kept(title: str, kept: Callable[..., tuple[int, int]]) -> Attempt:
    """`kept(there, done, kernel, stride, padding, rows)`: the rows that the next band needs."""

    def ask(window: Window, there: int, done: int, rows: int) -> range:
        found = kept(there, done, window.kernel, window.stride, window.pad_lo, rows)
        lo, hi = wanted(found, tuple, "kept returns (first row, row behind the last)")
        return range(_row(lo, "kept"), _row(hi, "kept"))

    def tried() -> None:
        for window, rows in _cases():
            for there in range(1, rows):
                done = true_frontier(window, there, rows)
                _check_kept(window, there, done, rows, ask(window, there, done, rows))

    wrong, _ = attempted(tried)
    ends = frontiers_of(true_frontier)
    _, yours = attempted(lambda: _kept_rows(ends, ask))
    best = _kept_rows(ends, lambda w, t, d, r: range(*true_kept(w, t, d, r)))
    count, most = sum(map(len, best)), max(map(len, best))
    numbers = (
        Score("rows kept", sum(map(len, yours)) if yours else None, count, count),
        Score("most at one border", max(map(len, yours)) if yours else None, most, most),
    )
    return Attempt(title, numbers, wrong, "", _kept_picture(title, ends, yours or best))


def _check_kept(window: Window, there: int, done: int, rows: int, found: range) -> None:
    right = range(*true_kept(window, there, done, rows))
    where = f"({named(window, rows)}; {_first(there)}, {done} output rows are done)"
    for row in right:
        if row not in found:
            reader = next(
                o for o in range(done, rows_out(window, rows)) if row in rows_read(window, o, rows)
            )
            raise Wrong(f"row {row} is not kept, and output row {reader} reads it {where}")
    for row in found:
        if row not in right:
            why = "is not there yet" if row >= there else "is read by no later output row"
            raise Wrong(f"row {row} is kept, and {why} {where}")


def _kept_rows(ends: Sequence[Sequence[int]], ask: Callable[..., range]) -> list[range]:
    """What is kept of each layer's input at each border."""
    found, rows = [], ROWS
    for window, before, after in zip(LAYERS, ends[:-1], ends[1:], strict=True):
        for there, done in zip(before[1:-1], after[1:-1], strict=True):
            found.append(ask(window, there, done, rows))
        rows = rows_out(window, rows)
    return found


def _kept_picture(title: str, ends: Sequence[Sequence[int]], kept: Sequence[range]) -> str:
    strips, borders = [], BANDS - 1
    for layer in range(len(LAYERS)):
        own = kept[layer * borders : (layer + 1) * borders]
        pieces = [Piece(0, ends[layer][-1], "", 5)]
        pieces += [Piece(r.start, r.stop, f"{len(r)}", t) for t, r in enumerate(own) if len(r)]
        strips.append((f"output of layer {layer}" if layer else "input", pieces))
    legend = [f"kept after band {t}" for t in range(borders)]
    return strips_svg(title, strips, extent=ROWS, axis="row", legend=legend)


# c3: gather


def true_readers(window: Window, row: int, rows: int) -> tuple[int, int]:
    """[lo, hi): the output rows that read an input row, by definition."""
    readers = [o for o in range(rows_out(window, rows)) if row in rows_read(window, o, rows)]
    return (readers[0], readers[-1] + 1) if readers else (0, 0)


def judge_gather(title: str, gather: Callable[..., tuple[int, int]]) -> Attempt:
    """`gather(row, kernel, stride, padding, rows)`: rows of dy that dx[row] is a sum of."""

    def ask(window: Window, row: int, rows: int) -> range:
        found = gather(row, window.kernel, window.stride, window.pad_lo, rows)
        lo, hi = wanted(found, tuple, "gather returns (first row, row behind the last)")
        return range(_row(lo, "gather"), _row(hi, "gather"))

    def tried() -> None:
        for window, rows in _cases():
            for row in range(rows):
                right, found = range(*true_readers(window, row, rows)), ask(window, row, rows)
                for o in {*right, *found} - ({*right} & {*found}):
                    verb = "is missing: it read" if o in right else "is too many: it does not read"
                    raise Wrong(f"dx[{row}]: dy[{o}] {verb} row {row} ({named(window, rows)})")

    wrong, _ = attempted(tried)
    window = LAYERS[2]
    best = [range(*true_readers(window, row, 16)) for row in range(16)]
    _, yours = attempted(lambda: [ask(window, row, 16) for row in range(16)])
    target = sum(map(len, best))
    numbers = (
        Score("rows of dy read", sum(map(len, yours)) if yours else None, target, target),
        Score("most for one row", max(map(len, yours)) if yours else None, window.kernel,
               window.kernel),
    )  # fmt: skip
    strips = [
        (f"dx[{row}]", [Piece(o, o + 1, str(o), row % 4) for o in found])
        for row, found in enumerate(yours or best)
    ]
    picture = strips_svg(f"{title}: {named(window, 16)}", strips, extent=16, axis="row of dy")
    return Attempt(title, numbers, wrong, "", picture)


def _first(there: int) -> str:
    return f"the first {there} rows are there"


def _span(rows: range) -> str:
    return f"{rows.start} to {rows.stop - 1}" if len(rows) else "none"


# c4: statistics that are carried from band to band, with the bits of one band. A batch norm needs
# the mean and the variance of all rows before it can write the first one. Bands read their rows one
# after the other and carry sums. The sum of floats depends on their order, so the law demands that
# any heights of bands give the same bits.

CARRIED_ROWS, _CHANNELS = 32, 8


def judge_carried(title: str, answer: tuple[Callable, Callable]) -> Attempt:
    """`carry(state, rows)` takes a band in, `finish(state, count)` gives mean and variance."""
    carry, finish = answer if isinstance(answer, tuple) and len(answer) == 2 else (None, None)
    x = np.random.default_rng(0).standard_normal((CARRIED_ROWS, _CHANNELS)).astype(np.float32) + 3
    cuts = [(CARRIED_ROWS,), (8, 8, 8, 8), (1,) * CARRIED_ROWS, (5, 20, 7), (31, 1)]
    runs: list[tuple[tuple[int, ...], np.ndarray, int]] = []

    def tried() -> None:
        if not callable(carry) or not callable(finish):
            raise Wrong("the answer is a pair of functions: (carry, finish)")
        for heights in cuts:
            state, at = None, 0
            for height in heights:
                state = carry(state, x[at : at + height])
                at += height
            pair = wanted(finish(state, CARRIED_ROWS), tuple, "finish returns (mean, variance)")
            found = np.stack([np.asarray(part, np.float32) for part in pair])
            if found.shape != (2, _CHANNELS):
                raise Wrong(f"mean and variance have one number a channel, not {found.shape}")
            runs.append((heights, found, _floats(state)))
        _check_carried(x, runs)

    wrong, _ = attempted(tried)
    whole = runs[0][1] if runs else None
    differ = [int((found != whole).any(0).sum()) for _, found, _ in runs] if runs else []
    carried = max((floats for _, _, floats in runs), default=None)
    numbers = (
        Score("channels that differ", max(differ) if differ else None, 0, 0),
        Score("floats carried", carried, 2 * _CHANNELS, 2 * _CHANNELS),
    )
    strips = [
        (
            " + ".join(map(str, heights)) if len(heights) < 5 else f"{len(heights)} bands",
            [Piece(c, c + 1, str(c), int((found != whole)[:, c].any())) for c in range(_CHANNELS)],
        )
        for heights, found, _ in runs
    ]
    picture = strips_svg(
        title, strips or [("no run", [])], extent=_CHANNELS, axis="channel",
        legend=("the bits of one band", "other bits"),
    )  # fmt: skip
    return Attempt(title, numbers, wrong, "keep a sum and a sum of squares, no rows", picture)


def _check_carried(x: np.ndarray, runs: Sequence[tuple[tuple[int, ...], np.ndarray, int]]) -> None:
    exact = np.stack([x.astype(float).mean(0), x.astype(float).var(0)])
    for heights, found, _ in runs:
        off = ~(np.abs(found - exact) <= 1e-4 * np.abs(exact).max())
        if off.any():
            kind, channel = np.argwhere(off)[0]
            raise Wrong(
                f"the {('mean', 'variance')[kind]} of channel {channel} in bands of {heights} rows "
                f"is {found[kind, channel]:.6g}, and should be {exact[kind, channel]:.6g}"
            )
        other = found != runs[0][1]
        if other.any():
            kind, channel = np.argwhere(other)[0]
            raise Wrong(
                f"the {('mean', 'variance')[kind]} of channel {channel} has other bits in bands of "
                f"{heights} rows than in one band: {found[kind, channel]:.9g} and "
                f"{runs[0][1][kind, channel]:.9g}"
            )


def _floats(state: Any) -> int:
    """Numbers in a state, however it is nested."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list | tuple):
        return sum(map(_floats, state))
    return 0 if state is None else int(np.size(state))


PUZZLES = (
    Puzzle("c1", "The frontier", judge_frontier),
    Puzzle("c2", "Kept rows", judge_kept),
    Puzzle("c3", "Gather, do not scatter", judge_gather),
    Puzzle("c4", "Statistics that are carried", judge_carried),
)
