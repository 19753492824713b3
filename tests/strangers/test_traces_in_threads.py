"""One network that several threads trace at once: each has the trace that it would have alone.

Whoever plans a network for several budgets does so in a pool. A trace names the parameters and
takes their gradients while it lasts, so that threads recorded each other's: of 120 traces five had
calls too many, and two were refused as broken.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ooctrain as oc

nn = oc.nn
SHAPE, THREADS, EACH = (2, 3, 8, 8), 3, 6


@pytest.fixture(autouse=True)
def hurried():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def network():
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    )


def test_each_trace_is_that_of_a_lone_thread():
    model = network()
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def traced(number):
        if number % 3 == 2:
            return oc.trace(model, SHAPE, None, None, training=False)
        return oc.trace(model, SHAPE, "cross_entropy", optimizer)

    alone = [traced(number) for number in range(3)]
    y = model(oc.tensor(np.ones(SHAPE, np.float32)))
    oc.functional.cross_entropy(y, oc.tensor(np.array([0, 1]))).backward()
    gradients = [p.grad for p in model.parameters()]
    with ThreadPoolExecutor(THREADS) as threads:
        numbers = range(THREADS * EACH)
        for number, found in zip(numbers, threads.map(traced, numbers), strict=True):
            assert found == alone[number % 3]
    assert all(a.grad is b for a, b in zip(model.parameters(), gradients, strict=True))
    assert model.training


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_trace_can_trace():
    """The thread that has the turn is not in the child, which must not wait for it."""
    inside, go_on = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x):
            inside.set()
            assert go_on.wait(60)
            return x

    waiting = threading.Thread(target=oc.trace, args=(nn.Sequential(Waiting(), network()), SHAPE))
    waiting.start()
    assert inside.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            oc.trace(network(), SHAPE)
            os._exit(0)
        finally:
            os._exit(1)
    go_on.set()
    waiting.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
