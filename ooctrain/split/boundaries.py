"""One dimension of a split: where its parts begin, and how each is padded (equations 1 to 7).

Given are the window of an operation (kernel k, stride s, padding p) and the first output O_i of
each part. The parts of the output have the right sizes wherever the input is cut, if the padding at
a cut makes up for it. So the cut I_i is free between the first row that the next part's first
window reads and the row behind the last that this part's last window reads, and each part's own
padding follows from it.

Source: paper 004, section 3.1. Departures: p_{i,b} = I_i + p_b - O_i s, where (O_i - 1) s is
printed, which gives every part but the first one output too many; equations 1 and 2 are about the
cut between outputs O_i - 1 and O_i. See docs/errata.md. Read next: `cuts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ooctrain.step.rows import Window

#: First indices of the parts of one dimension; the first part begins at 0.
Cuts = tuple[int, ...]
Interval = tuple[int, int]


def extent_of(window: Window) -> int:
    """k: rows from a window's first to its last, the dilation counted."""
    return (window.kernel - 1) * window.dilation + 1


def lower_bound(window: Window, output: int) -> int:
    """Equation 1: lb(I) = O s - p_b, the first row that the window of output O wants."""
    return output * window.stride - window.pad_lo


def upper_bound(window: Window, output: int) -> int:
    """Equation 2: ub(I) = (O - 1) s + k - p_b, the row behind the window of output O - 1."""
    return (output - 1) * window.stride + extent_of(window) - window.pad_lo


def allowed(window: Window, output: int) -> Interval:
    """Where the input may be cut before output O so that every row is read that was read.

    With k < s equations 1 and 2 leave nothing: between two windows lie rows that are not read. The
    part then begins at its first window, O s - p_b, and these rows stay with the part before.
    """
    low = lower_bound(window, output)
    return low, max(low, upper_bound(window, output))


def paddings(window: Window, outputs: Cuts, inputs: Cuts) -> list[tuple[int, int]]:
    """Equation 5: (p_{i,b}, p_{i,e}) of each part; a negative number counts rows that are not read.

    Args:
        outputs, inputs: first index of each part, O and I.
    """
    found = []
    for i, (output, cut) in enumerate(zip(outputs, inputs, strict=True)):
        begin = window.pad_lo if i == 0 else cut + window.pad_lo - output * window.stride
        if i == len(outputs) - 1:
            found.append((begin, window.pad_hi))
            continue
        end = (outputs[i + 1] - 1) * window.stride + extent_of(window)
        found.append((begin, end - (inputs[i + 1] + window.pad_lo)))
    return found


def sizes(cuts: Cuts, extent: int) -> list[int]:
    """Rows of each part of a dimension."""
    return [b - a for a, b in pairwise((*cuts, extent))]


def middle(interval: Interval) -> int:
    """The cut in the middle, the upper one of two: the adjacent parts are padded alike."""
    low, high = interval
    return (low + high + 1) // 2


def wiggle(place: int, extent: int, parts: int, omega: float) -> Interval:
    """Section 3.3: where the boundary before part i of N may lie in a dimension of size L.

    ceil((i - w) L / N) to floor((i + w) L / N); in short dimensions no whole number lies between
    the two, and the nearest boundary stands for them.
    """
    low = math.ceil((place - omega) * extent / parts)
    high = math.floor((place + omega) * extent / parts)
    if low > high:
        low = high = math.floor(place * extent / parts + 0.5)
    return low, high


def drawn(interval: Interval, key: Sequence[int]) -> int:
    """A whole number of the interval, each as likely, the same whenever the key is the same."""
    low, high = interval
    return low if low == high else int(np.random.default_rng(tuple(key)).integers(low, high + 1))


def even_cuts(extent: int, parts: int) -> Cuts:
    """Parts as equal as can be."""
    return tuple(wiggle(i, extent, parts, 0.0)[0] for i in range(parts))
