"""Sizes, budgets and times: read strictly, printed readably."""

from __future__ import annotations

import decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooctrain.errors import ConfigError
from ooctrain.units import (
    Granule,
    Percent,
    format_bytes,
    format_percent,
    format_us,
    parse_budget,
    parse_bytes,
    per_second,
)

GOOD = {
    "512MiB": 512 << 20, "8GB": 8 * 10**9, "8 gb": 8 * 10**9, " 1KiB ": 1024, "1.5GiB": 3 << 29,
    "4096": 4096, "7B": 7, 4096: 4096, np.int64(12): 12, "0.5KiB": 512,
    "4611686018427387903": (1 << 62) - 1,
}  # fmt: skip
BAD = [
    0, -1, 1 << 62, 2**64 + 1, 1.5, True, None, decimal.Decimal(3), float("inf"), "", " ", "8G",
    "1e9", "0x10", "1_000", "٣MB", "nanGB", "-1MB", "1.MiB", "0", "0.4", "1 2MiB", "9999999999GiB",
    [4], "50%",
]  # fmt: skip


@pytest.mark.parametrize(("text", "size_bytes"), GOOD.items())
def test_sizes_are_read(text, size_bytes):
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        parse_bytes(text, what="budget")
    assert caught.value.code in ("OOC-101", "OOC-102")
    assert "budget" in caught.value.what


def test_what_mends_a_size_depends_on_what_it_is_of():
    with pytest.raises(ConfigError, match="ooctrain plan MODEL"):
        parse_bytes("0", what="budget")
    with pytest.raises(ConfigError, match="512MiB"):
        parse_bytes("0", what="host budget")


def test_nothing_is_a_size_where_it_is_said_to_be_one():
    assert parse_bytes("0", least_bytes=0) == parse_bytes(0, least_bytes=0) == 0
    assert parse_budget("0 GiB", least_bytes=0) == 0
    with pytest.raises(ConfigError, match="must be 0 or more"):
        parse_bytes(-1, least_bytes=0)


@pytest.mark.parametrize(
    ("text", "share"), [("25%", 0.25), ("0%", 0.0), ("100%", 1.0), (" 12.5 % ", 0.125)]
)
def test_percentages_are_budgets(text, share):
    assert parse_budget(text) == Percent(share)


@pytest.mark.parametrize("text", ["101%", "-1%", "%", "25%%", "nan%", "1e1%"])
def test_impossible_percentages_are_refused(text):
    with pytest.raises(ConfigError):
        parse_budget(text)


@given(st.integers(1, (1 << 62) - 1))
def test_whole_bytes_are_read_exactly(size_bytes):
    assert parse_bytes(str(size_bytes)) == parse_bytes(size_bytes) == size_bytes


@given(st.integers(0, 1 << 50))
def test_printed_sizes_are_right_to_three_digits(size_bytes):
    number, unit = format_bytes(size_bytes).split()
    factor = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit]
    assert abs(float(number) * factor - size_bytes) <= 0.006 * size_bytes + (unit == "B") * 0.5


def test_so_many_in_a_time_are_so_many_a_second():
    assert per_second(3, 1.5e6) == 2
    assert per_second(0, 7.0) == 0


def test_printed_sizes_and_times():
    assert [format_bytes(v) for v in (0, 1023, 1024, 3 << 29, -2048)] == [
        "0 B", "1023 B", "1.00 KiB", "1.50 GiB", "-2.00 KiB",
    ]  # fmt: skip
    assert [format_us(v) for v in (0.4, 312, 15300, 2.5e6)] == [
        "0.4 us",
        "312 us",
        "15.3 ms",
        "2.50 s",
    ]
    shown = (format_percent(0.704), format_percent(0.0351, 1), format_percent(-1.5))
    assert shown == ("70 %", "3.5 %", "-150 %")


@pytest.mark.parametrize("sizes", [(0,), (-1,), (1.5,), ("64", True, -1), (None,)])
def test_what_is_no_granule_is_refused(sizes):
    with pytest.raises(ConfigError):
        Granule(*sizes)


def test_a_granule_in_words():
    assert Granule("64KiB") == Granule(np.int64(65536))
