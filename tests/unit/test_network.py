"""The network between ranks, simulated and drawn."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from support.rank_runs import make_trainer

import ooctrain as oc
from ooctrain.errors import ConfigError
from ooctrain.report.holdings import held_at, holdings
from ooctrain.report.stream_names import streams_of
from ooctrain.report.svg import timelines_svg
from ooctrain.report.text import timeline_rows
from ooctrain.sched.ledger import walk
from ooctrain.sched.simulate import (
    durations_ns,
    interfered_times,
    lane_of_network,
    simulate,
    start_times,
)
from ooctrain.sched.timeline import hidden_us
from ooctrain.step.network import Message, Network
from ooctrain.testing.thread_ranks import on_ranks


@pytest.fixture(scope="module")
def plan():
    """Of a step that one of two ranks takes."""

    def prepare(ranks):
        with make_trainer(ranks, budget="60%", planner="lru") as trainer:
            return trainer.prepare((4, 1, 8, 8)).plan

    return on_ranks(2, prepare, bucket=3000)[0]


def times(plan, network_bytes_per_us):
    machine = replace(oc.machine("cpu-generic"), network_bytes_per_us=network_bytes_per_us)
    return simulate(plan.schedule, plan.trace, machine)


def test_a_ring_moves_less_than_everything_to_everybody():
    network = Network(bytes_per_us=10.0, latency_us=3.0)
    assert network.message_ns(Message(0, 4000, 4, True)) == 2 * 3000 + 4000 * 150
    assert network.message_ns(Message(0, 4000, 4, False)) == 3000 + 3 * 400_000


def test_messages_go_one_after_the_other_and_are_waited_for(plan):
    line = times(plan, 5.0)
    sent = [event for event in line.events if event.stream == "N"]
    calls = {event.name: event for event in line.events if event.stream == "C"}
    assert [event.name for event in sent][:3] == ["target.start", "loss.start", "statistics.start"]
    free_from = 0.0
    for event in sent:
        assert event.start_us == max(free_from, calls[event.name].end_us)
        taken = calls[event.name.replace(".start", ".finish")]
        assert taken.end_us >= event.end_us
        free_from = event.end_us


def test_a_slower_network_takes_longer_and_hides_less(plan):
    lines = [times(plan, rate) for rate in (1e6, 100.0, 5.0)]
    steps = [line.makespan_us for line in lines]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
    shares = [hidden_us(line) / line.busy_us("N") for line in lines]
    assert 0 <= shares[-1] < shares[0] <= 1


@pytest.mark.parametrize("bytes_per_us", [5.0, 1000.0])
def test_the_clock_of_interfering_copies_knows_the_network(plan, bytes_per_us):
    machine = replace(oc.machine("cpu-generic"), network_bytes_per_us=bytes_per_us)
    issued = walk(plan.trace, plan.schedule)
    work = durations_ns(plan.schedule, plan.trace, machine)
    lanes = [lane_of_network(plan.schedule, plan.trace, machine) for _ in range(2)]
    expected = start_times(issued, work, False, lanes[0])
    assert interfered_times(issued, work, False, Fraction(1), lanes[1]) == expected
    assert lanes[0].spans == lanes[1].spans


def test_messages_are_a_lane_of_their_own(plan):
    line = times(plan, 5.0)
    assert list(streams_of(line)) == ["C", "D", "H", "N"]
    assert "network" in timelines_svg({"step": line})
    (row,) = (text for name, text in timeline_rows(line) if name == "network")
    assert "messages" in row


def test_a_step_of_one_rank_has_no_such_lane():
    trace = oc.trace(oc.models.build("lenet"), (4, 3, 32, 32))
    line = oc.simulate(oc.plan(trace, "80%", planner="lru"), trace, "cpu-generic")
    assert list(streams_of(line)) == ["C", "D", "H"]
    assert "network" not in dict(timeline_rows(line))


def test_a_network_has_a_rate():
    with pytest.raises(ConfigError, match="not positive"):
        replace(oc.machine("cpu-generic"), network_bytes_per_us=0.0)


def test_ranks_read_their_parts_of_each_batch_and_no_others():
    data = oc.data.digits()
    whole = next(iter(oc.data.DataLoader(data, 12, shuffle=True, seed=3)))

    def part(ranks):
        return next(iter(oc.data.DataLoader(data, 12, shuffle=True, seed=3, share=ranks.part_of)))

    for axis in (0, 1):
        parts = np.concatenate([found[axis] for found in on_ranks(3, part)])
        assert (parts == whole[axis]).all()


@pytest.mark.parametrize("network_bytes_per_us", [5.0, 1e6])
def test_what_is_held_adds_up_beside_messages(plan, network_bytes_per_us):
    """A message stands at the place of the call that sends it, and holds nothing longer."""
    line = times(plan, network_bytes_per_us)
    found = holdings(plan.trace, plan.schedule, line)
    assert [
        sum(one.size_bytes for one in held_at(found, time)) for time, _ in line.ledger[:-1]
    ] == [size for _, size in line.ledger[:-1]]
