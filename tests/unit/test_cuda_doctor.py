"""What the doctor says of a GPU: one that is well, one that lacks something, and none."""

from __future__ import annotations

import pytest

from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.link import measure_link
from ooctrain.errors import DeviceUnavailable
from ooctrain.machine import doctor
from ooctrain.testing.fake_driver import FakeDriver

MIB = 1 << 20


@pytest.fixture
def gpu(monkeypatch):
    """The GPU that is found: a fake, whose compiler is there."""
    options = {"maps": True}
    versions = {"numba": "0.68", "numba-cuda": "0.30.4", "nvidia-cuda-nvrtc": "13.3"}
    opened = []

    def open_driver():
        opened.append(FakeDriver(512 * MIB, 2 * MIB, **options))
        return opened[-1]

    monkeypatch.setattr(cuda_open, "open_cuda_driver", open_driver)
    monkeypatch.setattr(cuda_open, "installed_version", versions.get)
    monkeypatch.setattr(cuda_open, "_try_compiler", lambda: None)
    yield options, versions
    for driver in opened:
        assert not any(driver.held().values())


def test_a_gpu_that_is_well_is_described(gpu):
    found = doctor.check_gpu()
    assert (found.level, found.fix) == ("ok", "")
    assert found.text == "for CUDA 13.0; fake, compute capability 9.0, 512 MiB of 512 MiB free"
    assert doctor.check_gpu_mapping().text == "in pieces of 2.00 MiB"
    assert (
        doctor.check_gpu_compiler().text == "numba 0.68, numba-cuda 0.30.4, nvidia-cuda-nvrtc 13.3"
    )
    assert doctor.check_gpu_link().text.startswith("out ")


def test_a_missing_compiler_comes_with_the_command_for_this_driver(gpu, monkeypatch):
    del gpu[1]["numba-cuda"]
    assert doctor.check_gpu_compiler().level == "ok"  # Numba's own serves

    def fail():
        raise ImportError("no cuda.bindings\nand more")

    monkeypatch.setattr(cuda_open, "_try_compiler", fail)
    monkeypatch.setattr(cuda_open, "why_it_failed", lambda *_: ("", ""))
    found = doctor.check_gpu_compiler()
    assert found.level == "fail"
    assert ": no cuda.bindings (" in found.text
    assert found.fix.startswith('pip install "numba-cuda[cu13]>=0.30.4"')


def test_refused_mapping_comes_with_the_allocator_that_works(gpu):
    gpu[0]["maps"] = False
    found = doctor.check_gpu_mapping()
    assert (found.level, found.fix) == ("warn", "use --allocator best-fit")


@pytest.mark.parametrize(
    ("call", "level", "said"),
    [("dlopen", "ok", "none"), ("cuInit", "warn", "held by another: numbers")],
)
def test_no_gpu_is_no_fault_and_an_unusable_one_is(monkeypatch, call, level, said):
    def refuse():
        raise DeviceUnavailable("held by another", call=call, numbers="numbers", fix="wait")

    monkeypatch.setattr(cuda_open, "open_cuda_driver", refuse)
    found = doctor.check_gpu()
    assert found.level == level
    assert said in found.text
    for check in (doctor.check_gpu_mapping, doctor.check_gpu_link, doctor.check_gpu_compiler):
        assert check().level == "ok"
        assert "no GPU" in check().text


def test_the_links_rates_are_bytes_over_the_streams_own_time():
    driver = FakeDriver(64 * MIB, 2 * MIB)
    rates = measure_link(driver, size_bytes=MIB, copies=4)
    # The fake's clock counts pieces: four copies and a record are five, nothing beside them.
    assert rates.out == rates.into == 4 * MIB / 5
    assert 0 < rates.out_beside <= rates.out
    assert 0 < rates.into_beside <= rates.into
    assert not any(driver.held().values())
