"""Puzzle c4: statistics that are carried from band to band, with the bits of one band.

A batch norm needs the mean and the variance of all rows before it can write the first one. Bands
read their rows one after the other and carry sums. The sum of floats depends on their order, so the
law demands that any heights of bands give the same bits. Read next: tutorial 15,
`../../rewrite/tile/carried_sums.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ooctrain.course.puzzles.attempt import Attempt, Score, Wrong, attempted, wanted
from ooctrain.report.charts import Piece, strips_svg

ROWS, _CHANNELS = 32, 8


def judge_carried(title: str, answer: tuple[Callable, Callable]) -> Attempt:
    """`carry(state, rows)` takes a band in, `finish(state, count)` gives mean and variance."""
    carry, finish = answer if isinstance(answer, tuple) and len(answer) == 2 else (None, None)
    x = np.random.default_rng(0).standard_normal((ROWS, _CHANNELS)).astype(np.float32) + 3
    cuts = [(ROWS,), (8, 8, 8, 8), (1,) * ROWS, (5, 20, 7), (31, 1)]
    runs: list[tuple[tuple[int, ...], np.ndarray, int]] = []

    def tried() -> None:
        if not callable(carry) or not callable(finish):
            raise Wrong("the answer is a pair of functions: (carry, finish)")
        for heights in cuts:
            state, at = None, 0
            for height in heights:
                state = carry(state, x[at : at + height])
                at += height
            pair = wanted(finish(state, ROWS), tuple, "finish returns (mean, variance)")
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
