"""The list as data: words, defaults, and the worked example of `docs/schedule.md`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.worked_example import worked_machine, worked_schedule, worked_trace

from ooctrain.errors import ConfigError
from ooctrain.sched.budget import resolve_budget, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.ledger import walk
from ooctrain.sched.schedule import (
    End,
    Fence,
    Granule,
    Plan,
    Run,
    SwapOut,
    default_start,
    describe_instruction,
)
from ooctrain.sched.simulate import durations_ns, simulate, start_times
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.trace import Trace


def test_granted_bytes_are_whole_granules():
    assert [Granule(8).granted(size) for size in (0, 1, 8, 9)] == [0, 8, 8, 16]


def test_instructions_in_words():
    trace = worked_trace()
    assert describe_instruction(Run(0), trace) == "run f1"
    assert describe_instruction(Run(0, ()), trace) == "run f1 keep nothing"
    assert describe_instruction(Run(0, (2,)), trace) == "run f1 keep a"
    assert describe_instruction(End(0), trace) == "end f1"
    assert describe_instruction(Fence(), trace) == "fence"
    assert describe_instruction(SwapOut(2, 0, 60), trace) == "out a[0:60]"


def test_by_default_what_persists_is_on_the_device_and_inputs_are_on_the_host():
    assert default_start(worked_trace()) == (((1, 0, 20),), ((0, 0, 40),))


def test_the_worked_table_is_what_the_code_says(repository: Path):
    page = (repository / "docs" / "schedule.md").read_text(encoding="utf-8")
    rows = [row for row in page.split("## A worked example")[1].splitlines() if row[:1] == "|"][2:]
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in rows] == _worked_rows()


def test_the_worked_sums_are_what_the_code_says():
    trace, machine = worked_trace(), worked_machine()
    schedule = worked_schedule(trace)
    timeline = simulate(schedule, trace, machine)
    assert (timeline.makespan_us, timeline.stall_us, timeline.compute_us) == (88, 14, 74)
    assert (timeline.peak_bytes, timeline.host_peak_bytes) == (320, 100)
    assert (timeline.bytes_out, timeline.bytes_in) == (60, 140)
    assert (trace_minimum_bytes(trace), trace_peak_bytes(trace)) == (320, 380)
    verify(schedule, trace, 320, machine)


def test_the_worked_prefetch_costs_memory_and_saves_time():
    trace = worked_trace()
    items = list(worked_schedule(trace).instructions)
    items.insert(8, items.pop(11))
    earlier = replace(worked_schedule(trace), instructions=tuple(items))
    timeline = simulate(earlier, trace, worked_machine())
    (prefetch,) = (event for event in timeline.events if event.index == 8)
    assert (prefetch.start_us, timeline.makespan_us, timeline.peak_bytes) == (28, 82, 340)


def test_percentages_lie_between_minimum_and_peak():
    trace = worked_trace()
    assert [resolve_budget(trace, f"{f}%") for f in (0, 25, 50, 100)] == [320, 335, 350, 380]
    assert resolve_budget(trace, "1KiB") == 1024
    assert resolve_budget(trace, "0%", Granule(64)) == 64 + 128 + 128 + 128


def test_shared_storages_count_once():
    trace = _in_place_trace()
    # x (8) + y and z, one storage (16), in the call that reads x and writes y.
    assert trace_peak_bytes(trace) == 24
    assert trace_minimum_bytes(trace) == 24


def test_an_update_that_is_not_in_place_counts_twice_while_it_runs():
    builder = TraceBuilder()
    old = builder.variable("W", (10,), "uint8", "param")
    new = builder.variable("W'", (10,), "uint8", "param")
    builder.call("update", None, (old,), (new,), pure=False, phase="update")
    builder.carries[new] = old
    assert trace_peak_bytes(builder.build()) == trace_minimum_bytes(builder.build()) == 20


@pytest.mark.parametrize("budget", ["101%", "-1%", "lots", 0])
def test_what_is_no_budget_is_refused(budget):
    with pytest.raises(ValueError, match=r"percentage|size|positive"):
        resolve_budget(worked_trace(), budget)


@pytest.mark.parametrize(
    ("keys", "junk"),
    [
        (("notes",), "x"), (("schedule", "granule", "size_bytes"), 1.5),
        (("schedule", "granule", "ranges"), "yes"), (("schedule", "start_host", 0, 1), 0.5),
        (("schedule", "instructions", 0, 1), "first"), (("schedule", "instructions", 0, 1), 0.5),
    ],
)  # fmt: skip
def test_a_plan_file_with_junk_in_it_is_broken(keys, junk):
    trace = worked_trace()
    data = json.loads(json.dumps(Plan(trace, (), worked_schedule(trace), 1.0, 1, 1).to_json()))
    assert Plan.from_json(data, trace).schedule == worked_schedule(trace)
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = junk
    with pytest.raises(ConfigError, match="OOC-104"):
        Plan.from_json(data, trace)


def _in_place_trace() -> Trace:
    builder = TraceBuilder()
    x = builder.variable("x", (8,), "uint8", "input")
    y, z = builder.variable("y", (16,), "uint8"), builder.variable("z", (16,), "uint8")
    builder.call("f", None, (x,), (y,))
    builder.call("relu", None, (y,), (z,), reuse={z: y})
    return builder.build()


def _worked_rows() -> list[list[str]]:
    trace, machine = worked_trace(), worked_machine()
    schedule = worked_schedule(trace)
    issued = walk(trace, schedule)
    start, done = start_times(issued, durations_ns(schedule, trace, machine), shared_link=True)
    rows = []
    for row in issued:
        words = describe_instruction(row.instruction, trace) + " (implied)" * row.implied
        moved = row.claim_bytes - row.release_bytes
        change = f"+{moved}" if row.claim_bytes else f"-{row.release_bytes}"
        if row.stream and not row.claim_bytes:
            change = "0"
        waits = " ".join(map(str, row.waits))
        time = "" if row.implied else f"{start[row.index] / 1000:g} to {done[row.index] / 1000:g}"
        index = "" if row.implied else str(row.index)
        ledgers = [str(row.ledger_bytes), str(row.host_ledger_bytes)]
        rows.append([index, words, row.stream, change, *ledgers, waits, time])
    return rows


def test_a_plan_computed_with_numpy_can_be_written_down(tmp_path):
    trace = worked_trace()
    schedule = worked_schedule(trace)
    plain = Plan(trace, (), schedule, 7.5, 100, 60, notes={"window": 3})
    numbers = tuple(
        SwapOut(np.int64(i.var), np.int32(i.lo), np.int64(i.hi)) if isinstance(i, SwapOut) else i
        for i in schedule
    )
    computed = Plan(
        trace, (), replace(schedule, instructions=numbers), np.float32(7.5), np.int64(100),
        np.int64(60), notes={"window": np.int16(3)},
    )  # fmt: skip
    computed.save(str(tmp_path / "plan.json"))
    assert json.loads((tmp_path / "plan.json").read_text()) == plain.to_json()
    assert Plan.from_json(computed.to_json(), trace) == plain


def test_a_plan_that_cannot_be_written_down_leaves_no_file(tmp_path):
    trace = worked_trace()
    plan = Plan(trace, (), worked_schedule(trace), 7.5, 100, 60, notes={"planner": object()})
    with pytest.raises(ConfigError, match="JSON has no object"):
        plan.save(str(tmp_path / "plan.json"))
    assert not list(tmp_path.iterdir())
