"""What the GPU benchmarks' clock shows is the GPU's time: over one that takes none, every rate is
far above what any GPU does, whatever a launch costs the host."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest
from doubles.hollow_kernels import HollowStore
from doubles.stub_driver import Stub, why_no_stub

from benchmarks.gpu import kernel_speed
from benchmarks.gpu import workbench as workbench_file
from benchmarks.gpu.workbench import Workbench
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.launches import DriverKernels
from ooctrain.layers.linear import Linear
from ooctrain.layers.relu import ReLU
from ooctrain.step.op import Spec

pytestmark = pytest.mark.skipif(bool(why_no_stub()), reason=why_no_stub())
#: TFLOP/s in fp32 and in TF32, GB/s: what is wanted of a GPU of the class of an H200.
FP32, TF32, MEMORY, TIMES = 45.0, 200.0, 0.8 * 4300, 10
HOST_US = 100.0


class SlowHost(DriverKernels):
    """Launches that cost the host as much as Numba's."""

    def launch(self, *call):
        end = time.perf_counter() + HOST_US / 1e6
        while time.perf_counter() < end:
            pass
        super().launch(*call)


@contextmanager
def open_bench(monkeypatch):
    stub = Stub(total_bytes=8 << 30, fresh=0, late=0, kept=0)
    store = HollowStore()
    monkeypatch.setattr(cuda_open, "open_cuda_driver", stub.open)
    monkeypatch.setattr(cuda_open, "make_kernels", lambda d, stream: SlowHost(d, stream, store))
    monkeypatch.setattr(Workbench, "_fill", lambda *_: None)
    monkeypatch.setattr(workbench_file, "ROUNDS", 2)
    with Workbench(4 << 30, 1 << 20) as made:
        made.stub = stub
        yield made
    assert (stub.number("graphs"), stub.number("execs"), stub.number("sticky")) == (0, 0, 0)


@pytest.fixture
def bench(monkeypatch):
    with open_bench(monkeypatch) as made:
        yield made


def check_rates(bench, cases):
    for op, specs in cases:
        us = bench.time_op(op, specs)
        if hasattr(op, "algorithm"):
            wanted = TF32 if op.algorithm == "tf32" else FP32
            assert op.flops(specs, op.infer(*specs)) / us / 1e6 > TIMES * wanted, (op, us)
        elif not isinstance(op, Linear):
            assert op.bytes_moved(specs, op.infer(*specs)) / us / 1e3 > TIMES * MEMORY, (op, us)


def test_over_a_gpu_that_takes_no_time_every_rate_is_ten_times_its_target(bench):
    check_rates(bench, [(ReLU(), (Spec(kernel_speed.BIG),))])
    check_rates(bench, list(kernel_speed.conv_cases(*kernel_speed.CONVS[3]))[:2])


@pytest.mark.slow
def test_all_rates_are_so(bench):
    for convolution in kernel_speed.CONVS:
        check_rates(bench, kernel_speed.conv_cases(*convolution))
    check_rates(bench, kernel_speed.memory_bound(kernel_speed.BIG))


def test_that_the_gpu_has_waited_for_the_host_is_told(bench):
    """A GPU that takes no time always has; one that has not come to the first event has not."""
    op, specs = ReLU(), (Spec((4, 4, 4, 4)),)
    bench.time_op(op, specs)
    assert bench.waited
    bench.stub.library.stub_set(b"late", 1)
    bench.time_op(op, specs)
    assert not bench.waited
