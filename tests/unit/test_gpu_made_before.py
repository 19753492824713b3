"""What `make gpu` takes along: float64 answers, plans; and what its three runs do with their time.

The answers' laws: the file is that of today's networks, and an estimated error is the true one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from doubles.cpu_kernels import fast_gpu
from doubles.stub_driver import Stub, why_no_stub
from support.quick import quick

import ooctrain as oc
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import apart, counters, kernel_speed, link, networks, plans, steps
from benchmarks.gpu import float64 as answers
from benchmarks.gpu.bench import NOT_JUDGED, Asked, Bench, NotRunError
from benchmarks.gpu.parts import AGAIN, MOST_S, RUNS, all_parts, wanted
from benchmarks.gpu.plans import Planned
from benchmarks.gpu.records import TARGETS, Check, Report, continued
from benchmarks.gpu.workload import Sizes, Workload, settings
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import DriverError
from ooctrain.execution.prepared_step import placed
from ooctrain.step.machine import Machine
from ooctrain.units import MIB

FACTS = {"date": "2026-11-22 10:00 UTC", "commit": "abc", "GPU": "one"}


def bench_in(folder, part="a part", **asked):
    log = folder / "log"
    log.touch()
    return Bench(part, log, time.time() + 600, Asked(**asked))


def checks_of(bench):
    return {check.name: check for check in apart.read_log(bench.log)[0]}


# Answers in float64.


@pytest.mark.parametrize("network", quick(networks.TRUE_TO_FLOAT64, 0, 1))
def test_the_answers_in_the_file_are_those_of_the_networks_of_today(network):
    answer = answers.read_answers()[network.name]
    begin, exact = networks.on_cpu(network, "reference")
    made = answers.answer_of(begin, exact, exact)
    assert answer.inputs == made.inputs, "python -m benchmarks.gpu.float64 makes the file anew"
    assert answer.loss == pytest.approx(made.loss, rel=1e-12)
    whole = np.linalg.norm(list(answer.norms.values()))
    for name, wanted_values in answer.projections.items():
        # The gradient of a bias in front of a norm is 0 but for rounding, another on each CPU.
        size = 1e-9 * answer.norms[name] + 1e-13 * whole
        np.testing.assert_allclose(made.projections[name], wanted_values, rtol=0, atol=size)


@pytest.mark.slow
@pytest.mark.parametrize("network", networks.TRUE_TO_FLOAT64)
def test_the_error_in_the_file_is_that_of_the_cpu_device(network):
    """Which runs on other processors in another order."""
    error = answers.read_answers()[network.name].cpu_error
    exact, ours = (networks.on_cpu(network, device)[1] for device in ("reference", "cpu"))
    assert networks.error_of(ours, exact) == pytest.approx(error, rel=0.5)


def gradients(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = {"grad:w": (40, 30, 3, 3), "grad:v": (90, 100), "grad:b": (40,)}
    return {name: scale * rng.standard_normal(shape) for name, shape in shapes.items()}


def test_an_error_by_projections_is_the_true_one_to_a_third():
    for seed in range(12):
        exact, off = gradients(seed), gradients(seed + 100, 1e-4)
        off["grad:w"][:, : seed % 4] *= 30  # not all of it alike
        found = {name: exact[name] + off[name] for name in exact}
        answer = answers.answer_of({}, {**exact, "loss": 1.0}, found)
        size = sum(float((g**2).sum()) for g in exact.values())
        true = (sum(float((g**2).sum()) for g in off.values()) / size) ** 0.5
        assert answer.error(found) == pytest.approx(true, rel=0.34)
        assert answer.error(exact) < 1e-12


@pytest.mark.parametrize("wrong", ["swapped", "one filter missing", "a sign"])
def test_a_gradient_that_is_wrong_is_seen(wrong):
    exact = gradients(3)
    answer = answers.answer_of({}, {**exact, "loss": 1.0}, exact)
    found = {name: g.copy() for name, g in exact.items()}
    if wrong == "swapped":
        found["grad:w"][[0, 1]] = found["grad:w"][[1, 0]]
    elif wrong == "one filter missing":
        found["grad:w"][7] = 0
    else:
        found["grad:b"] *= -1
    assert answer.error(found) > 0.01


def test_other_weights_are_not_compared(monkeypatch):
    monkeypatch.setattr(networks, "hash_of", lambda values: "another")
    with fast_gpu(), pytest.raises(NotRunError, match="makes these anew"):
        networks._accuracy(networks.PLAIN)


# Plans.

TINY = Sizes(Workload("lenet", 32, 10), 24 * MIB, 8, 48)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of plans for a small network."""
    folder = tmp_path_factory.mktemp("plans")
    with plans.supposed_gpu():
        planned = plans._plan(folder, TINY, 1.0)
    plans._write(folder, [planned])
    return folder


@pytest.mark.slow
def test_plans_made_beforehand_are_those_that_run(made, monkeypatch):
    planned = plans.planned_in(made, 1e18)
    assert planned.sizes == TINY
    assert set(planned.files) == {"auto", "window"}
    trace = TINY.workload.trace(TINY.large)[0]
    how = settings(TINY.budget_bytes, "auto")
    monkeypatch.setattr(steps, "prepare", lambda *_: pytest.fail("it was planned anew"))
    with plans.supposed_gpu():
        prepared = steps._prepared(trace, how, planned.files["auto"])
        again = placed(prepared.plan, how)
    assert prepared.reserved_bytes == again.reserved_bytes <= TINY.budget_bytes
    assert prepared.plan.schedule == oc.load_plan(planned.files["auto"], trace).schedule


@pytest.mark.slow
def test_a_network_runs_by_the_plan_made_beforehand(tmp_path, monkeypatch):
    pairs = [("window", "va"), ("keep-all", "va")]  # the last finds none within less
    monkeypatch.setattr(plans, "pairs", lambda: pairs)
    monkeypatch.setattr(plans, "SUPPOSED", replace(plans.SUPPOSED, granularity_bytes=4096))
    with plans.supposed_gpu():
        plans.plan_networks(tmp_path, networks.PLAIN)
    (file,) = tmp_path.glob("*.json")
    assert file.name == networks.plan_name(networks.PLAIN, *pairs[0])
    found = {}
    with fast_gpu():
        networks.in_core(networks.PLAIN, found)
        monkeypatch.setattr(networks, "first_that_fits", lambda *_: pytest.fail("planned anew"))
        networks.same_bits(networks.PLAIN, *pairs[0], found, str(tmp_path))


@pytest.mark.slow
def test_a_plan_of_another_step_is_made_anew(made):
    trace = TINY.workload.trace(TINY.large - 8)[0]
    with plans.supposed_gpu():
        prepared = steps._prepared(
            trace,
            settings(TINY.budget_bytes, "window"),
            plans.planned_in(made, 1e18).files["window"],
        )
    assert prepared.original == trace


def test_the_largest_budget_that_has_room_is_chosen(tmp_path):
    sizes = [replace(TINY, budget_bytes=budget) for budget in (10, 40, 20)]
    plans._write(tmp_path, [Planned(each) for each in sizes])
    for room, budget in ((74, None), (75, 10), (150, 20), (299, 20), (300, 40)):
        found = plans.planned_in(tmp_path, room)
        assert (found.sizes.budget_bytes if found else None) == budget
    assert plans.planned_in("", 1e18) is None
    assert plans.planned_in(tmp_path / "nowhere", 1e18) is None


def test_host_memory_given_by_hand_is_the_room(tmp_path, monkeypatch):
    plans._write(tmp_path, [Planned(replace(TINY, budget_bytes=b)) for b in (MIB, 8 * MIB)])
    for host, budget in ((8 * MIB, MIB), (64 * MIB, 8 * MIB)):
        asked = bench_in(tmp_path, plans=str(tmp_path), host_bytes=host)
        with plans.supposed_gpu():
            assert steps.find_planned(asked).sizes.budget_bytes == budget


def test_a_small_gpu_is_a_machine():
    assert isinstance(plans.small_gpu(), Machine)


# Order and time.


def rows(bench, module, monkeypatch, numbers):
    """Names of the checks of a part in order, with the targets that they carry."""
    order = []

    def check(self, name, function, *arguments, **_):
        order.append((name, numbers(function, arguments)))

    monkeypatch.setattr(Bench, "check", check)
    with fast_gpu():
        module.run(bench)
    return order


@pytest.mark.parametrize("module", quick([kernel_speed, link], 1))
def test_rows_with_targets_come_first(tmp_path, monkeypatch, module):
    """Behind nothing but the copy that memory-bound kernels are judged by."""

    def numbers(function, arguments):
        if function is kernel_speed._time_conv:
            return bool(kernel_speed._key(*arguments[1:]))
        return function in (kernel_speed._time_memory_bound, link._beside)

    monkeypatch.setattr(kernel_speed, "ARENA_BYTES", MIB)
    monkeypatch.setattr(kernel_speed, "HOST_BYTES", MIB)
    monkeypatch.setattr(link, "KERNEL_BYTES", MIB)
    monkeypatch.setattr(link, "COPY_BYTES", MIB)
    found = rows(bench_in(tmp_path), module, monkeypatch, numbers)
    carrying = [with_target for name, with_target in found if name != "copying on the GPU"]
    assert carrying == sorted(carrying, reverse=True)
    assert any(carrying)
    assert {True, False} == set(carrying)


def test_the_target_of_steps_follows_what_it_is_judged_by(tmp_path, monkeypatch):
    found = [name for name, _ in rows(bench_in(tmp_path, rehearse="values"), steps, monkeypatch,
                                      lambda *_: None)]  # fmt: skip
    first = next(place for place, name in enumerate(found) if name.startswith("auto"))
    assert all(name.startswith("in-core") for name in found[:first])
    assert not any(name.startswith("in-core") and "48" in name for name in found[:first])


def test_each_run_is_over_in_ten_minutes_and_together_they_are_everything():
    for parts in RUNS.values():
        assert sum(parts.values()) + apart.GRACE_S + apart.LISTING_S < MOST_S
        assert next(iter(parts)) == "environment"
    assert set(all_parts()) | {AGAIN} == {part for parts in RUNS.values() for part in parts}
    assert wanted(0, [], 8).keys() == all_parts().keys()
    assert sum(wanted(0, [], 8).values()) == pytest.approx(480)
    assert wanted(3, ["mapping"], 0) == {"mapping": RUNS[3]["mapping"]}
    with pytest.raises(ValueError, match="no part is called 'kernels'"):
        wanted(3, ["kernels"], 0)


# What is kept.


def test_the_next_run_on_the_same_gpu_goes_on_in_the_same_file(tmp_path):
    first = continued(tmp_path, FACTS, 1)
    first.checks = [Check("kernels", "a", "failed"), Check("kernels", "b", "ok")]
    first.write()
    second = continued(tmp_path, {**FACTS, "commit": "def"}, 2)
    assert (second.name, second.checks) == (first.name, first.checks)
    assert [run["commit"] for run in second.facts["runs"]] == ["abc", "def"]
    other = continued(tmp_path, {**FACTS, "GPU": "another"}, 1)
    assert (other.name, other.checks) == (f"{first.name}-2", [])


def test_failed_checks_are_made_again_and_take_the_place_of_the_old_ones(tmp_path, monkeypatch):
    before = continued(tmp_path, FACTS, 1)
    before.checks = [
        Check("kernels", "a", "failed", note="wrong"), Check("kernels", "b", "ok"),
        Check("memory", "c", "failed"),
    ]  # fmt: skip
    before.write()
    asked = []

    def run_part(part, until, how, *, only=(), seen=None):
        asked.append((part, list(only)))
        return [Check(part, name, "ok") for name in only]

    monkeypatch.setattr(command, "run_part", run_part)
    monkeypatch.setattr(command, "facts", lambda commit: FACTS)
    assert command.main([str(tmp_path), "--run", "2"]) == 0
    again = [("kernels", ["a"]), ("memory", ["c"])]
    assert asked[:3] == [("environment", []), *again]
    data = json.loads(next(tmp_path.glob("gpu-*.json")).read_text(encoding="utf-8"))
    found = {(c["part"], c["name"]): c["status"] for c in data["checks"]}
    assert found == {("kernels", "a"): "ok", ("kernels", "b"): "ok", ("memory", "c"): "ok"}


def test_what_was_not_reached_is_told(tmp_path):
    checks = [Check("link", "copies", "not run", note="no time left"), Check("link", "a", "ok")]
    report = Report(tmp_path, False, FACTS, checks, "gpu", ("link", "steps", AGAIN))
    text = report.to_markdown()
    assert "- link, copies: no time left" in text
    assert "- steps: not begun" in text
    assert report.to_json()["not_begun"] == ["steps"]


def test_a_run_that_is_killed_keeps_what_was_done(tmp_path, monkeypatch):
    """What the log holds while a part is at work is in the report already."""
    kept = []

    def process(part, log, until, asked, tell, listing=False):
        bench = Bench(part, log, until, asked)
        bench.check("first", dict)
        tell()
        kept.append(json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["checks"])
        bench.check("second", dict)
        return ""

    monkeypatch.setattr(apart, "_one_process", process)
    report = Report(tmp_path, False, dict(FACTS))
    command._run_all(report, {"kernels": 60.0}, Asked())
    assert [check["name"] for check in kept[0]] == ["first"]
    assert [check.name for check in report.checks] == ["first", "second"]


def test_what_a_part_had_no_time_for_is_named(monkeypatch):
    def process(part, log, until, asked, tell, listing=False):
        names = {check.name for check in apart.read_log(log)[0]}
        bench = Bench(part, log, 0 if listing else until, asked, done=frozenset(names))
        bench.check("first", dict)
        if not listing:
            return apart.TIME_UP
        bench.check("second", dict)
        return ""

    monkeypatch.setattr(apart, "_one_process", process)
    found = apart.run_part("kernels", time.time() + 60, Asked())
    assert [(c.name, c.status) for c in found] == [("first", "ok"), ("second", "not run")]


def test_where_a_check_hung_is_told(tmp_path, monkeypatch):
    code = "import faulthandler, time; faulthandler.dump_traceback_later(0.1, exit=True)"
    hanging = [sys.executable, "-c", f"{code}\ndef waits(): time.sleep(60)\nwaits()"]
    popen = subprocess.Popen
    monkeypatch.setattr(apart.subprocess, "Popen", lambda _, **how: popen(hanging, **how))
    problem = apart._one_process("a part", tmp_path, time.time() + 60, Asked(), lambda: None)
    assert problem.startswith("it took too long, and was ended: Timeout (")
    assert "in waits" in problem


# Where nobody runs the kernels.


@pytest.mark.skipif(bool(why_no_stub()), reason=why_no_stub())
def test_copies_beyond_a_size_move_nothing_and_are_looked_at():
    stub = Stub(total_bytes=64 * MIB, most_moved=4096, fresh=0, late=0)
    driver = stub.open()
    stream, host = driver.create_stream(), driver.host_alloc(3 * 4096)
    address, held = driver.allocate(2 * MIB), bytes_at(host, 3 * 4096)
    held[:4096] = 7
    for place, size in ((4096, 4096), (8192, 4097)):
        driver.copy_in(address + place, host, size, stream)
    driver.copy_out(host + 4096, address + 4096, 4096, stream)
    driver.copy_out(host + 8192, address + 8192, 4096, stream)
    driver.synchronize_stream(stream)
    assert [set(held[place : place + 4096]) for place in (4096, 8192)] == [{7}, {0}]
    with pytest.raises(DriverError):
        driver.copy_in(address + 2 * MIB, host, 3 * 4096, stream)
    driver.close()


@pytest.mark.parametrize(
    ("part", "error", "status"),
    [
        ("kernels", AssertionError("other values"), "not run"),
        ("memory", AssertionError("a law"), "failed"), ("kernels", ValueError("a bug"), "failed"),
    ],
)  # fmt: skip
def test_values_are_not_judged_where_nobody_runs_kernels(tmp_path, part, error, status):
    def fail():
        raise error

    bench = bench_in(tmp_path, part, rehearse="time")
    bench.check("one", fail)
    found = checks_of(bench)["one"]
    assert found.status == status
    assert (NOT_JUDGED in found.note) == (status == "not run")
    real = replace(bench_in(tmp_path, part), failed=bench.failed.__class__())
    real.check("on a GPU", fail)
    assert checks_of(real)["on a GPU"].status == "failed"


def test_a_smaller_gpu_is_not_judged_by_targets_of_a_large_one(tmp_path):
    slow = Check("kernel_speed", "conv", "ok", {TARGETS[0].key: 4.0})
    for capability, verdict in (("7.5", "of another class of GPU"), ("9.0", "missed")):
        gpu = Check("environment", "GPU", "ok", {"capability": capability})
        report = Report(tmp_path, False, FACTS, [gpu, slow])
        assert report.to_json()["targets"][0]["verdict"] == verdict


# The GPU's counters.

CSV = """==PROF== Connected to process 7
"ID","Kernel Name","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","_correlate(float *, int)","9.0","Command line","gpu__time_duration.sum","usecond","1,234.5"
"0","_correlate(float *, int)","9.0","x","smsp__issue_active.avg.pct_of_peak_sustained_active","%","81.2"
"0","_correlate(float *, int)","9.0","x","dram__bytes.sum.per_second","Gbyte/second","912"
"0","_correlate(float *, int)","9.0","x","something_else","","1"
"""  # noqa: E501


def test_counters_are_read_with_their_units():
    assert counters.read_counters(CSV) == {
        "kernel": "_correlate", "duration_usecond": 1234.5, "issue_share_pct": 81.2,
        "bandwidth_Gbyte_per_second": 912.0,
    }  # fmt: skip


def test_counters_of_a_tool_that_is_not_there_or_not_allowed(tmp_path, monkeypatch):
    bench = bench_in(tmp_path, "counters")
    monkeypatch.setattr(counters.shutil, "which", lambda *_, **__: None)
    with pytest.raises(NotRunError, match="ncu is missing"):
        counters._count(bench, "conv fp32")
    tool = tmp_path / "ncu"
    tool.write_text('#!/bin/sh\necho "==ERROR== ERR_NVGPUCTRPERM"\nexit 1\n', encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setattr(counters.shutil, "which", lambda *_, **__: str(tool))
    with pytest.raises(NotRunError, match="administrator"):
        counters._count(bench, "conv fp32")


@pytest.mark.parametrize("name", counters.NAMES)
def test_the_counted_kernels_are_operations(name):
    op, specs = counters.case_of(name)
    assert op.infer(*specs)
    assert (getattr(op, "algorithm", "") == "tf32") == (name == "conv TF32")
