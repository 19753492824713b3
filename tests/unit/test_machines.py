"""Machine presets hold the numbers of their sources; calibrations come back as they were saved."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from ooctrain.errors import ConfigError
from ooctrain.step import presets
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine, call_durations_ns, profile_key
from ooctrain.step.presets import (
    ALIASES,
    PRESETS,
    load_calibration,
    machine,
    save_calibration,
    with_link,
)
from ooctrain.testing.random_traces import FakeOp

GIB = 1 << 30
#: (device bytes, host bytes, bytes per us in each direction, link) as the papers print them
PRINTED = {
    "v100-16gb-nvlink": (16 * GIB, 594 * 10**9, 50e3, "duplex"),
    "v100-32gb-nvlink": (32 * GIB, 512 * 10**9, 75e3, "duplex"),
    "v100-pcie": (int(15.75 * GIB), None, 12.2e3, "shared"),
    "p100-nvlink": (16 * GIB, None, 34.1e3, "duplex"),
    "rtx2080ti": (11 * GIB, 128 * GIB, None, "duplex"),
    "a100-pcie": (40 * GIB, 384 * GIB, None, "duplex"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_presets_hold_the_papers_numbers(name):
    device_bytes, host_bytes, rate, link = PRINTED[name]
    preset = machine(name)
    assert preset == getattr(presets, name.replace("-", "_"))()
    assert (preset.device_bytes, preset.host_bytes, preset.link) == (device_bytes, host_bytes, link)
    assert rate is None or preset.out_bytes_per_us == preset.in_bytes_per_us == rate


def test_every_preset_is_called_by_its_name_and_aliases_exist():
    assert all(machine(name).name == name for name in PRESETS)
    assert machine("v100-nvlink") is machine("v100-32gb-nvlink")
    assert set(ALIASES.values()) <= set(PRESETS)


def test_a_machine_stands_for_itself():
    own = Machine("own", 1.0, 1.0, 1.0)
    assert machine(own) is own


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match="v100-pci") as caught:
        machine("v100-pci")
    assert "v100-pcie" in caught.value.fix


def test_none_is_the_saved_calibration_else_the_generic_preset(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "calibration.json"
    monkeypatch.setenv("OOCTRAIN_CALIBRATION", str(path))
    assert machine(None).name == "cpu-generic"
    measured = Machine("this", 2e5, 3e4, 1e3, interference=1.3, profile={"Relu()(1x2,1x2)": 3.5})
    save_calibration(measured, path)
    assert machine(None) == measured
    assert machine(str(path)) == measured


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 99, "machine": {}}', '{"version": 1}',
             '{"version": 1, "machine": {"name": "x"}}', '{"version": 1, "machine": {"bogus": 1}}'],
)  # fmt: skip
def test_a_broken_calibration_is_named(tmp_path, text):
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="calibration"):
        load_calibration(path)


@pytest.mark.parametrize(
    "field",
    [
        {"issue_us": math.nan}, {"latency_us": -1.0}, {"interference": math.inf},
        {"call_overhead_us": math.nan}, {"profile": {"Relu()(1,1)": -3.0}}, {"profile": [3.0]},
        {"device_bytes": 0}, {"device_bytes": "much"}, {"host_bytes": -1}, {"flops_per_us": "fast"},
        {"link": "wire"}, {"colour": "red"},
    ],
    ids=str,
)  # fmt: skip
def test_a_calibration_of_numbers_that_are_none_is_refused(tmp_path, field):
    path = tmp_path / "c.json"
    rates = {"name": "m", "flops_per_us": 1e5, "memory_bytes_per_us": 1e4, "link_bytes_per_us": 1e3}
    path.write_text(json.dumps({"version": 1, "machine": {**rates, **field}}))
    with pytest.raises(ConfigError, match="not a calibration"):
        machine(str(path))


def test_a_calibration_with_a_rate_of_zero_is_refused(tmp_path):
    path = tmp_path / "calibration.json"
    save_calibration(machine("cpu-generic"), path)
    data = json.loads(path.read_text())
    data["machine"]["flops_per_us"] = 0
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="not positive"):
        load_calibration(path)


@pytest.mark.parametrize("direction", ["link_out_bytes_per_us", "link_in_bytes_per_us"])
def test_a_link_of_rate_zero_is_refused(direction):
    with pytest.raises(ConfigError, match="not positive"):
        Machine("m", 1e5, 1e4, 1e3, **{direction: 0.0})


def test_another_link_replaces_both_directions():
    asymmetric = Machine(
        "a", 1e5, 1e4, 1e3, link_out_bytes_per_us=500.0, link_in_bytes_per_us=700.0
    )
    assert with_link(asymmetric, 250.0).out_bytes_per_us == 250.0
    assert with_link(asymmetric, 250.0).in_bytes_per_us == 250.0


def test_an_imposed_link_costs_each_copy_its_pacing_once():
    paced = with_link(Machine("a", 1e5, 1e4, 800.0, latency_us=3.0, pacing_us=70.0), 200.0)
    assert paced.latency_us == 73.0
    assert with_link(paced, 100.0).latency_us == 73.0


def test_a_slower_link_spreads_what_copied_bytes_cost():
    fast = Machine("a", 1e5, 1e4, 800.0, interference=1.8)
    assert with_link(fast, 200.0).interference == pytest.approx(1.2)
    assert with_link(fast, 1600.0).interference == pytest.approx(1.8)
    assert with_link(Machine("a", 1e5, 1e4, 800.0), 200.0).interference == 1.0


def test_a_call_lasts_as_it_says_or_was_measured_or_is_reckoned():
    builder = TraceBuilder()
    for number in range(4):
        kind = "activation" if number else "input"
        builder.variable(f"v{number}", (3 + number,), "uint8", kind)
    builder.call("own", FakeOp("a"), (0,), (1,), duration_ns=7000)
    builder.call("measured", FakeOp("a"), (1,), (2,))
    builder.call("reckoned", FakeOp("b", 9), (2,), (3,))
    trace = builder.build()
    profile = {profile_key(call, trace): 2.5 + call.id for call in trace.calls[:2]}
    plain = Machine("m", 2.0, 4.0, 1.0, call_overhead_us=1.5)
    own, measured, reckoned = call_durations_ns(trace, replace(plain, profile=profile))
    assert (own, measured) == (7000, 3500)
    assert reckoned == call_durations_ns(trace, plain)[2] == 9 * 6 * 1000 / 2
    moved = replace(plain, flops_per_us=1e6)
    assert call_durations_ns(trace, moved)[1:] == [(4 + 5) * 1000 / 4, (5 + 6) * 1000 / 4]
    assert call_durations_ns(trace, replace(moved, memory_bytes_per_us=8.0))[1:] == [1500, 1500]
