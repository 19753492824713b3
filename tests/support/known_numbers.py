"""All numbers that a thing returns, prints and draws, kept from when somebody looked at them.

A mistake in a table or a figure is seldom seen by a law, and a test of each cell would be longer
than the code. So the numbers of made-up cases are kept as data, without a word of what is said
around them. Read next: `toy_experiments.py`, `toy_shown.py`; `../unit/test_known_numbers.py`, which
compares, and writes what is known anew when asked to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree

#: Attributes of a figure that hold names and colours.
WORDS = ("class", "fill", "font-family", "id", "stroke", "style")
#: Where a text stands, as a number.
ANCHORS = {"start": 1, "middle": 2, "end": 3}
#: Measured, and different each time.
BY_THE_CLOCK = ("plan_s", "replay_us", "seconds")


def numbers_in(lines: Iterable[str]) -> list[list[str]]:
    """Of each line that has any: its numbers, with what follows at once (`%`, `x`)."""
    found = (re.findall(r"(?<![\w.])[-+]?\d[\d.,]*[%x]?", line) for line in lines)
    return [numbers for numbers in found if numbers]


def said_in(lines: Sequence[str]) -> tuple[list[list[str]], list[int]]:
    """The numbers in lines, and how many words each line has: a half sentence that is missing, or
    stands where its condition does not hold, has no number."""
    return numbers_in(lines), [len(line.split()) for line in lines]


def shapes_of(figure: str) -> dict[str, list[float]]:
    """{kind of element: how many numbers its attributes have, and their sum, of which the n-th
    counts (n modulo 7) + 1 times}: what is drawn where, without a word that is drawn.

    Args:
        figure: SVG.
    """
    found: dict[str, list[float]] = {}
    for element in ElementTree.fromstring(figure).iter():
        kind = found.setdefault(element.tag.rpartition("}")[2], [0, 0.0])
        for name, value in sorted(element.attrib.items()):
            drawn = str(ANCHORS.get(value, value if name not in WORDS else ""))
            for number in re.findall(r"-?\d+\.?\d*", drawn):
                kind[0] += 1
                kind[1] = round(kind[1] + float(number) * (kind[0] % 7 + 1), 3)
    return found


def without_words(thing: Any) -> Any:
    """Plain data, of whose texts only the numbers are left."""
    if isinstance(thing, dict):
        return {key: without_words(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [without_words(value) for value in thing]
    if isinstance(thing, str):
        return " ".join(number for line in numbers_in([thing]) for number in line)
    return thing


def differences(found: Any, known: Any, where: str = "") -> list[str]:
    """Where two things of plain data differ: numbers beyond rounding, all else at all."""
    if isinstance(known, dict) and isinstance(found, dict) and list(found) == list(known):
        return [
            line for key in known if key not in BY_THE_CLOCK
            for line in differences(found[key], known[key], f"{where}.{key}")
        ]  # fmt: skip
    if isinstance(known, list) and isinstance(found, list) and len(found) == len(known):
        pairs = enumerate(zip(found, known, strict=True))
        return [line for n, pair in pairs for line in differences(*pair, f"{where}[{n}]")]
    if isinstance(known, float) and isinstance(found, int | float):
        near = abs(found - known) <= 1e-9 + 1e-6 * abs(known)
        return [] if near else [f"{where}: {found}, known {known}"]
    return [] if found == known else [f"{where}: {found!r:.200}, known {known!r:.200}"]
