"""Steps that a device records: the bits of walked ones, whatever streams do first.

The device is the cpu's with a tape (`support/recording_device.py`), so that what the executor asks
of a GPU is judged without one. `cuda/test_step_graphs.py` has the same steps as CUDA graphs.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import permutations

import numpy as np
import pytest
from support.hand_lists import IN_CORE, NEW, RECOMPUTED, A, C, G, N, S, W, X
from support.quick import quick
from support.recording_device import RecordingDevice
from support.session_bench import Bench

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.devices.interface import Debug
from ooctrain.errors import CaptureRefused, DriverError, TrainingStopped
from ooctrain.execution.captured_steps import MOST_TRIES
from ooctrain.sched.schedule import Free, Run, SwapIn, SwapOut

#: The parameter comes back to where it was.
SWAPS = (
    SwapIn(X, 0, S), Run(0), Free(X, 0, S), SwapOut(A, 0, S), Run(1), Free(A, 0, S),
    SwapIn(A, 0, S), Run(2), Free(A, 0, S), Free(C, 0, S), Run(3), Free(G, 0, S),
)  # fmt: skip
#: It moves: what lay before it is free when it comes back.
MOVES = (
    SwapIn(X, 0, S), Run(0), SwapOut(W, 0, S), Free(W, 0, S), Run(1), Free(X, 0, S), Run(2),
    SwapIn(W, 0, S), Run(3), Free(A, 0, S), Free(C, 0, S), Free(G, 0, S),
)  # fmt: skip


def recording(order=(0, 1, 2), refusals=()):
    """A class of devices that record, in an order, after so many refusals."""

    class Device(RecordingDevice):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.graphs.refusals += refusals

    Device.order = order
    return Device


@pytest.fixture
def bench():
    opened = []

    def open_bench(instructions=SWAPS, allocator="best-fit", *, device=None, **options):
        device = device or recording()
        opened.append(Bench(instructions, allocator, device=device, **options))
        return opened[-1]

    yield open_bench
    for one in opened:
        one.close()
        if isinstance(one.device, RecordingDevice):
            assert all(record.closed for record in one.device.graphs.records)


def steps_of(run, count=4, *, w=1.0):
    """Takes steps, each with an input and a rate of its own, and looks at what they leave.

    Yields:
        The result of each.
    """
    w = np.float32(w)
    for number in range(count):
        x, lr = np.float32(0.5 - number), 2.0**-number
        result = run.step(x, lr)
        gradient = 3 * (x + w)
        w -= np.float32(lr) * gradient
        assert (result.outputs[G] == gradient).all(), number
        assert (run.session.read(W) == w).all(), number
        yield result


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("instructions", [IN_CORE, SWAPS, RECOMPUTED])
def test_a_recorded_step_computes_what_a_walked_one_does(bench, instructions, order):
    """The first is walked; from then on nothing is submitted."""
    run = bench(instructions, device=recording(order))
    first, *others = steps_of(run)
    pieces = sum(isinstance(i, Run | SwapIn | SwapOut) for i in instructions)
    assert run.device.streams.walked == pieces
    (record,) = run.device.graphs.records
    assert record.began == 3
    assert first.captured_us is None
    assert [result.captured_us for result in others] == [2.0, 3.0, 4.0]
    assert all(result.timeline == first.timeline for result in others)
    assert run.session.steps == 4


@pytest.mark.parametrize("link", ["duplex", "shared"])
def test_wanted_values_are_those_of_each_step(bench, link):
    run = bench(wanted=(W, NEW, A, X), link=link)
    w = np.float32(1)
    for x in (0.5, 2.0, -1.0):
        outputs = run.step(x).outputs
        new = w - np.float32(0.25) * 3 * (np.float32(x) + w)
        for variable, value in ((W, w), (NEW, new), (A, np.float32(x) + w), (X, x)):
            assert (outputs[variable] == value).all(), variable
        w = new


def test_an_input_on_the_device_is_written_where_the_record_reads_it(bench):
    run = bench(IN_CORE[1:], start=(((X, 0, S), (W, 0, S)), ()))
    for result in steps_of(run):
        assert result.timeline.bytes_in == 0
    assert run.device.graphs.records[0].began == 3


def test_values_written_between_steps_are_used(bench):
    run = bench()
    list(steps_of(run, 2))
    run.session.write(W, np.full(N, 7, np.float32))
    list(steps_of(run, 2, w=7.0))
    assert run.device.graphs.records[0].began == 3


def test_a_step_that_maps_is_looked_at_a_few_times_and_never_recorded(bench):
    run = bench(allocator="passthrough")
    list(steps_of(run, MOST_TRIES + 2))
    refusal = run.session.captured.refusal
    assert "a step maps memory" in str(refusal)
    assert not run.device.graphs.records
    assert not run.session.captured.watches


def test_a_step_that_moves_a_value_is_refused_by_its_name(bench):
    run = bench(MOVES)
    list(steps_of(run, 1))
    refusal = run.session.captured.refusal
    assert (refusal.code, refusal.where) == ("OOC-154", "w")
    assert refusal.numbers == "1 of 1"
    assert not run.device.graphs.records


def test_what_the_device_refuses_is_walked_and_not_tried_again(bench):
    run = bench(device=recording(refusals=[CaptureRefused("no", numbers="so it is")]))
    list(steps_of(run))
    assert str(run.session.captured.refusal).startswith("[OOC-154] no")
    assert not run.device.graphs.records


def test_what_the_driver_refuses_is_walked_with_its_words(bench):
    run = bench(device=recording(refusals=[DriverError("no such stream", call="cuStream")]))
    list(steps_of(run))
    refusal = run.session.captured.refusal
    assert isinstance(refusal, CaptureRefused)
    assert refusal.numbers == "no such stream"
    assert not run.device.graphs.records


def test_a_device_that_is_lost_while_it_records_ends_the_session(bench):
    error = DriverError("gone", call="cuStream")
    error.lost = True
    run = bench(device=recording(refusals=[error]))
    run.step(1.0)
    with pytest.raises(DriverError, match="gone"):
        run.step(1.0)


@pytest.mark.parametrize(
    "debug",
    [
        Debug(poison=0x7F), Debug(synchronous=True), Debug(check_ledger=True),
        Debug(before=lambda program, position: None),
    ],
    ids=["poison", "synchronous", "ledger", "before"],
)  # fmt: skip
def test_a_step_that_is_looked_into_is_never_recorded(bench, debug):
    run = bench(debug=debug)
    list(steps_of(run, 3))
    assert not run.device.graphs.records
    assert run.session.captured.refusal is None


def test_calls_with_scalars_of_their_own_are_recorded_for_just_these_calls(bench):
    """ "plus" is added by each of the three calls of `Add`; one of them has another one."""
    run = bench()
    x = np.zeros(N, np.float32)
    for number, own in enumerate([{}, {}, {0: 2.0}, {0: 3.0}, {0: 4.0}, {1: 1.0}, {}, {}]):
        lr = 0.0
        given = {call: {"plus": plus, "lr": lr} for call, plus in own.items()}
        result = run.session.run_step({X: x}, {"plus": 10.0, "lr": lr}, given)
        plus = [own.get(call, 10.0) for call in range(3)]
        assert (result.outputs[G] == 3 * (1 + plus[0]) + plus[1] + plus[2]).all(), number
    assert [record.began for record in run.device.graphs.records] == [1, 2, 2]


def network():
    oc.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2),
        nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, momentum=None), nn.ReLU(),
        nn.Flatten(), nn.Linear(4 * 36, 3),
    )  # fmt: skip


def batch(number, spoilt):
    rng = np.random.default_rng(number)
    x, y = rng.standard_normal((4, 2, 6, 6), np.float32), rng.integers(0, 3, 4)
    if spoilt:
        x[1, 0, 3, 3] = np.inf
    return x, y


def trained(batches, records=None, **options):
    """What good steps say, and all that persists afterwards.

    Args:
        batches: (number, whether its loss is no number) of each.
    """
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    said = []
    how = {"planner": "window", "budget": "60%", "allocator": "best-fit", **options}
    with oc.Trainer(model, "cross_entropy", optimizer, threads=1, seed=3, **how) as trainer:
        for number, bad in batches:
            optimizer.param_groups[0]["lr"] = 0.05 / (number + 1)
            if bad:
                with pytest.raises(TrainingStopped):
                    trainer.step(*batch(number, bad))
            else:
                said.append(trainer.step(*batch(number, bad)))
        if records is not None:
            session = trainer._residence.open.session
            records += session.device.graphs.records
            assert session.captured.refusal is None
        state = {name: sha256(value).hexdigest() for name, value in trainer.state_arrays().items()}
    return said, state


@pytest.mark.parametrize(
    ("order", "accumulate"), quick([((0, 1, 2), 1), ((2, 1, 0), 2)], 1, names=2)
)
def test_a_bad_loss_in_a_recorded_step_leaves_no_trace(monkeypatch, order, accumulate):
    """Running statistics change before the loss is known, parameters behind it."""
    batches = list(enumerate([False, False, True, False, True, True, False]))
    without = trained([case for case in batches if not case[1]], accumulate=accumulate)
    monkeypatch.setattr("ooctrain.devices.cpu.device.CpuDevice", recording(order))
    records = []
    assert trained(batches, records, accumulate=accumulate) == without
    (record,) = records
    assert record.began == len(batches) - 1
    assert len(record.parts) == 2
