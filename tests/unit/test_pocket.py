"""`tutorials/pocket` against the library: the same times and peaks of the same chains, the same
bits of gradients; and its own promises. Read next: `zoo/test_pocket_bugs.py`.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pocket import (
    FOLDER,
    Add,
    Weighted,
    chain_from_the_host,
    held_over_time,
    integers,
    lines_of,
    numbers_of,
    step_of,
    whole_values,
)

import ooctrain as oc
import ooctrain.functional as F

# isort: split
import allocators
import planners
import steplist
import tiles
import train
from tape import BatchNorm, Conv, CrossEntropy, Linear, MaxPool, ReLU, Tape

ORDER = ("tape", "steplist", "planners", "allocators", "tiles", "train")
LINK = 20  # bytes per us, as `oc.toy_machine` has it
PLANNERS = {
    "naive": lambda step, budget: planners.naive(step),
    "belady": planners.belady,
    "chen-sqrt": planners.recompute,
}


def test_a_file_imports_numpy_and_the_files_before_it_and_nothing_else():
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(ORDER)
    for place, name in enumerate(ORDER):
        nodes = ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")))
        imported = set()
        for node in nodes:
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
        assert imported <= {"numpy", *sys.stdlib_module_names, *ORDER[:place]}, name


# The list: what the library says of a list, the pocket says of it too.


def plan_of(trace, budget, planner):
    """The library's plan with whole values on a link of 20 bytes per us, or None."""
    try:
        return oc.plan(
            trace, budget, planner=planner, machine=oc.toy_machine(), granule=whole_values(),
            rewrites=(),
        )  # fmt: skip
    except oc.Infeasible:
        return None


def measured(step, instructions):
    """(peak in bytes, makespan in us)."""
    makespan_ns = steplist.makespan(steplist.simulate(step, instructions, LINK))
    return max(steplist.ledger(step, instructions)), makespan_ns / 1000


@st.composite
def chains(draw):
    """Chains of up to nine stages, from the host or not, and a budget."""
    stages = draw(st.integers(1, 9))
    size, time = st.integers(1, 100), st.integers(1, 30)
    x = draw(st.lists(size, min_size=stages + 1, max_size=stages + 1))
    y = draw(st.lists(size, min_size=stages + 1, max_size=stages + 1))
    times = draw(st.lists(st.tuples(time, time), min_size=stages, max_size=stages))
    budget = draw(st.integers(100, sum(x) + 200))
    if draw(st.booleans()):
        return chain_from_the_host(x, y, times), budget
    forward, backward = zip(*times, strict=True)
    return oc.chain(x, y, forward, backward, [0] * stages, [0] * stages), budget


@settings(max_examples=40)
@given(chains(), st.sampled_from(["belady", "window", "chen-sqrt", "rotor", "lms", "naive"]))
def test_peak_and_makespan_of_a_list_are_those_of_the_library(case, planner):
    trace, budget = case
    plan = plan_of(trace, budget, planner)
    step = step_of(trace)
    if plan is None or len(plan.schedule.start_device) != len(step.on_device):
        return  # x0 rests on the host between steps: the pocket has no such start
    lines = lines_of(plan.schedule, trace)
    steplist.verify(step, lines, plan.peak_bytes)
    assert measured(step, lines) == (plan.peak_bytes, plan.makespan_us)


@settings(max_examples=60)
@given(chains(), st.sampled_from(sorted(PLANNERS)))
def test_planners_write_the_lists_of_the_library(case, planner):
    """naive and recompute to the byte and the nanosecond. belady chooses the same gaps and so fits
    into the same budgets; its list frees later, up to the budget, and may be a little quicker.
    """
    trace, budget = case
    plan, step = plan_of(trace, budget, planner), step_of(trace)
    if planner == "naive" and not step.on_host:
        return
    try:
        lines = PLANNERS[planner](step, budget)
    except MemoryError:
        assert plan is None
        return
    if planner == "naive" and max(steplist.ledger(step, lines)) > budget:
        assert plan is None
        return
    steplist.verify(step, lines, budget)
    assert held_over_time(step, lines, steplist.simulate(step, lines, LINK)) <= budget
    peak, makespan = measured(step, lines)
    if planner == "belady":
        assert makespan <= 1.25 * plan.makespan_us
    else:
        assert (peak, makespan) == (plan.peak_bytes, plan.makespan_us)


@pytest.mark.parametrize("budget", [400, 500, 600, 800, 1100])
@pytest.mark.parametrize("planner", ["belady", "chen-sqrt"])
def test_on_the_chain_of_one_page_all_numbers_are_the_same(planner, budget):
    trace = oc.equal_stages(8)
    plan, step = plan_of(trace, budget, planner), step_of(trace)
    if plan is None:
        with pytest.raises(MemoryError):
            PLANNERS[planner](step, budget)
    else:
        lines = PLANNERS[planner](step, budget)
        assert measured(step, lines) == (plan.peak_bytes, plan.makespan_us)


def test_no_list_of_belady_and_segments_together_is_wrong():
    step = step_of(oc.equal_stages(8))
    for count in range(1, 9):
        for budget in (400, 500, 700):
            lines = planners.belady(step, budget, planners.segmented(step, count))
            steplist.verify(step, lines, budget)
            assert len(lines) >= len(step.calls)


BROKEN = {
    "an input is missing": lambda lines: [i for i in lines if i != steplist.SwapIn("x3")],
    "nothing is copied out": lambda lines: [i for i in lines if i != steplist.SwapOut("x3")],
    "a call is left out": lambda lines: [i for i in lines if i != steplist.Run("y0")],
    "a value is freed twice": lambda lines: [*lines, steplist.Free("x3")],
    "a value stays": lambda lines: [i for i in lines if i != steplist.Free("y2")],
    "a value is fetched twice": lambda lines: [*lines[:-1], steplist.SwapIn("x3"), lines[-1]],
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_verifier_refuses(name):
    step = step_of(oc.equal_stages(8))
    lines = planners.belady(step, 400)
    assert steplist.SwapIn("x3") in lines
    steplist.verify(step, lines, 400)
    with pytest.raises(AssertionError):
        steplist.verify(step, BROKEN[name](lines), 4000)
    with pytest.raises(AssertionError):
        steplist.verify(step, lines, 399)


# Numbers: the gradients are the library's, bit for bit where sums are exact.


def network(tape: Tape, norm: bool = False) -> Tape:
    """Two convolutions, one of them beside a skip connection, and a linear layer."""
    image = tape.input("images", 2, 3, 8, 6)
    one = tape.call(
        "conv1", Conv(), image, tape.parameter("w1", 4, 3, 3, 3), tape.parameter("b1", 4)
    )
    if norm:
        scale, shift = tape.parameter("scale", 4), tape.parameter("shift", 4)
        one = tape.call("norm", BatchNorm(), one, scale, shift)
    one = tape.call("relu1", ReLU(), one)
    two = tape.call(
        "conv2", Conv(5, 2, 2), one, tape.parameter("w2", 4, 4, 5, 5), tape.parameter("b2", 4)
    )
    both = tape.call("both", Add(), one, two)
    pooled = tape.call("pool", MaxPool(), both)
    weight, bias = tape.parameter("w3", 5, 48), tape.parameter("b3", 5)
    return tape, tape.call("scores", Linear(), pooled, weight, bias)


def test_gradients_on_whole_numbers_have_the_bits_of_the_library():
    tape, scores = network(Tape())
    weights = tape.input("weights", 2, 5)
    tape.backward(tape.call("loss", Weighted(), scores, weights))
    values = integers(tape)
    numbers = numbers_of(tape, values)

    v = {n: oc.tensor(a, requires_grad=n in tape.parameters) for n, a in values.items()}
    one = F.relu(F.conv2d(v["images"], v["w1"], v["b1"], padding=1))
    both = one + F.conv2d(one, v["w2"], v["b2"], padding=2)
    pooled = F.max_pool2d(both, 2)
    scores = F.linear(pooled.flatten(1), v["w3"], v["b3"])
    loss = (scores * v["weights"]).sum()
    loss.backward()
    assert numbers["loss"] == loss.numpy()
    for name in tape.parameters:
        assert np.array_equal(numbers[tape.gradient[name]], v[name].grad.numpy()), name


def test_all_gradients_are_the_slopes_of_the_loss():
    """Along a random direction, in float64: batch norm and the loss too, which are not exact."""
    tape, scores = network(Tape(), norm=True)
    tape.backward(tape.call("loss", CrossEntropy(), scores, tape.input("labels", 2, 5)))
    random = np.random.default_rng(1)
    values = {v: random.normal(size=tape.shapes[v]) for v in (*tape.inputs, *tape.parameters)}
    values["labels"] = np.eye(5)[[1, 3]]
    numbers, step = numbers_of(tape, values), 1e-6
    for name in tape.parameters:
        direction = random.normal(size=tape.shapes[name])
        up, down = (
            numbers_of(tape, values | {name: values[name] + sign * step * direction})["loss"]
            for sign in (1, -1)
        )
        slope = (numbers[tape.gradient[name]] * direction).sum()
        assert (up - down) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-6), name


def chain_of_layers(tape: Tape, height: int, kernel: int, bands: int) -> Tape:
    image, layers = tape.input("images", 2, 1, height, 6), []
    for number, channels in enumerate((1, 4), start=1):
        weight = tape.parameter(f"w{number}", 4, channels, kernel, kernel)
        op = Conv(kernel, kernel // 2, kernel // 2)
        layers.append((f"conv{number}", op, weight, tape.parameter(f"b{number}", 4)))
        layers.append((f"relu{number}", ReLU()))
    layers.append(("pool", MaxPool()))
    result = tiles.in_bands(tape, image, layers, bands)
    weights = tape.input("weights", *tape.shapes[result])
    tape.backward(tape.call("loss", Weighted(), result, weights))
    tape.update(0.5)
    return tape


@pytest.mark.parametrize(("height", "kernel", "most"), [(8, 3, 2), (16, 3, 4), (22, 5, 2)])
def test_bands_have_the_bits_of_the_whole_image_and_need_less(height, kernel, most):
    whole = chain_of_layers(Tape(), height, kernel, 1)
    values = integers(whole)
    expected = numbers_of(whole, values)
    least = max(steplist.ledger(whole.step(), planners.naive(whole.step())))
    for bands in range(2, most + 1):
        tape = chain_of_layers(Tape(), height, kernel, bands)
        numbers = numbers_of(tape, values)
        assert numbers["loss"] == expected["loss"]
        for name in tape.parameters:
            got = numbers[tape.gradient[name]]
            assert np.array_equal(got, expected[whole.gradient[name]]), name
        lines = planners.naive(tape.step())
        steplist.verify(tape.step(), lines, least)
        needs = max(steplist.ledger(tape.step(), lines))
        assert needs < least
        least = needs
    with pytest.raises(AssertionError, match="take fewer bands"):
        chain_of_layers(Tape(), height, kernel, height)


# Memory.


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 99)), max_size=40))
def test_allocators_keep_what_is_written(requests):
    """Blocks never share a byte, whatever comes and goes; pages fail only when too few are free."""
    for memory in (allocators.BestFit(400), allocators.Pages(400, 8)):
        live = {}
        for size, freed in requests:
            try:
                address = memory.allocate(size)
            except MemoryError:
                if isinstance(memory, allocators.Pages):
                    assert -(-size // 8) > len(memory.free_pages)
            else:
                data = np.full(size, len(live) % 256, np.uint8)
                memory.write(address, data)
                live[address] = data
            for address, data in live.items():
                assert np.array_equal(memory.read(address)[: data.size], data)
            if live and freed < 50:
                gone = sorted(live)[freed % len(live)]
                memory.free(gone)
                del live[gone]
        for address in live:
            memory.free(address)
        assert memory.allocate(400) is not None, "all of it is one piece again"


def test_the_whole_trains_in_half_of_its_memory_as_a_script_in_any_folder(tmp_path):
    command = [sys.executable, str(FOLDER / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same bits") == 3
    assert "belady        49.9%" in done.stdout
    assert "+" not in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_its_digits_are_those_of_the_library():
    bundled = FOLDER.parents[1] / "ooctrain" / "data" / "bundled" / "digits.csv.gz"
    assert (FOLDER / "digits.csv.gz").read_bytes() == bundled.read_bytes()


def test_the_page_shows_what_the_script_prints():
    page = (FOLDER.parents[1] / "docs" / "pocket.md").read_text(encoding="utf-8")
    shown = page.split("```\n")[1].splitlines()
    command = [sys.executable, "-c", "import train; train.EPOCHS = 0; train.main()"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER, check=True)
    assert done.stdout.splitlines()[: len(shown)] == shown


def test_both_methods_together_beat_either_on_a_slow_link():
    """What the third thing to try in its README says."""
    step = allocators.in_pages(train.lenet().step(), train.PAGE)
    half, link = max(steplist.ledger(step, planners.keep_all(step))) // 2, 200
    swapped = planners.belady(step, half)
    both = planners.belady(step, half, planners.segmented(step, 7))
    steplist.verify(step, both, half)
    times = [steplist.makespan(steplist.simulate(step, plan, link)) for plan in (both, swapped)]
    assert times[0] < 0.9 * times[1]
    with pytest.raises(MemoryError):
        planners.recompute(step, half)
