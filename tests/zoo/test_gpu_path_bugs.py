"""Laws of the GPU's path bite: launches, cubins, lost contexts, `make gpu`; a bug planted in each.

The stub driver's own bugs are in `stub_bugs.py`.
"""

from __future__ import annotations

import time

import pytest
from doubles import refusing_driver
from doubles.hollow_kernels import HollowStore
from doubles.stub_driver import Stub, why_no_stub
from unit import test_cuda_device as DEVICE
from unit import test_gpu_clock as CLOCK
from unit import test_gpu_command as COMMAND
from unit import test_gpu_made_before as MADE
from unit.cuda import test_launches as LAUNCHES
from zoo.planting import plant, with_bug

from benchmarks.gpu import bench as bench_of_gpu
from benchmarks.gpu import float64, kernel_speed, plans
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.records import Report
from benchmarks.gpu.workbench import Workbench
from ooctrain.devices.cuda import driver, launches
from ooctrain.devices.cuda.driver import failure
from ooctrain.devices.cuda.launches import DriverKernels
from ooctrain.layers.kernels.cuda.conv import conv_gemm
from ooctrain.layers.kernels.cuda.runtime import cubins, packing
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel
from ooctrain.testing import fake_driver

needs_stub = pytest.mark.skipif(bool(why_no_stub()), reason=why_no_stub())


def kernels():
    """What the tests of launches stand on."""
    stub = Stub(total_bytes=64 << 20)
    driver = stub.open()
    return stub, driver, DriverKernels(driver, driver.create_stream(), HollowStore())


def every_call_is_as_worked_out(found):
    for op, arrays in LAUNCHES.alike({"insert", "sgd"}):
        LAUNCHES.check_every_call(*found, op, arrays)


def numbers_are_asked_for_once(found):
    with pytest.MonkeyPatch.context() as patch:
        LAUNCHES.test_a_step_works_each_operation_out_once(found, patch)


@needs_stub
@pytest.mark.parametrize(
    ("owner", "name", "piece", "wrong", "law"),
    [
        (
            DriverKernels, "launch", "not known.serves(scalars)", "False",
            LAUNCHES.test_a_scalar_that_changes_reaches_the_kernel_and_one_that_nobody_reads_costs_nothing,
        ),
        (DriverKernels, "launch", "*map(id, ins), ", "", "inputs_are_looked_at"),
        (
            DriverKernels, "_known_at", "_Known(call,", "_Known(_Call(call.op, (), (), None),",
            LAUNCHES.test_what_is_launched_on_one_address_is_not_launched_on_another,
        ),
        (
            launches, "likeness", "first.setdefault(array.address, number)", "number",
            every_call_is_as_worked_out,
        ),
        (
            DriverKernels, "_renumber", "for lo, hi in now.changing:",
            "for lo, hi in now.changing[1:]:", every_call_is_as_worked_out,
        ),
        (
            DriverKernels, "_renumber", "name: scalars[name] for", "name: known.read[name] for",
            every_call_is_as_worked_out,
        ),
        (
            DriverKernels, "_form_now", "_keep(self._numbers, key, found)", "pass",
            numbers_are_asked_for_once,
        ),
    ],
    ids=["scalars are frozen", "inputs are not looked at", "arrays are not kept",
         "one place is taken for two", "a number is left out", "scalars of the first step",
         "numbers are worked out for each"],
)  # fmt: skip
def test_launches_that_are_kept_too_long_are_found(monkeypatch, owner, name, piece, wrong, law):
    law = inputs_are_looked_at if isinstance(law, str) else law
    law(kernels())
    plant(monkeypatch, owner, name, piece, wrong)
    with pytest.raises(AssertionError):
        law(kernels())


def inputs_are_looked_at(found):
    """The same output, from another input."""
    stub, driver, made = found
    a, b, y = LAUNCHES.arrays_of(made, driver.allocate(1 << 20), 3)
    empty, relu = made.array(0, (0,), "uint8"), LAUNCHES.ReLU()
    for x in (a, b):
        made.launch(relu, [x], [y], empty, LAUNCHES.SCALARS)
    stub.library.cuCtxSynchronize()
    first, second = stub.launches()
    assert first.arguments != second.arguments


@needs_stub
def test_a_clock_that_shows_the_hosts_time_is_found(monkeypatch):
    plant(monkeypatch, Workbench, "_repeated", 'if not hasattr(driver, "begin_capture"):', "if 1:")
    bench = CLOCK.open_bench(monkeypatch)
    with bench as made, pytest.raises(AssertionError):
        CLOCK.check_rates(made, [(LAUNCHES.ReLU(), (CLOCK.Spec(CLOCK.kernel_speed.BIG),))])


def test_arguments_without_gaps_are_found(monkeypatch):
    kernel = Kernel(len, "void(b1, i8)", 32)
    assert len(packing.pack_arguments(kernel, [True, 1])) == 16
    plant(monkeypatch, packing, "layout_of", 'f"@{', 'f"={')
    assert len(packing.pack_arguments(kernel, [True, 1])) != 16


def test_a_key_without_the_closure_is_found(monkeypatch):
    made = [conv_gemm._correlation_kernel(True, n) for n in (conv_gemm.WIDE, conv_gemm.NARROW)]

    def keys():
        return {cubins.key_of(kernel, (9, 0), "a") for kernel in made}

    assert len(keys()) == 2
    plant(
        monkeypatch, cubins, "_of_function",
        "yield from (_stable(cell.cell_contents) for cell in function.__closure__ or ())", "",
    )  # fmt: skip
    assert len(keys()) == 1


def test_an_error_that_lasts_and_is_forgotten_is_found(monkeypatch):
    law = DEVICE.test_an_error_that_lasts_is_the_one_that_comes_out_and_closing_adds_none
    law(716, "cuLaunchKernel")
    forgetful = with_bug(driver.failure, "status in abi.LOST", "status in {3, 4, 201, 700, 719}")
    for module in (fake_driver, refusing_driver):
        monkeypatch.setattr(module, "failure", forgetful)
    with pytest.raises(AssertionError):
        law(716, "cuLaunchKernel")


def test_an_error_behind_another_that_is_overlooked_is_found(monkeypatch, tmp_path):
    log = tmp_path / "log"

    def law():
        log.write_text("", encoding="ascii")
        bench = Bench("a part", log, time.time() + 600)
        COMMAND.test_the_gpu_is_asked_only_after_what_can_have_lost_it(
            bench, monkeypatch, failure("cuLaunchKernel", 716), 1
        )

    law()
    plant(
        monkeypatch, bench_of_gpu, "_can_lose",
        "own or _can_lose(error.__cause__ or error.__context__)", "own",
    )  # fmt: skip
    with pytest.raises(AssertionError):
        law()


def test_failures_that_are_not_counted_are_found(monkeypatch, tmp_path):
    log = tmp_path / "log"
    log.touch()
    plant(monkeypatch, Bench, "_count_failure", "self.failed[words_of(note)] += 1", "pass")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        COMMAND.test_three_equal_failures_end_a_part_and_others_do_not(
            Bench("a part", log, time.time() + 600)
        )


def again(tmp_path, monkeypatch):
    MADE.test_failed_checks_are_made_again_and_take_the_place_of_the_old_ones(tmp_path, monkeypatch)


def judged(tmp_path, monkeypatch):
    MADE.test_values_are_not_judged_where_nobody_runs_kernels(
        tmp_path, "kernels", ValueError("a bug"), "failed"
    )


@pytest.mark.parametrize(
    ("owner", "name", "piece", "wrong", "law"),
    [
        (
            float64, "project", "2 * (bits @ piece) - piece.sum()", "piece.sum()",
            lambda *_: MADE.test_a_gradient_that_is_wrong_is_seen("swapped"),
        ),
        (
            plans, "planned_in", "max(fits", "min(fits",
            lambda tmp_path, _: MADE.test_the_largest_budget_that_has_room_is_chosen(tmp_path),
        ),
        (Report, "replaced", " or (only and c.name not in only)", "", again),
        (Bench, "_wrong", "unjudged and isinstance(error, WRONG_VALUES)", "unjudged", judged),
        pytest.param(
            kernel_speed, "run", "if _key(*case)", "if not _key(*case)",
            lambda tmp_path, monkeypatch: MADE.test_rows_with_targets_come_first(
                tmp_path, monkeypatch, kernel_speed
            ), marks=pytest.mark.slow,
        ),
    ],
    ids=["signs that are all one", "the smallest budget", "what is not made again is lost",
         "bugs are excused", "targets last"],
)  # fmt: skip
def test_what_goes_wrong_before_and_around_a_run_is_found(
    monkeypatch, tmp_path, owner, name, piece, wrong, law
):
    plant(monkeypatch, owner, name, piece, wrong)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        law(tmp_path, monkeypatch)
