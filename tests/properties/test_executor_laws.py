"""Laws of the executor: whatever the list, the allocator, the link, the delays - the same bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_lists import random_schedule

from ooctrain.alloc.registry import choose_allocator
from ooctrain.devices.interface import Debug
from ooctrain.sched.simulate import simulate
from ooctrain.step.machine import Machine
from ooctrain.testing.interpreter import in_core
from ooctrain.testing.random_traces import random_trace, random_values
from ooctrain.testing.run_list import Way, run_list

ARENA = 1 << 26
ALLOCATORS = ("best-fit", "va:chunk=4KiB", "va:chunk=8KiB")
MACHINE = Machine("any", 1, 1, 1)
DEBUGS = st.sampled_from(
    [
        Debug(check_ledger=True),
        Debug(poison=0xFF, check_ledger=True),
        Debug(poison=0x7F),
        Debug(synchronous=True, check_ledger=True),
        Debug(delay_us=300, delay_seed=1),
        Debug(delay_us=300, delay_seed=2, poison=0xFF),
    ]
)


@st.composite
def ways(draw):
    choice = choose_allocator(draw(st.sampled_from(ALLOCATORS)), ARENA, probe=lambda: "")
    link = draw(st.sampled_from(["duplex", "shared"]))
    return Way(choice, link, draw(st.sampled_from([None, None, 40.0])), draw(DEBUGS))


@st.composite
def jobs(draw, max_calls=8):
    """(trace, schedule, way, seed), with variables of up to four pages."""
    seed = draw(st.integers(0, 2**32 - 1))
    calls = draw(st.integers(1, max_calls))
    size = draw(st.sampled_from([600, 5000, 16384]))
    way = draw(ways())
    mischief = draw(st.sampled_from([0.5, 1.0, 3.0]))
    trace = random_trace(random.Random(seed), calls=calls, max_bytes=size)
    schedule = random_schedule(
        trace, random.Random(seed + 1), granule=way.choice.granule, mischief=mischief
    )
    return trace, schedule, way, seed


def three_steps(trace, seed):
    """(start values, inputs of three steps)."""
    rng = random.Random(seed + 2)
    start = random_values(trace, rng)
    inputs = [{v: random_values(trace, rng)[v] for v in _inputs(trace)} for _ in range(3)]
    return start, inputs


def executed(job):
    """What three steps of a job leave to be looked at."""
    trace, schedule, way, seed = job
    return run_list(trace, schedule, way, *three_steps(trace, seed))


def _inputs(trace):
    return [v for v in trace.initial if not trace.variables[v].persistent]


def expected(trace, start, inputs):
    """What three in-core steps leave behind after each."""
    values, found = dict(start), []
    for given_now in inputs:
        values = {**values, **given_now}
        values |= in_core(trace, values).persistent
        found.append({v: values[v] for v in trace.end_variables})
    return found


@given(jobs())
@settings(max_examples=150)
def test_three_executions_are_three_in_core_steps_in_every_way_of_running(job):
    trace, schedule, way, seed = job
    start, inputs = three_steps(trace, seed)
    ran = run_list(trace, schedule, way, start, inputs)
    # Compared first: pytest would explain a difference of long values at length.
    same = list(ran.persistent) == expected(trace, start, inputs)
    assert same


@given(jobs())
@settings(max_examples=60)
def test_ledger_simulator_and_allocator_agree_on_the_peak_to_the_byte(job):
    trace, ran = job[0], executed(job)
    simulated = simulate(ran.results[0].program.schedule, trace, MACHINE)
    assert ran.granted_bytes == simulated.peak_bytes
    for result in ran.results:
        assert result.timeline.peak_bytes == simulated.peak_bytes
        assert result.timeline.host_peak_bytes == simulated.host_peak_bytes
        assert result.timeline.bytes_out == simulated.bytes_out
        assert result.timeline.bytes_in == simulated.bytes_in
        assert result.program.slots.extent_bytes >= simulated.host_peak_bytes


@given(jobs())
@settings(max_examples=40)
def test_the_arena_holds_exactly_the_reserved_peak_and_va_reserves_what_it_grants(job):
    way, ran = job[2], executed(job)
    assert 0 <= ran.used_bytes - ran.reserved_bytes < 4096 or not ran.reserved_bytes
    assert ran.granted_bytes <= ran.reserved_bytes
    if way.choice.granule.ranges:
        assert ran.granted_bytes == ran.reserved_bytes


@given(jobs())
@settings(max_examples=40)
def test_measured_copies_and_calls_keep_their_streams_order_and_their_waits(job):
    way, result = job[2], executed(job).results[-1]
    events = {event.index: event for event in result.timeline.events}
    last = {}
    for row in result.program.issued:
        if not row.stream:
            continue
        lane = "link" if way.link == "shared" and row.stream != "C" else row.stream
        event = events[row.index]
        befores = [events[w] for w in row.waits] + ([last[lane]] if lane in last else [])
        assert all(before.end_us <= event.start_us for before in befores)
        last[lane] = event


@given(jobs(max_calls=6), st.data())
@settings(max_examples=40)
def test_a_wanted_value_is_what_in_core_computes(job, data):
    trace, schedule, way, seed = job
    start, inputs = three_steps(trace, seed)
    wanted = data.draw(st.sets(st.sampled_from(range(len(trace.variables))), max_size=6))
    touched = {v for call in trace.calls for v in call.touched()}
    wanted = sorted(wanted & touched)
    ran = run_list(trace, schedule, way, start, inputs, wanted)
    named = type(trace)(
        trace.variables,
        trace.calls,
        trace.carries,
        {str(v): v for v in range(len(trace.variables)) if trace.producer[v] is not None},
    )
    values = {**start, **inputs[0]}
    computed = {**{str(v): value for v, value in values.items()}, **in_core(named, values).outputs}
    for v in wanted:
        assert ran.results[0].outputs[v].tobytes() == computed[str(v)]


@pytest.mark.parametrize("name", ALLOCATORS)
def test_many_steps_change_nothing(name):
    """Fifty steps: addresses may wander, results and peaks may not."""
    trace = random_trace(random.Random(7), calls=8, max_bytes=9000)
    way = Way(choose_allocator(name, ARENA, probe=lambda: ""))
    schedule = random_schedule(trace, random.Random(8), granule=way.choice.granule)
    start, inputs = three_steps(trace, 9)
    ran = run_list(trace, schedule, way, start, inputs * 17)
    assert list(ran.persistent) == expected(trace, start, inputs * 17)
    assert {result.peak_bytes for result in ran.results} == {ran.granted_bytes}
