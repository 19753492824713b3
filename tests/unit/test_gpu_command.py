"""`make gpu` where there is no GPU: it survives what goes wrong, and says only what was measured.

Most parts run over the strict fake driver in this process; `slow` runs the last ones as a user
would, over the stub driver.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.cpu_kernels import fast_gpu
from doubles.stub_driver import environment, why_no_stub
from support.quick import quick

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import apart, counters, kernels, link, memory, networks
from benchmarks.gpu import bench as bench_of_gpu
from benchmarks.gpu.bench import Asked, Bench, LostError, NotRunError, PartEndedError
from benchmarks.gpu.parts import all_parts
from benchmarks.gpu.records import TARGETS, Check, Report
from benchmarks.gpu.steps import hidden_share
from benchmarks.gpu.workbench import GAP_BYTES, Workbench
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.holes import Holes
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.driver import failure
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx
from ooctrain.layers.relu import ReLU
from ooctrain.sched.timeline import TimelineEvent, make_timeline
from ooctrain.testing.check_op import SCALARS, as_input, check_agreement, spec_of
from ooctrain.testing.fake_gpu import fake_gpu

ROOT = Path(__file__).parents[2]
NO_STUB = why_no_stub() or why_no_ptx()
needs_stub = pytest.mark.skipif(bool(NO_STUB), reason=NO_STUB)
MIB = 1 << 20


@pytest.fixture
def bench(tmp_path):
    log = tmp_path / "log"
    log.touch()
    with fast_gpu():
        yield Bench("a part", log, time.time() + 600, Asked("values"))


def checks_of(bench):
    return {check.name: check for check in apart.read_log(bench.log)[0]}


# What a part does with what goes wrong.


def test_a_check_that_fails_is_a_finding_and_the_next_one_runs(bench):
    def missing():
        raise NotRunError("torch is missing")

    bench.check("wrong", lambda: 1 / 0)
    bench.check("missing", missing)
    bench.check("right", lambda: {"gb_s": 3.5})
    found = checks_of(bench)
    assert [check.status for check in found.values()] == ["failed", "not run", "ok"]
    assert "ZeroDivisionError" in found["wrong"].note
    assert found["missing"].note == "torch is missing"
    assert found["right"].numbers == {"gb_s": 3.5}


def test_without_time_nothing_is_begun(bench):
    late = Bench("a part", bench.log, time.time() - 1)
    late.check("late", lambda: pytest.fail("it was begun"))
    assert checks_of(bench)["late"].status == "not run"


def result_in(folder):
    (file,) = folder.glob("gpu-*.json")
    return json.loads(file.read_text(encoding="utf-8"))


def stray(status=700):
    raise failure("cuStreamSynchronize", status, f"error {status}")


def test_a_lost_gpu_ends_the_process_after_the_check_is_noted(bench, monkeypatch):
    monkeypatch.setattr(cuda_open, "open_cuda_driver", lambda: 1 / 0)
    with pytest.raises(LostError):
        bench.check("stray", stray)
    assert checks_of(bench)["stray"].status == "failed"


class CUDAError(Exception):
    """As cuda.core raises it: its words begin with the error's name."""


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (failure("cuLaunchKernel", 716), 1), (failure("cuMemAlloc_v2", 2), 0),
        (AssertionError("wrong values"), 0), (CUDAError("CUDA_ERROR_ILLEGAL_ADDRESS: while"), 1),
        (CUDAError("CUDA_ERROR_INVALID_VALUE: of"), 0),
    ],
)  # fmt: skip
def test_the_gpu_is_asked_only_after_what_can_have_lost_it(bench, monkeypatch, error, asked):
    def fail():
        raise error

    def wrapped():
        try:
            fail()
        except Exception as first:
            raise RuntimeError("while closing") from first

    asks = []
    monkeypatch.setattr(bench_of_gpu, "_gpu_answers", lambda: not asks.append(1))
    bench.check("one", fail)
    assert len(asks) == asked
    bench.check("two", wrapped)
    assert len(asks) == 2 * asked


def test_three_equal_failures_end_a_part_and_others_do_not(bench):
    for number in range(5):
        bench.check(f"of its own {number}", stray, 20 + number)
    for number in range(2):
        bench.check(f"alike {number}", lambda: 1 / 0)
        bench.check(f"between {number}", dict)
    with pytest.raises(PartEndedError, match="ZeroDivisionError"):
        bench.check("alike 2", lambda: 1 / 0)
    assert [c.status for c in checks_of(bench).values()].count("failed") == 8


def test_a_process_that_is_started_again_remembers_the_failures(bench):
    for number in range(2):
        bench.check(f"first {number}", lambda: 1 / 0)
    again = replace(bench, failed=apart.failures(bench.log))
    with pytest.raises(PartEndedError, match="ZeroDivisionError"):
        again.check("third", lambda: 1 / 0)


@pytest.mark.parametrize("name", ["GPU", "CUDA driver", "CUDA compiler"])
def test_without_a_driver_and_a_compiler_nothing_else_is_begun(tmp_path, monkeypatch, name):
    parts = []

    def run_part(part, *_, **__):
        parts.append(part)
        return [Check(part, name, "failed", note="why"), Check(part, "kernel cache", "ok")]

    monkeypatch.setattr(command, "run_part", run_part)
    assert command.main([str(tmp_path)]) == 1
    assert parts == ["environment"]
    found = result_in(tmp_path)
    assert found["facts"]["ended early"] == f"{name}: why"


def test_a_cache_that_is_full_ends_nothing(tmp_path, monkeypatch):
    parts = []

    def run_part(part, *_, **__):
        parts.append(part)
        return [Check(part, "kernel cache", "failed", note="full")]

    monkeypatch.setattr(command, "run_part", run_part)
    command.main([str(tmp_path)])
    assert parts == list(all_parts())


@needs_stub
@pytest.mark.parametrize("broken", quick([{"cuInit": 999}, {"cuLibraryLoadData": 222}]))
def test_a_broken_driver_or_compiler_ends_the_real_run_with_its_reason(tmp_path, broken):
    """Within fifteen seconds, of processor time here: other programs run beside it."""
    before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", str(tmp_path)], cwd=ROOT, text=True,
        capture_output=True, check=False,
        env=environment(**broken) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = result_in(tmp_path)
    assert {check["part"] for check in found["checks"]} == {"environment"}
    assert found["facts"]["ended early"]
    assert sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before < 15


def test_a_process_that_dies_fails_its_check_and_the_rest_is_run_by_the_next(monkeypatch):
    processes = []

    def process(part, log, until, asked, tell):
        done = frozenset(check.name for check in apart.read_log(log)[0])
        bench = Bench(part, log, until, done=done)
        processes.append(done)
        bench.check("first", dict)
        if len(processes) == 1:
            with log.open("a", encoding="utf-8") as file:
                file.write('{"began": "deadly"}\n{"cut off')
            return "the process ended with status -11"
        bench.check("deadly", dict)
        bench.check("last", dict)
        return ""

    monkeypatch.setattr(apart, "_one_process", process)
    found = apart.run_part("kernels", time.time() + 60, Asked())
    assert [(c.name, c.status) for c in found] == [
        ("first", "ok"), ("deadly", "failed"), ("last", "ok")
    ]  # fmt: skip
    assert "status -11" in found[1].note


def test_a_part_that_cannot_even_begin_is_given_up(monkeypatch):
    calls = []

    def process(*arguments):
        calls.append(arguments)
        return "the process ended with status 1: no module"

    monkeypatch.setattr(apart, "_one_process", process)
    (check,) = apart.run_part("kernels", time.time() + 60, Asked())
    assert (check.status, len(calls)) == ("failed", 1)


# What is said.


def report(tmp_path, numbers, rehearsed=False):
    checks = [Check("kernel_speed", name, "ok", n) for name, n in numbers.items()]
    return Report(tmp_path, rehearsed, {"GPU": "none"}, checks)


def verdicts(found):
    return {target["key"]: target["verdict"] for target in found.to_json()["targets"]}


def test_a_target_is_met_by_the_slowest_that_counts(tmp_path):
    fast, slow = {"fp32_conv_tflops": 45.0}, {"fp32_conv_tflops": 30.0}
    assert verdicts(report(tmp_path, {"a": fast}))["fp32_conv_tflops"] == "met"
    assert verdicts(report(tmp_path, {"a": fast, "b": slow}))["fp32_conv_tflops"] == "missed"
    assert set(verdicts(report(tmp_path, {})).values()) == {"not run"}


def test_a_rehearsal_judges_nothing_and_says_so_in_both_files(tmp_path):
    numbers = {target.key: 1000.0 for target in TARGETS}
    rehearsed = report(tmp_path, {"a": numbers}, rehearsed=True)
    rehearsed.write()
    found = json.loads((tmp_path / "rehearsal.json").read_text(encoding="utf-8"))
    assert found["rehearsal"] is True
    assert {target["verdict"] for target in found["targets"]} == {"not run"}
    assert "No figure below is a result" in (tmp_path / "rehearsal.md").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("gpu*"))


def test_failures_stand_before_the_numbers(tmp_path):
    found = report(tmp_path, {"fine": {"gb_s": 1.0}})
    found.checks.append(Check("link", "copies", "failed", note="a | b\nc"))
    text = found.to_markdown()
    assert text.index("link, copies: a / b c") < text.index("## kernel_speed")


def test_copies_are_hidden_as_far_as_calls_run_beside_them():
    events = [
        TimelineEvent("C", "a", 0, 10, 0),
        TimelineEvent("C", "b", 10, 20, 1),
        TimelineEvent("H", "x", 5, 15, 2),
        TimelineEvent("D", "y", 15, 35, 3),
    ]
    timeline = make_timeline(events, rerun=frozenset(), copied_bytes=(1, 1), peak_bytes=(1, 1))
    assert hidden_share(timeline) == pytest.approx(15 / 30)


# The parts, over the strict fake.


def test_the_workbench_runs_what_the_cpu_runs_and_sees_what_is_written_beside():
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    y, nothing = np.empty_like(x), np.empty(0, np.uint8)
    with fast_gpu(), Workbench(MIB, MIB) as workbench:
        workbench.run(ReLU(), [x], [y], nothing, SCALARS)
        assert (y == np.maximum(x, 0)).all()

        def stray(op, ins, outs, workspace, scalars):
            end = outs[0].address + outs[0].nbytes
            workbench.driver.fill(end + GAP_BYTES // 2, 0, 4, workbench.stream)

        workbench.kernels.launch = stray
        with pytest.raises(AssertionError, match="wrote beside"):
            workbench.run(ReLU(), [x], [y], nothing, SCALARS)


def test_the_emulator_runs_what_compares_addresses_before_it_launches():
    op, arrays = next(case for case in kernels.SAMPLES if case[0].name == "batch_norm_update")
    inputs = [as_input(array) for array in arrays]
    outputs = [np.empty(s.shape, s.dtype) for s in op.infer(*map(spec_of, inputs))]
    with fake_gpu(), Workbench(MIB, MIB) as workbench:
        workbench.run(op, inputs, outputs, np.empty(0, np.uint8), SCALARS)
    check_agreement(op, inputs, outputs, SCALARS, kernels.OTHERS_TOLERANCE)


def test_the_table_of_kernels_has_every_operation_and_every_algorithm():
    cases = list(kernels._all())
    assert {type(op) for op, _ in cases} == {type(op) for op, _ in kernels.SAMPLES}
    algorithms = {op.algorithm for op, _ in cases if hasattr(op, "algorithm")}
    assert algorithms == set(kernels.CUDA_ALGORITHMS)
    assert [type(op) for op, _ in kernels.few()] == list(kernels.FEW)


def test_a_product_that_is_wrong_by_more_than_rounding_is_beyond_its_bound():
    op, arrays = next(case for case in kernels.SAMPLES if case[0].name == "linear")
    expected = kernels._Definition().of(op, arrays)
    rounded = expected[0].astype(np.float32)
    wrong = rounded * np.float32(1 + 1e-5)
    assert kernels._error_over_bound(rounded, *expected, False) <= 1
    assert kernels._error_over_bound(wrong, *expected, False) > 1
    assert kernels._error_over_bound(wrong, *expected, True) <= 1


def test_the_definition_is_worked_out_anew_for_other_inputs_and_not_for_other_algorithms():
    definition, (first, other) = (
        kernels._Definition(),
        [case for case in kernels._all() if case[0].name == "conv2d"][:2],
    )
    found = definition.of(*first)
    assert definition.of(replace(first[0], algorithm="another"), first[1]) is found
    assert definition.of(first[0], [a.copy() for a in first[1]]) is not found
    assert other[0].algorithm != first[0].algorithm


class ForgetfulHoles(Holes):
    """Holes of which the large ones lose a sector."""

    def add(self, offset, size_bytes):
        lost = 512 if size_bytes > 2 * memory.PAGE_BYTES else 0
        super().add(offset, size_bytes - lost)


class Forgetful(BestFit):
    """Forgets a sector of large holes."""

    def __init__(self, arena):
        super().__init__(arena)
        self._holes = ForgetfulHoles()


def test_the_seeded_walk_finds_a_planted_bug_and_passes_what_is_right():
    assert memory._walks(BestFit, "strict")["lists"] == memory.WALKS
    with pytest.raises(AssertionError):
        memory._walks(Forgetful, "strict")


def test_other_bits_are_found(bench, monkeypatch):
    found = {}
    networks.in_core(networks.PLAIN, found)
    assert networks.same_bits(networks.PLAIN, "window", "va", found)["share_of_in_core_peak"] < 1
    found["steps"][1]["loss"] = np.nextafter(found["steps"][1]["loss"], np.float32(9))
    with pytest.raises(Exception, match="left other bits"):
        networks.same_bits(networks.PLAIN, "window", "va", found)


def test_the_link_is_measured_beside_kernels(bench):
    link.run(bench)
    found = checks_of(bench)
    assert {check.status for check in found.values()} == {"ok"}
    assert found["copies beside kernels"].numbers["share_of_link"] > 0


@needs_stub
@pytest.mark.slow
def test_the_command_in_processes_of_its_own(tmp_path):
    assert command.main([str(tmp_path), "--rehearse", "--parts", "sanitizer"]) == 0
    found = json.loads((tmp_path / "rehearsal.json").read_text(encoding="utf-8"))
    assert [(c["part"], c["status"]) for c in found["checks"]] == 2 * [("sanitizer", "not run")]


@needs_stub
@pytest.mark.slow
def test_the_last_runs_are_rehearsed_without_a_gpu(tmp_path):
    """The first is in `cuda/test_rehearsal.py`."""
    parts = ["environment", "kernel_speed", "counters", "steps", "mapping", "calibration"]
    arguments = [sys.executable, "-m", "benchmarks.gpu", str(tmp_path), "--rehearse", "--parts"]
    done = subprocess.run(
        [*arguments, ",".join(parts)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    found = json.loads((tmp_path / "rehearsal.json").read_text(encoding="utf-8"))
    assert {check["part"] for check in found["checks"]} == set(parts)
    not_run = {check["name"] for check in found["checks"] if check["status"] == "not run"}
    assert not_run <= {*counters.NAMES, "as a machine"}
