"""Bands of a chain of layers, written by a student as lists of rows, counted.

For each band and each tensor of a chain there are three numbers: rows [lo, hi) are computed in this
band, and of the rows then present those from `keep` on stay for the next one. The rows and their
bands determine everything: counting shows whether each layer finds the rows that it reads, how much
is computed twice, and how much is held at one time. The result is a `Footprint`, or a ValueError
that names the missing row. `check_bands` takes an object with `rows(layers, cuts)` and raises a
`BandsFailure` with the chain and the band in which a promise is broken. Read next:
`../../rewrite/tile/frontier.py`, whose frontiers are par; docs/tiling.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol

from ooctrain.errors import ConfigError, OoctrainError, unknown_name
from ooctrain.rewrite.tile.frontier import even_cuts, frontier_after
from ooctrain.rewrite.tile.segment import find_segment
from ooctrain.step.rows import RowsRead, Window
from ooctrain.step.trace import ITEM_BYTES, Trace

#: (kernel, stride, padding) of a layer, in rows
LayerRows = tuple[int, int, int]
#: for each band, for each tensor, the input first: [lo, hi, keep]
Answer = Sequence[Sequence[Sequence[int]]]


class BandsByHand(Protocol):
    """Says which rows are computed when."""

    name: str

    def rows(self, layers: Sequence[LayerRows], cuts: Sequence[int]) -> Answer:
        """An `Answer` for a chain whose input is there band by band, up to each cut."""


@dataclass(frozen=True, slots=True)
class BandedChain:
    """A chain of layers, and where its input is cut.

    Args:
        layers: first one first.
        cuts: 0, rows, and the height of the input.
        row_bytes: size of a row of each tensor, the input first.
    """

    layers: tuple[LayerRows, ...]
    cuts: tuple[int, ...]
    row_bytes: tuple[int, ...]

    @property
    def heights(self) -> tuple[int, ...]:
        """Rows of each tensor."""
        found = [self.cuts[-1]]
        for kernel, stride, padding in self.layers:
            found.append((found[-1] + 2 * padding - kernel) // stride + 1)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What bands cost.

    Args:
        work: rows that are computed, weighed by bytes and by the rows of the kernel; 1: each once.
        peak_bytes: the most rows that lie there while a layer runs in a band.
    """

    work: float
    peak_bytes: int


def footprint_of(chain: BandedChain, answer: Any) -> Footprint:
    """Counts what an answer costs.

    Raises:
        ValueError: it is invalid, or it reads a row that does not exist or is never computed.
    """
    heights, bands = chain.heights, list(pairwise(chain.cuts))
    _check_form(answer, len(bands), heights)
    there: list[tuple[int, int]] = [(0, 0) for _ in heights]
    done, work, peak = 0, 0, 0
    for t, (_, cut) in enumerate(bands):
        for i, (lo, hi, _) in enumerate(answer[t]):
            if i == 0 and hi > cut:
                raise ValueError(f"band {t}: row {hi - 1} of the input comes after the cut {cut}")
            if i and hi > lo:
                _check_read(chain, t, i, (lo, hi), there[i - 1])
                work += (hi - lo) * chain.row_bytes[i] * chain.layers[i - 1][0]
            there[i] = _joined(t, i, there[i], (lo, hi))
            held = sum((b - a) * size for (a, b), size in zip(there, chain.row_bytes, strict=True))
            peak = max(peak, held)
            if i:  # what this layer has read may go
                there[i - 1] = _kept(t, i - 1, there[i - 1], answer[t][i - 1][2])
        done = _handed_out(t, done, there[-1])
        there[-1] = (done, done)
    if done < heights[-1]:
        raise ValueError(f"row {done} of the output is never computed")
    whole = sum(
        height * size * layer[0]
        for height, size, layer in zip(heights[1:], chain.row_bytes[1:], chain.layers, strict=True)
    )
    return Footprint(work / whole, peak)


def _check_form(answer: Any, bands: int, heights: Sequence[int]) -> None:
    """Raises ValueError: not three whole numbers for each band and tensor."""
    if not isinstance(answer, list | tuple) or len(answer) != bands:
        raise ValueError(f"rows() gives {_short(answer)}, not a list for each of {bands} bands")
    for t, band in enumerate(answer):
        if not isinstance(band, list | tuple) or len(band) != len(heights):
            raise ValueError(f"band {t}: {_short(band)} is not a list for {len(heights)} tensors")
        for i, (rows, height) in enumerate(zip(band, heights, strict=True)):
            three = isinstance(rows, list | tuple) and [type(n) for n in rows] == [int] * 3
            if not three or not (0 <= rows[0] <= rows[1] <= height and 0 <= rows[2] <= height):
                raise ValueError(
                    f"band {t}, tensor {i}: {_short(rows)} is not [lo, hi, keep] in 0 to {height}"
                )


def _short(value: object) -> str:
    return f"{value!r:.40}"


def _check_read(
    chain: BandedChain, t: int, i: int, rows: tuple[int, int], there: tuple[int, int]
) -> None:
    kernel, stride, padding = chain.layers[i - 1]
    first = max(0, rows[0] * stride - padding)
    stop = min(chain.heights[i - 1], (rows[1] - 1) * stride - padding + kernel)
    missing = next((r for r in range(first, stop) if not there[0] <= r < there[1]), None)
    if missing is not None:
        raise ValueError(
            f"band {t}: rows {rows[0]}:{rows[1]} of layer {i} read row {missing} of tensor "
            f"{i - 1}, and rows {there[0]}:{there[1]} are there"
        )


def _joined(t: int, i: int, there: tuple[int, int], rows: tuple[int, int]) -> tuple[int, int]:
    if rows[0] == rows[1]:
        return there
    if there[0] == there[1]:
        return rows
    if rows[0] > there[1] or rows[1] < there[0]:
        raise ValueError(
            f"band {t}: rows {rows[0]}:{rows[1]} of tensor {i} leave a gap to rows "
            f"{there[0]}:{there[1]}, which were kept"
        )
    return min(there[0], rows[0]), max(there[1], rows[1])


def _kept(t: int, i: int, there: tuple[int, int], keep: int) -> tuple[int, int]:
    if there[0] == there[1]:
        return there
    if not there[0] <= keep <= there[1]:
        raise ValueError(
            f"band {t}: tensor {i} is to keep rows from {keep} on, and rows {there[0]}:{there[1]} "
            "are there"
        )
    return keep, there[1]


def _handed_out(t: int, done: int, rows: tuple[int, int]) -> int:
    if rows[0] > done:
        raise ValueError(f"band {t}: row {done} of the output is left out")
    return max(done, rows[1])


# Par, and chains


def par_rows(layers: Sequence[LayerRows], cuts: Sequence[int]) -> list[list[list[int]]]:
    """What the library does: frontiers, and the rows that the next band reads."""
    windows = [Window(k, s, pad_lo=p, pad_hi=p) for k, s, p in layers]
    heights = BandedChain(tuple(layers), tuple(cuts), ()).heights
    fronts = [tuple(cuts)]
    for window, outputs in zip(windows, heights[1:], strict=True):
        fronts.append(frontier_after([(RowsRead(window), fronts[-1])], outputs))
    found = []
    for t in range(len(cuts) - 1):
        band = []
        for i, front in enumerate(fronts):
            keep = front[t + 1]
            if i < len(windows) and fronts[i + 1][t + 1] < heights[i + 1]:
                first = RowsRead(windows[i]).first(fronts[i + 1][t + 1], heights[i])
                keep = min(first, keep)
            band.append([front[t], front[t + 1], keep])
        found.append(band)
    return found


def random_chain(rng: random.Random) -> BandedChain:
    """Layers of up to 5 rows, strides no larger than kernels, cuts down to one row."""
    layers, heights = list[LayerRows](), [rng.randint(8, 40)]
    for _ in range(rng.randint(1, 5)):
        kernel = rng.choice((1, 2, 3, 3, 5))
        layer = kernel, rng.randint(1, min(kernel, 2)), rng.randint(0, kernel // 2)
        rows = (heights[-1] + 2 * layer[2] - layer[0]) // layer[1] + 1
        if rows < 1:
            break
        layers.append(layer)
        heights.append(rows)
    inner = rng.sample(range(1, heights[0]), rng.randint(0, heights[0] - 1))
    row_bytes = tuple(rng.randint(1, 9) for _ in range(len(layers) + 1))
    return BandedChain(tuple(layers), (0, *sorted(inner), heights[0]), row_bytes)


def chain_in(trace: Trace, bands: int) -> BandedChain:
    """The longest chain of a step, in even bands; calls on single pixels are left out.

    Raises:
        ConfigError: a layer has another window than (kernel, stride, padding).
    """
    segment = find_segment(trace)
    source = trace.variables[segment.source]
    layers, sizes = list[LayerRows](), [source.shape]
    for stage in segment.stages:
        window = stage.windows[0]
        if window.dilation != 1 or window.pad_lo != window.pad_hi:
            raise ConfigError(
                f"{stage.forward.name!r} is dilated, or padded otherwise above than below",
                code="OOC-119", fix="a network whose layers are (kernel, stride, padding)",
            )  # fmt: skip
        if window != Window():
            layers.append((window.kernel, window.stride, window.pad_lo))
            sizes.append(trace.variables[stage.forward.outs[0]].shape)
    row_bytes = tuple(c * w * ITEM_BYTES["float32"] for _, c, _, w in sizes)
    return BandedChain(tuple(layers), even_cuts(source.shape[2], bands), row_bytes)


# Laws


class BandsFailure(OoctrainError, AssertionError):
    """Bands break a promise."""

    default_code = "OOC-293"


def legal(bands: BandsByHand, chain: BandedChain) -> str:
    """Each layer finds the rows that it reads, and all rows of the output are computed."""
    try:
        footprint_of(chain, bands.rows(chain.layers, chain.cuts))
    except ValueError as error:
        return str(error)
    return ""


def once(bands: BandsByHand, chain: BandedChain) -> str:
    """No row of any layer is computed in two bands."""
    seen = [0] * len(chain.heights)
    for t, band in enumerate(bands.rows(chain.layers, chain.cuts)):
        for i, (lo, hi, _) in enumerate(band):
            if hi > lo and lo < seen[i]:
                return f"band {t}: row {lo} of tensor {i} again"
            seen[i] = max(seen[i], hi)
    return ""


def same_again(bands: BandsByHand, chain: BandedChain) -> str:
    """The same question has the same answer, whatever was asked in between."""
    first = _as_lists(bands.rows(chain.layers, chain.cuts))
    bands.rows(chain.layers[:1], (0, chain.cuts[-1]))
    second = _as_lists(bands.rows(chain.layers, chain.cuts))
    return "" if first == second else "asked twice, it answers differently"


def _as_lists(answer: Sequence) -> list:
    return [[list(rows) for rows in band] for band in answer]


BANDS_LAWS: Mapping[str, Callable[[BandsByHand, BandedChain], str]] = MappingProxyType(
    {"rows are there": legal, "rows are computed once": once, "asked twice": same_again}
)


def check_bands(
    bands: BandsByHand, *, examples: int = 50, seed: int = 0, laws: Sequence[str] = ()
) -> None:
    """Tries the laws on random chains.

    Args:
        examples: for each law; seed: of the chains.
        laws: names of those that are tried, as in `BANDS_LAWS`; none: all.

    Raises:
        BandsFailure: a law is broken.
        ConfigError: no law is named so.
    """
    for name in laws or BANDS_LAWS:
        if name not in BANDS_LAWS:
            raise unknown_name("no law of bands is called", name, BANDS_LAWS, "one of them")
        for number in range(examples):
            chain = random_chain(random.Random(f"{seed}/{number}"))
            problem = BANDS_LAWS[name](bands, chain)
            if problem:
                raise BandsFailure(
                    f"{name}: {problem}",
                    numbers=f"layers (kernel, stride, padding) {list(chain.layers)}, cuts "
                    f"{list(chain.cuts)}; example {number} of seed {seed}",
                    fix="draw the rows of two bands of this chain by hand (tutorial 14)",
                )
