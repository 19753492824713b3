"""Numbers in files that users give: whatever they are, loading and every later use is typed.

Huge, negative, fractional, infinite numbers, NaN, switches and texts stand at random places of
plans, machines, allocation logs, records and lists in text. What can be read is verified,
simulated, printed, drawn, written again, executed; each of these works or raises an error of the
library.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties.test_foreign_json import LOG, a_calibration, a_record, places, text_of, with_other

import ooctrain as oc
from ooctrain import nn
from ooctrain.alloc import AllocationLog
from ooctrain.cli import main
from ooctrain.errors import ConfigError, ListSyntaxError, OoctrainError, ScheduleError
from ooctrain.step.presets import load_calibration
from ooctrain.testing.random_traces import random_trace

NUMBERS = [
    10**30, -(10**30), 2**63, 2**63 - 1, -(2**63), 2**64, 2**31, -1, 0, 1, 2, 7, 1.5, 1.0, -0.5,
    1e300, 1e308, float("nan"), float("inf"), -float("inf"), True, False, None, "1", [], {},
]  # fmt: skip


def changed(data: Any, rng: random.Random) -> Any:
    """Plain data with other numbers at one to three places."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.choice([place for place in places(data) if place])
        data = with_other(data, at, rng.choice(NUMBERS))
    return data


def typed(use: Callable[[], object]) -> bool:
    """Whether something works; False where it raises an error of the library."""
    try:
        use()
    except OoctrainError:
        return False
    return True


def some_plans() -> list[tuple[oc.Trace, dict[str, Any]]]:
    chain = oc.chain([100] * 4, [100] * 4, [10] * 3, [20] * 3, [0] * 3, [0] * 3)
    traces = [chain, *(random_trace(random.Random(n), calls=4, max_bytes=99) for n in (3, 5))]
    return [(t, oc.plan(t, "60%", "window", rewrites=()).to_json()) for t in traces]


PLANS = some_plans()


@given(st.integers(0, 10**6))
def test_of_a_plan(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    trace, data = rng.choice(PLANS)
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(json.dumps(changed(data, rng)), encoding="utf-8")
    try:
        plan = oc.load_plan(str(path), trace)
    except OoctrainError:
        return
    schedule = plan.schedule
    legal = typed(lambda: oc.verify(schedule, trace, 10**6))
    assert typed(lambda: oc.simulate(plan, trace)) or not legal
    assert oc.Schedule.parse(schedule.text(trace), trace) == schedule
    assert oc.Schedule.parse(schedule.text()) == schedule
    assert oc.Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
    typed(lambda: oc.verify(plan, trace, "50%", "v100-pcie"))
    assert not schedule.diff(schedule, trace)
    typed(lambda: (repr(plan), str(schedule)))
    typed(lambda: (plan._repr_html_(), plan._repr_svg_()))
    plan.to_json()


DIGITS = ["9" * 30, "9" * 5000, "-1", "0", "1", "3", "99", str(2**63), str(2**63 - 1), str(2**31)]
digits = st.sampled_from(DIGITS)
ranges = st.one_of(
    st.builds("@{}".format, digits), st.builds("@{}[{}:{}]".format, digits, digits, digits),
    st.builds("@{}[{}K:{}G]".format, digits, digits, digits),
)  # fmt: skip
lines = st.one_of(
    st.builds("run @{}".format, digits), st.builds("run @{} keep @{}".format, digits, digits),
    st.builds("end @{}".format, digits), st.builds("out {}".format, ranges),
    st.builds("in {}".format, ranges), st.builds("free {}".format, ranges), st.just("fence"),
)  # fmt: skip
starts = st.one_of(
    st.builds("granule {}".format, digits),
    st.builds("granule {}K region {}".format, digits, digits),
    st.builds("device {}".format, ranges), st.builds("host {}".format, ranges),
)  # fmt: skip


@given(st.lists(starts, max_size=2), st.lists(lines, max_size=3))
def test_of_a_list_in_text(before: list[str], rows: list[str]) -> None:
    trace = PLANS[1][0]
    try:
        schedule = oc.Schedule.parse("\n".join([*before, *rows]), trace)
    except OoctrainError:
        return
    for use in (lambda: oc.verify(schedule, trace, 10**6), lambda: oc.simulate(schedule, trace)):
        typed(use)
    assert oc.Schedule.parse(schedule.text(trace), trace) == schedule
    assert oc.Schedule.from_json(schedule.to_json()) == schedule


def test_a_number_that_no_list_holds_is_named_with_its_place(tmp_path: Path) -> None:
    trace, data = PLANS[0]
    path = tmp_path / "plan.json"
    at = next(i for i, row in enumerate(data["schedule"]["instructions"]) if row[0] == "free")
    for value in (10**30, 2**63, -1, 9999):
        other = with_other(data, ("schedule", "instructions", at, 1), value)
        path.write_text(json.dumps(other), encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            oc.load_plan(str(path), trace)
        assert caught.value.where == f"$.schedule.instructions[{at}][1]"
    with pytest.raises(ListSyntaxError) as refused:
        oc.Schedule.parse("run @" + "9" * 30, trace)
    assert (refused.value.line, refused.value.column) == (1, 5)
    with pytest.raises(ScheduleError) as broken:
        oc.simulate(oc.Schedule.parse("fence; run @99", trace), trace)
    assert (broken.value.rule, broken.value.index) == ("R101", 1)


def test_of_a_machine(tmp_path: Path) -> None:
    trace, data = PLANS[0]
    plan, right = oc.Plan.from_json(data, trace), a_calibration(tmp_path)
    path = tmp_path / "machine.json"
    for seed in range(120):
        path.write_text(json.dumps(changed(right, random.Random(seed))), encoding="utf-8")
        try:
            machine = load_calibration(path)
        except OoctrainError:
            continue
        typed(lambda m=machine: oc.simulate(plan, trace, m))
        typed(lambda m=machine: oc.plan(trace, "60%", "window", m, rewrites=()))
        typed(lambda m=machine: (oc.fluid_bound(trace, 300, m), oc.lower_bound(trace, 300, m)))
        assert repr(machine)


def test_of_logs_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, path = a_record(), tmp_path / "file.json"
    for seed in range(60):
        rng = random.Random(seed)
        path.write_text(text_of("log", changed(LOG, rng), 0), encoding="utf-8")
        if typed(lambda: AllocationLog.load(str(path))):
            assert main(["replay", str(path)]) in (0, 1, 2, 3)
        path.write_text(text_of("record", changed(record, rng), 0), encoding="utf-8")
        assert main(["report", str(path)]) in (0, 1, 2, 3)
    assert "Traceback" not in capsys.readouterr().err


def test_what_is_executed_is_legal(tmp_path: Path) -> None:
    """A plan of a file runs as it is, so its list is proved first."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    trace = oc.trace(model, (2, 1, 8, 8), threads=1)
    made = oc.plan(trace, "60%", "window", rewrites=())
    data, batch = made.to_json(), (np.ones((2, 1, 8, 8), np.float32), np.zeros(2, np.int64))
    expected, done = oc.execute(made, model, batch).loss, 0
    for seed in range(40):
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(changed(data, random.Random(seed))), encoding="utf-8")
        try:
            found = oc.execute(oc.load_plan(str(path), trace), model, batch)
        except OoctrainError:
            continue
        assert found.loss == expected
        done += 1
    assert done
