"""Terminal pictures: what they show adds up to what they are made from."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ooctrain.cli.terminal import make_console
from ooctrain.models import build
from ooctrain.report.layer_costs import layer_rows, total_row
from ooctrain.report.text import (
    busy_shares,
    held_shares,
    lanes,
    memory_bar,
    or_dash,
    placement,
    plain_table,
    share,
    spark,
)
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.timeline import Timeline, TimelineEvent
from ooctrain.tracing import trace


def timeline(events: list[tuple[str, float, float]], end: float, ledger=()) -> Timeline:
    made = tuple(TimelineEvent(s, f"e{i}", a, b, i) for i, (s, a, b) in enumerate(events))
    peak = max((size for _, size in ledger), default=0)
    return Timeline(end, peak, 0, 0, 0, 0.0, 0.0, 0.0, made, tuple(ledger))


@given(
    st.lists(st.tuples(st.floats(0, 90), st.floats(0, 10)), max_size=8),
    st.integers(1, 40),
)
def test_the_shares_of_a_lane_add_up_to_its_busy_time(pieces, columns):
    start, events = 0.0, []
    for gap, length in pieces:
        events.append(("D", start + gap, start + gap + length))
        start += gap + length
    line = timeline(events, max(start, 1.0))
    shares = busy_shares(line, "D", columns)
    assert all(0 <= value <= 1 for value in shares)
    total = sum(shares) * line.makespan_us / columns
    rounding_us = 1e-6 * line.makespan_us * columns + 0.001 * len(pieces)  # busy times are in ns
    assert total == pytest.approx(line.busy_us("D"), abs=rounding_us)
    assert not any(busy_shares(line, "C", columns))


def test_memory_is_shown_by_the_largest_of_each_piece():
    line = timeline([], 100.0, [(0.0, 10), (30.0, 40), (35.0, 20), (80.0, 5)])
    assert held_shares(line, 4) == [0.25, 1.0, 0.5, 0.5]


def test_lanes_have_the_width_asked_for_and_all_streams():
    line = timeline([("C", 0, 50), ("H", 50, 100)], 100.0, [(0.0, 8)])
    console = Console(width=60, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(lanes(line, 60))
    rows = captured.get().splitlines()
    assert [row.split()[0] for row in rows[:4]] == ["compute", "swap", "swap", "memory"]
    assert rows[0].rstrip() == "compute   " + "█" * 25
    assert rows[2].rstrip() == "swap in   " + " " * 25 + "█" * 25
    assert "100 us" in rows[4]


def test_a_memory_bar_is_filled_in_proportion():
    assert memory_bar({"blue": 25, "red": 25}, 100, 20).plain == "█" * 10 + "░" * 10
    assert memory_bar({"blue": 300}, 100, 20).plain == "█" * 20
    assert memory_bar({}, 0, 4).plain == "░" * 4


def test_a_spark_line_spans_least_to_largest():
    assert spark([0.0, 1.0, 2.0], 10) == "▁▅█" or spark([0.0, 1.0, 2.0], 10)[::2] == "▁█"
    assert spark([], 5) == ""
    assert len(spark(list(range(100)), 7)) == 7
    assert set(spark([3.0] * 4, 9)) == {"▁"}


def test_what_is_printed_is_no_markup(capsys):
    """Names of files, planners and variables may have brackets and colons."""
    name = "runs[final]/plan[/x].json:apple:"
    table = plain_table("name", "size", left=("name",))
    table.add_row(name, or_dash(1.25, ".1f"))
    table.add_row("none", or_dash(None))
    make_console().print(f"wrote {name}")
    make_console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"wrote {name}"
    assert lines[2].split() == [name, "1.2"]
    assert lines[3].split() == ["none", "-"]


def test_shares_are_percentages():
    assert (share(1, 4), share(0, 0)) == ("25 %", "-")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 9])
def test_rows_of_layers_add_up_to_the_whole_step(fused, depth):
    step = trace(build("resnet18", stem="cifar"), (4, 3, 32, 32))
    step = apply_rewrites(step, ("fuse", "share_storage")) if fused else step
    rows = layer_rows(step, depth)
    total = total_row(rows)
    owners = {out for call in step.calls for out in call.reuse}
    whole = sum(v.nbytes for v in step.variables if v.id not in owners)
    parts = (total.parameter_bytes, total.activation_bytes, total.gradient_bytes, total.state_bytes)
    assert sum(parts) == whole
    assert total.calls == len(step.calls)
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert "(other)" not in names
    assert {"conv1", "fc"} <= set(names)


LENET_ROWS = [
    "input", "conv1", "relu after conv1", "max_pool2d after conv1", "conv2", "relu after conv2",
    "max_pool2d after conv2", "reshape", "fc1", "relu after fc1", "fc2", "relu after fc2", "fc3",
    "target", "cross_entropy",
]  # fmt: skip


def test_a_function_without_parameters_has_a_row_for_each_place_where_it_is_called():
    step = trace(build("lenet"), (2, 3, 32, 32))
    rows = layer_rows(step)
    assert [row.name for row in rows] == LENET_ROWS
    by_name = {row.name: row for row in rows}
    assert (by_name["input"].shape, by_name["target"].shape) == ((2, 3, 32, 32), (2,))
    for layer in ("conv1", "conv2", "fc1", "fc2"):
        row = by_name[f"relu after {layer}"]
        assert row.shape == by_name[layer].shape
        assert row.calls == 2
        assert row.activation_bytes == row.gradient_bytes == 4 * math.prod(row.shape)


def test_parts_of_a_batch_share_the_rows():
    rows = layer_rows(trace(build("lenet"), (4, 3, 32, 32), accumulate=2))
    by_name = {row.name: row for row in rows}
    layers = [name for name in by_name if name in LENET_ROWS]
    assert sorted(layers) == sorted(LENET_ROWS)
    order = [name for name in layers if name != "target"]
    assert order == [name for name in LENET_ROWS if name != "target"]
    assert by_name["relu after fc2"].calls == 4
    assert not [name for name in by_name if "#" in name]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 9])
def test_rows_stand_in_the_order_of_the_calls(fused, depth):
    """What was given stands before the first call that reads it, and the loss at the end."""
    step = trace(build("resnet18", stem="cifar"), (4, 3, 32, 32))
    step = apply_rewrites(step, ("fuse", "share_storage")) if fused else step
    names = [row.name for row in layer_rows(step, depth)]
    assert names[0] == "input"
    assert names[-2:] == ["target", "cross_entropy"]
    heads = [".".join(name.split(" ")[0].split(".")[:1]) for name in names]
    wanted = ["input", "conv1", "bn1", "relu", "layer1", "layer2", "layer3", "layer4", "avgpool"]
    assert list(dict.fromkeys(heads))[:9] == wanted


def test_placement_says_how_far_it_is_from_the_least():
    assert placement("va", 1 << 20, 1 << 20) == ("va reserves 1.00 MiB, the minimum possible")
    assert placement("first-fit", 1280 << 10, 1 << 20) == (
        "first-fit reserves 1.25 MiB, 25.0 % above the minimum possible (1.00 MiB)"
    )
    assert "0.0 % above" in placement("bump", 512, 0)
