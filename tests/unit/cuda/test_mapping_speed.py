"""How long mapping takes is asked of the driver at hand, and leaves nothing behind."""

from __future__ import annotations

import pytest

from ooctrain.devices.cuda import open as cuda_open
from ooctrain.machine import memory_speed
from ooctrain.machine.memory_speed import TURNS, measure_mapping
from ooctrain.testing.fake_driver import FakeDriver

PIECE = 4096


class Slow(FakeDriver):
    """A driver whose calls take as long as the clock says."""

    now_s = 0.0

    def map(self, address, size_bytes, handle, offset=0):
        self.now_s += 40e-6
        super().map(address, size_bytes, handle, offset)

    def unmap(self, address, size_bytes):
        self.now_s += 30e-6
        super().unmap(address, size_bytes)


@pytest.fixture
def slow(monkeypatch):
    driver = Slow(16 * PIECE, PIECE)
    monkeypatch.setattr(memory_speed.time, "perf_counter", lambda: driver.now_s)
    return driver


def test_a_piece_takes_what_its_calls_take_and_all_is_given_back(slow):
    found = measure_mapping(slow, 8)
    assert found.piece_bytes == PIECE
    assert found.map_us == pytest.approx((40.0,) * TURNS)
    assert found.unmap_us == pytest.approx((30.0,) * TURNS)
    assert found.us_per_byte == pytest.approx(70.0 / PIECE)
    assert not any(slow.held().values())


def test_a_gpu_is_calibrated_by_its_own_driver(slow, monkeypatch):
    """The host's memory, mapped by Linux, says nothing about a GPU."""
    monkeypatch.setattr(cuda_open, "open_cuda_driver", lambda: slow)
    monkeypatch.setattr(memory_speed, "measure_mapping", lambda driver: measure_mapping(driver, 8))
    assert memory_speed.gpu_map_us_per_byte() == pytest.approx(70.0 / PIECE)
