"""How a network is split, as numbers and as an option of the command line.

Depth, grid and the other numbers, or a text such as "depth=0.5,grid=2x2,stochastic", give a
`Splitting`, or a ConfigError that says which number is out of its range. Read next:
`boundaries.py`, `model.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from ooctrain.errors import ConfigError

#: The paper's, in all its experiments ("we do not tune omega").
OMEGA = 0.2
#: At this and above, neighbouring boundaries may be drawn in the same place.
OMEGA_LIMIT = 0.5
#: Tried where a budget is to be fitted.
DEPTHS = (0.25, 0.5, 0.75, 1.0)
GRIDS = ((2, 1), (2, 2), (3, 3), (4, 4))
FIX = 'such as "depth=0.5,grid=2x2,stochastic"'


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a network is split.

    Args:
        depth: share of the convolutions that work on patches, 0 to 1.
        grid: patches in each column and in each row of the image: (rows, columns).
        stochastic: whether boundaries are drawn anew for each training step.
        omega: how far, as a share of a part, in [0, 0.5).
        seed: seed of what is drawn.

    Raises:
        ConfigError: one of them is out of its range.
    """

    depth: float = 0.5
    grid: tuple[int, int] = (2, 2)
    stochastic: bool = False
    omega: float = OMEGA
    seed: int = 0

    def __post_init__(self) -> None:
        if not (_is_number(self.depth) and 0 <= self.depth <= 1):
            raise _wrong("depth", self.depth, "is not a share of the convolutions, 0 to 1")
        whole = isinstance(self.grid, tuple | list) and len(self.grid) == 2
        if not whole or any(not _is_whole(n) or n < 1 for n in self.grid):
            raise _wrong("grid", self.grid, "is not two whole numbers of 1 or more")
        if not _is_number(self.omega):
            raise _wrong("omega", self.omega, "is not a number of [0, 0.5)")
        if not 0 <= self.omega < OMEGA_LIMIT:
            raise _wrong(
                "omega", self.omega, "is outside [0, 0.5): two boundaries might be drawn in one "
                "place",
            )  # fmt: skip
        if not _is_whole(self.seed) or self.seed < 0:
            raise _wrong("seed", self.seed, "is not a whole number of 0 or more")
        rows, columns = self.grid
        plain = {"depth": float(self.depth) + 0.0, "grid": (int(rows), int(columns))}
        for name, value in (plain | {"omega": float(self.omega), "seed": int(self.seed)}).items():
            object.__setattr__(self, name, value)

    @property
    def parts(self) -> int:
        """Patches in all."""
        return self.grid[0] * self.grid[1]

    @property
    def splits(self) -> bool:
        """Whether there is anything to split."""
        return self.depth > 0 and self.parts > 1

    def __str__(self) -> str:
        drawn = f",stochastic,omega={self.omega:g}" if self.stochastic else ""
        return f"depth={self.depth:g},grid={self.grid[0]}x{self.grid[1]}{drawn}"


def coarser(how: Splitting) -> Iterator[Splitting]:
    """Section 4.1's coarse search: all that one would try, the least harmful first.

    Error grows with the depth and only slowly with the number of patches (section 5.2), so more
    patches come before a greater depth. The first is not a split at all.
    """
    yield replace(how, depth=0.0)
    for depth, grid in itertools.product(DEPTHS, GRIDS):
        yield replace(how, depth=depth, grid=grid)


def parse_splitting(text: str, seed: int = 0) -> tuple[Splitting, str]:
    """(how to split, the budget that it shall fit), from words such as
    "depth=0.5,grid=2x2,stochastic,omega=0.2" or "fit=4GiB"; no budget: "".

    Raises:
        ConfigError: an unknown setting, or a number out of range.
    """
    given: dict[str, Any] = {"seed": seed}
    fit = ""
    for word in filter(None, map(str.strip, text.split(","))):
        name, equals, value = word.partition("=")
        if name == "fit" and value:
            fit = value
        elif name == "stochastic" and not equals:
            given["stochastic"] = True
        elif name in _READ and value:
            given[name] = _read(name, value)
        else:
            raise ConfigError(f"split: {word!r} is not a known setting", code="OOC-170", fix=FIX)
    how = Splitting(**given)
    if fit:
        expect_free(how)
    return how, fit


def expect_free(how: Splitting) -> None:
    """Raises ConfigError where a depth or a grid is given with a budget that chooses both."""
    usual = Splitting()
    if (how.depth, how.grid) != (usual.depth, usual.grid):
        raise ConfigError(
            f"split: {how} beside a budget to fit, which chooses depth and grid", code="OOC-170",
            fix="fit=4GiB without depth and grid, or depth and grid without fit",
        )  # fmt: skip


def _read(name: str, value: str) -> Any:
    try:
        return _READ[name](value)
    except ValueError:
        raise _wrong(name, value, "is not a number, or no pair of numbers") from None


def _grid(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    return int(rows), int(columns)


_READ: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {"depth": float, "grid": _grid, "omega": float, "seed": int}
)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _wrong(name: str, value: object, why: str) -> ConfigError:
    return ConfigError(f"split: {name} {value!r} {why}", code="OOC-170", fix=FIX)
