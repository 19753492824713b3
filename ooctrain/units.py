"""Bytes, times and shares: the one place that reads and prints them.

It reads "512MiB", "8GB", "25%" or 4096, and prints "1.50 GiB", "312 us" or "70 %". Binary units are
powers of 1024 and decimal ones powers of 1000, as in IEC 80000-13; nothing is guessed. Read next:
`step/trace.py`.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from numbers import Real

from ooctrain.errors import ConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_UNITS = {
    "b": 1, "": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)
MAX_BYTES = 1 << 62
#: 9 TB take 2**63 ns then.
LEAST_BYTES_PER_US = 1e-3


@dataclass(frozen=True, slots=True)
class Percent:
    """A budget as a share f of a trace: minimum + f (peak - minimum)."""

    fraction: float


def parse_bytes(text: str | int, *, what: str = "size", least_bytes: int = 1) -> int:
    """Bytes of "512MiB", "8GB" or 4096.

    Args:
        least_bytes: 1: nothing is not a size; 0: it is one.

    Raises:
        ConfigError: not a whole number of bytes from the least to 2**62, or an unknown unit.
    """
    if isinstance(text, str):
        return _checked_bytes(_parse_size_text(text, what), text, what, least_bytes)
    try:
        number = operator.index(text)
    except TypeError:
        number = None
    if number is None or isinstance(text, bool):
        raise ConfigError(
            f"{what} {text!r} is not a whole number of bytes",
            code="OOC-101",
            fix='give bytes, or text such as "512MiB" or "8GB"',
        )
    return _checked_bytes(number, text, what, least_bytes)


def parse_budget(text: str | int, what: str = "budget", *, least_bytes: int = 1) -> int | Percent:
    """A budget: bytes, "512MiB", "8GB", or a percentage "25%" as `Percent`.

    Raises:
        ConfigError: neither; or a percentage outside 0 to 100.
    """
    if isinstance(text, str) and text.strip().endswith("%"):
        number = text.strip()[:-1].strip()
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", number, re.ASCII) or float(number) > 100:
            raise ConfigError(
                f"{what} {text!r} is not a percentage from 0% to 100%",
                code="OOC-101",
                fix='for example "25%": a quarter of the way from the least to the in-core peak',
            )
        return Percent(float(number) / 100)
    return parse_bytes(text, what=what, least_bytes=least_bytes)


def format_bytes(size_bytes: float) -> str:
    """Binary units with three significant digits: 1610612736 -> "1.50 GiB"."""
    sign, size = ("-" if size_bytes < 0 else ""), abs(size_bytes)
    if size < KIB:
        return f"{sign}{size:.0f} B"
    exponent = min(4, int(math.log(size, KIB) + 1e-9))
    value = size / KIB**exponent
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{sign}{value:.{digits}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[exponent]}"


def rate_of(bytes_per_us: float, what: str) -> float:
    """A rate of copies as it is given, as Python's number.

    Args:
        what: whose rate it is, for the error.

    Raises:
        ConfigError: no number, not finite, or below 1 kB/s: nanoseconds would pass 64 bits.
    """
    number = not isinstance(bytes_per_us, bool) and isinstance(bytes_per_us, Real)
    if not number or not LEAST_BYTES_PER_US <= bytes_per_us < math.inf:
        raise ConfigError(
            f"the {what} of {bytes_per_us!r} bytes/us is not a rate of 1 kB/s or more",
            code="OOC-105", fix="500MB on the command line, 500 in Python; without it copies go as "
            "fast as they can",
        )  # fmt: skip
    return float(bytes_per_us)


def format_rate(bytes_per_us: float) -> str:
    """Bytes per microsecond in words."""
    if bytes_per_us < 0.1:
        return f"{bytes_per_us * 1e3:.2f} kB/s"
    fast = bytes_per_us >= 10
    return f"{bytes_per_us / 1e3:.2f} GB/s" if fast else f"{bytes_per_us:.2f} MB/s"


def per_second(count: int, time_us: float) -> float:
    """The rate of a count that takes a time, in units of 1 / s."""
    return count / time_us * 1e6


def format_us(time_us: float) -> str:
    """Microseconds for reading: 312 -> "312 us", 15300 -> "15.3 ms", 2.5e6 -> "2.50 s"."""
    for limit, divisor, unit in ((1e3, 1, "us"), (1e6, 1e3, "ms")):
        if abs(time_us) < limit:
            value = time_us / divisor
            digits = 0 if divisor == 1 and value >= 10 else 1
            return f"{value:.{digits}f} {unit}"
    return f"{time_us / 1e6:.2f} s"


def format_clock(time_s: float) -> str:
    """Seconds as a clock shows them, rounded up: 101.2 -> "1:42", 7384 -> "2:03:04"."""
    whole = math.ceil(time_s)
    hours, minutes, seconds = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def format_percent(share: float, decimals: int = 0) -> str:
    """A share as a percentage: 0.704 -> "70 %", with one decimal "70.4 %"."""
    return f"{100 * share:.{decimals}f} %"


def _parse_size_text(text: str, what: str) -> float:
    match = _SIZE.fullmatch(text)
    unit = match.group(2).lower() if match else None
    if match is None or unit not in _UNITS:
        raise ConfigError(
            f"{what} {text!r} is not a size",
            code="OOC-101",
            fix='bytes, or a number with a unit: "512MiB" is 2**29, "8GB" is 8e9',
        )
    number = match.group(1)
    exact = int(number) * _UNITS[unit] if "." not in number else float(number) * _UNITS[unit]
    return math.floor(exact)


def _checked_bytes(number: float, text: object, what: str, least_bytes: int) -> int:
    if not least_bytes <= number < MAX_BYTES:
        least = "0 or more" if least_bytes == 0 else "positive"
        raise ConfigError(
            f"{what} {text!r} must be {least} and below 2**62 bytes",
            code="OOC-102",
            numbers=f"{number} bytes",
            fix=_nearest_size(number, what),
        )
    return int(number)


def _nearest_size(number: float, what: str) -> str:
    """What to give in place of a size that is out of range, too small or too large."""
    if what != "budget":
        return 'bytes, or a number with a unit: "512MiB" is 2**29, "8GB" is 8e9'
    if number >= MAX_BYTES:
        return "100% is all that a step can use"
    return "`ooctrain plan MODEL` prints the smallest budget that fits"


@dataclass(frozen=True, slots=True)
class Granule:
    """How an allocator rounds.

    Args:
        size_bytes: every grant is a multiple of it; text such as "64KiB" is read.
        ranges: whether parts of a variable can come and go on their own; if not, whole variables
            only.
        fixed_bytes: always granted besides: the region of small objects, a constant in the ledger.

    Raises:
        ConfigError: not a size.
    """

    size_bytes: int = 1
    ranges: bool = True
    fixed_bytes: int = 0

    def __post_init__(self) -> None:
        size_bytes = parse_bytes(self.size_bytes, what="granule")
        fixed_bytes = parse_bytes(self.fixed_bytes, what="fixed part", least_bytes=0)
        object.__setattr__(self, "size_bytes", size_bytes)
        object.__setattr__(self, "fixed_bytes", fixed_bytes)

    def granted(self, size_bytes: int) -> int:
        """`size_bytes` rounded up to whole granules."""
        return -(-size_bytes // self.size_bytes) * self.size_bytes


BYTES = Granule()
