"""Calibration: what it measures adds up, covers every call, and is found again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ooctrain.cli import main
from ooctrain.devices.spill import FileCalls
from ooctrain.execution.settings import DEFAULT_REWRITES
from ooctrain.machine.measured import (
    MeasuredRun,
    balance_bytes_per_us,
    copies_of,
    issue_us_of,
    pacing_us_of,
    profile_of_steps,
    rates_of,
    with_disturbance,
)
from ooctrain.machine.memory_speed import copy_bytes_per_us
from ooctrain.models import build
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import resolve_budget
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Plan, Run, SwapIn, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.sched.timeline import Timeline, TimelineEvent
from ooctrain.step.machine import Machine, call_durations_ns, profile_key
from ooctrain.step.presets import load_calibration, machine, on_disk, with_link
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace
from ooctrain.units import MAX_BYTES


def step() -> Trace:
    whole = trace(build("lenet"), (4, 3, 32, 32), threads=1)
    return apply_rewrites(whole, DEFAULT_REWRITES)


def measured(of: Trace, call_us: float, gap_us: float, bytes_out: int = 0) -> Timeline:
    """A step in which every call takes `call_us`, with a gap after each."""
    pitch = call_us + gap_us
    events = tuple(
        TimelineEvent("C", c.name, c.id * pitch, c.id * pitch + call_us, c.id) for c in of.calls
    )
    whole, busy = pitch * len(of.calls), call_us * len(of.calls)
    return Timeline(whole, 0, 0, bytes_out, 0, busy, 0.0, whole - busy, events)


def test_calls_and_issue_add_up_to_the_measured_step():
    of = step()
    plan = get_planner("keep-all").plan(Question(of, MAX_BYTES, Machine("m", 1e3, 1e3, 1e3)))
    lines = [measured(of, call_us, 2.0) for call_us in (10.0, 30.0, 11.0)]
    profile = profile_of_steps(lines, of)
    assert set(profile) == {profile_key(call, of) for call in of.calls}
    assert list(profile.values()) == pytest.approx([11.0] * len(profile))
    # A list has a Run, and about one Free, for each call; what passes between calls is theirs.
    issue_us = issue_us_of(lines, plan)
    assert issue_us * len(plan.schedule) == pytest.approx(2.0 * len(of.calls))
    machine = Machine("m", 1e3, 1e3, 1e12, issue_us=issue_us, profile=profile)
    predicted = simulate(plan.schedule, of, machine).makespan_us
    # Frees after the last Run are no longer on the way of any call.
    assert predicted == pytest.approx(lines[2].makespan_us, rel=0.01)


def test_rates_are_work_done_by_time_taken():
    of = step()
    rates = rates_of(profile_of_steps([measured(of, 10.0, 0.0)], of), of)
    half = rates_of(profile_of_steps([measured(of, 20.0, 0.0)], of), of)
    assert rates.flops_per_us == pytest.approx(2 * half.flops_per_us)
    assert rates.memory_bytes_per_us == pytest.approx(2 * half.memory_bytes_per_us)


def test_copies_are_as_fast_as_memory_can_be():
    assert 100 < copy_bytes_per_us() < 1e6  # 0.1 to 1000 GB/s


@pytest.mark.slow
def test_the_command_saves_a_machine_that_later_commands_use(tmp_path, monkeypatch, capsys):
    path = tmp_path / "calibration.json"
    monkeypatch.setenv("OOCTRAIN_CALIBRATION", str(path))
    common = ["lenet", "--threads", "1"]
    monkeypatch.setattr(FileCalls, "file_system", lambda self, folder: 0xEF53)
    assert main(["calibrate", *common, "--batch", "4", "--spill", str(tmp_path)]) == 0
    first = load_calibration(path)
    assert machine(None) == first
    assert first.disk is not None
    assert first.disk.folder == str(tmp_path)
    assert on_disk(first).out_bytes_per_us == first.disk.out_bytes_per_us
    assert first.interference >= 1
    of = step()
    assert {profile_key(call, of) for call in of.calls} <= set(first.profile)
    total_us = sum(call_durations_ns(of, first)) / 1000
    assert total_us == pytest.approx(sum(first.profile[profile_key(c, of)] for c in of.calls), 0.01)
    # A second calibration adds the calls of its step.
    assert main(["calibrate", *common, "--batch", "8"]) == 0
    assert set(load_calibration(path).profile) > set(first.profile)
    assert load_calibration(path).disk == first.disk
    out = tmp_path / "plan.json"
    assert main(["plan", *common, "--batch", "4", "--budget", "1GiB", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["machine"] == first.name
    assert first.name in capsys.readouterr().out


def swapping(alone: Machine) -> Plan:
    """A plan that swaps while calls run."""
    of = step()
    budget = resolve_budget(of, "25%", BYTES)
    return get_planner("window").plan(Question(of, budget, alone))


def as_measured(line: Timeline, plan: Plan, there: Machine) -> Timeline:
    """What a device would note: a call without its issue."""
    unpaid_us, events = 0.0, {event.index: event for event in line.events}
    for index, instruction in enumerate(plan.schedule):
        unpaid_us += there.issue_us
        unpaid_us += there.copy_issue_us * isinstance(instruction, SwapIn | SwapOut)
        if isinstance(instruction, Run):
            event = events[index]
            events[index] = replace(event, start_us=event.start_us + unpaid_us)
            unpaid_us = 0.0
    return replace(line, events=tuple(events.values()))


@pytest.mark.parametrize("factor", [1.0, 1.3, 1.8])
def test_the_interference_found_is_the_one_that_was_there(factor: float):
    alone = Machine("m", 1e3, 1e3, 500.0, link="duplex", latency_us=20.0)
    plan = swapping(alone)
    line = simulate(plan.schedule, plan.trace, replace(alone, interference=factor))
    found = with_disturbance(alone, MeasuredRun(plan, [line]))
    assert found.interference == pytest.approx(factor, abs=0.01)
    assert (found.copy_issue_us, found.latency_us) == pytest.approx((0.0, 20.0), abs=0.5)


@pytest.mark.parametrize("copy_issue_us", [0.0, 4.0, 20.0])
def test_what_calls_wait_for_of_the_handing_over_is_issue(copy_issue_us: float):
    alone = Machine("m", 1e3, 1e3, 500.0, link="duplex", issue_us=2.0, latency_us=20.0)
    plan = swapping(alone)
    there = replace(alone, copy_issue_us=copy_issue_us, latency_us=20.0 - copy_issue_us)
    line = simulate(plan.schedule, plan.trace, there)
    found = with_disturbance(alone, MeasuredRun(plan, [as_measured(line, plan, there)]))
    assert found.interference == 1.0
    assert found.copy_issue_us == pytest.approx(copy_issue_us, abs=0.1)
    assert found.latency_us == pytest.approx(20.0 - copy_issue_us, abs=0.1)


def test_the_pacing_found_is_the_one_that_was_there():
    alone = Machine("m", 1e3, 1e3, 500.0, link="duplex", interference=1.3, latency_us=2.0)
    plan = swapping(alone)
    still = simulate(plan.schedule, plan.trace, alone)
    balance = balance_bytes_per_us([still], [still])
    for pacing_us in (0.0, 20.0, 300.0):
        there, runs = replace(alone, pacing_us=pacing_us), []
        for link in (balance, 2 * balance):
            line = simulate(plan.schedule, plan.trace, with_link(there, link))
            runs.append(MeasuredRun(plan, [line], link))
        assert pacing_us_of(runs, alone) == pytest.approx(pacing_us, abs=1.0)


def test_where_nothing_is_copied_nothing_is_fitted():
    alone, of = Machine("m", 1e3, 1e3, 500.0, link="duplex"), step()
    plan = get_planner("keep-all").plan(Question(of, MAX_BYTES, alone))
    ran = MeasuredRun(plan, [measured(of, 1e6, 0.0)], 100.0)
    assert with_disturbance(alone, ran) == alone
    assert pacing_us_of([ran], alone) == 0.0


def test_rates_and_latency_of_copies_are_those_of_synchronous_steps():
    there = Machine(
        "m", 1e3, 1e3, 1.0, link="duplex", latency_us=7.0, link_out_bytes_per_us=400.0,
        link_in_bytes_per_us=300.0, issue_us=3.0,
    )  # fmt: skip
    of = step()
    plan = get_planner("naive").plan(Question(of, MAX_BYTES, there))
    # What a device measures: a call without its issue, and a copy without its hand-over.
    line = simulate(plan.schedule, of, there)
    events = tuple(
        replace(e, start_us=e.start_us + (7.0 if e.stream != "C" else 0.0)) for e in line.events
    )
    in_core = [measured(of, sum(call_durations_ns(of, there)) / 1000 / len(of.calls), 0.0)]
    found = copies_of(plan, [replace(line, events=events)], in_core, there.issue_us)
    assert found.out_bytes_per_us == pytest.approx(400.0, rel=0.01)
    assert found.in_bytes_per_us == pytest.approx(300.0, rel=0.01)
    assert found.latency_us == pytest.approx(7.0, rel=0.05)  # Frees at the end delay no call
