"""The laws of static placement (S1 to S6), for first fit in list order and by size.

S1 blocks that live at the same time are apart; S2 least <= extent <= sum; S3 the same forecast, the
same offsets; S4 each block lies at the bottom of its pool or upon one that lives when it does; S5
what was not foreseen is refused and changes nothing; S6 a step that was planned runs, round after
round, where updates are in place and where they are not.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.strategies import machines, traces

import ooctrain as oc
from ooctrain.alloc import exact_packing
from ooctrain.alloc.base import innermost
from ooctrain.alloc.dry_run import DryAllocator, DryMemory
from ooctrain.alloc.first_fit import FirstFit, FirstFitBySize
from ooctrain.alloc.log import Recorder, foresee
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.static import Forecast, Lifetime, Plannable, most_alive, pack
from ooctrain.cli import main
from ooctrain.errors import (
    ConfigError,
    DoesNotFit,
    Infeasible,
    InvalidFree,
    OutOfDeviceMemory,
    PlanMismatch,
)
from ooctrain.execution.fit import prepare
from ooctrain.execution.placement import Placement, forecast, play_step, reserved_peak
from ooctrain.execution.program import make_program
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import resolve_budget
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.units import Granule

SECTOR = Granule(512, ranges=False)
WAYS = [("list", 1), ("list", 2), ("size", 1), ("size", 2), ("exact", 1), ("exact", 2)]
KINDS = [FirstFit, FirstFitBySize]


@st.composite
def forecasts(draw):
    """Random lives; some blocks of the first round are carried over to ones that end it."""
    count = draw(st.integers(1, 14))
    lives = []
    for number in range(count):
        begin = draw(st.integers(0, 30))
        end = draw(st.integers(begin + 1, 31))
        size = draw(st.sampled_from([1, 512, 513, 2000, 4096, 10_000]))
        lives.append(Lifetime(size, f"v{number}", begin, end, draw(st.booleans())))
    return Forecast(tuple(lives))


def overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.begin < b.end and b.begin < a.end


@pytest.fixture
def without_the_compiler(monkeypatch):
    """The exact search on a few blocks takes less than to compile it."""
    for module in (exact_packing, exact_packing, exact_packing):
        for name, function in list(vars(module).items()):
            monkeypatch.setattr(module, name, getattr(function, "py_func", function))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(foreseen=forecasts(), way=st.sampled_from(WAYS))
def test_s1_to_s4(foreseen, way, without_the_compiler):
    order, pools = way
    packing = pack(foreseen, SECTOR, order, pools)
    sizes = [SECTOR.granted(life.nbytes) for life in foreseen.lifetimes]
    placed = list(zip(foreseen.lifetimes, packing.offsets, sizes, strict=True))
    for (a, at_a, size_a), (b, at_b, size_b) in combinations(placed, 2):
        apart = at_a + size_a <= at_b or at_b + size_b <= at_a
        assert apart or not overlap(a, b), "S1"
    assert packing.least_bytes <= packing.extent_bytes <= sum(sizes), "S2"
    assert packing.extent_bytes == max(at + size for _, at, size in placed)
    assert packing == pack(foreseen, SECTOR, order, pools), "S3"
    assert len(packing.pools) == pools
    bottoms = {0, packing.pools[0]}
    for a, at_a, _ in placed:
        below = [b for b, at_b, size in placed if at_b + size == at_a and overlap(a, b)]
        assert at_a in bottoms or below, "S4"
    if pools == 2:
        assert all((at < packing.pools[0]) == life.parameter for life, at, _ in placed)


@given(forecasts())
def test_the_least_is_the_most_that_is_alive_at_one_time(foreseen):
    lives = foreseen.lifetimes
    sums = [sum(x.nbytes for x in lives if x.begin <= t < x.end) for t in range(32)]
    assert most_alive([x.nbytes for x in lives], [(x.begin, x.end) for x in lives]) == max(sums)


@given(forecasts())
def test_in_list_order_it_is_first_fit_as_it_would_happen(foreseen):
    """With one pool the packing is what an allocator without a plan does, request by request."""
    events = [(life.begin, 1, n) for n, life in enumerate(foreseen.lifetimes)]
    events += [(life.end, 0, n) for n, life in enumerate(foreseen.lifetimes)]
    online, blocks, base = FirstFit(DryMemory(1 << 20)), {}, None
    log = Recorder(DryAllocator(SECTOR))
    on_paper, order = {}, []
    for _, is_begin, n in sorted(events):
        life = foreseen.lifetimes[n]
        if is_begin:
            blocks[n] = online.allocate(life.nbytes, life.tag)
            on_paper[n] = log.allocate(life.nbytes, life.tag)
            base = online.snapshot()["base"] if base is None else base
            order.append(blocks[n].address - base)
        else:
            online.free(blocks.pop(n))
            log.free(on_paper.pop(n))
    assert list(pack(foresee(log.requests), SECTOR, "list", 1).offsets) == order


def two_rounds() -> Forecast:
    """a is updated to b while both are there; then the same again, to c: a round is two steps."""
    return Forecast(
        (
            Lifetime(1000, "a", 0, 3),
            Lifetime(300, "x", 1, 4),
            Lifetime(1000, "b", 2, 7),
            Lifetime(300, "x", 5, 8),
            Lifetime(1000, "b", 6, 9),
        ),
        carried=((0, 4),),
    )


def test_in_list_order_what_is_carried_over_comes_when_it_is_first_asked_for():
    """Not when a later round asks for what stands in its place."""
    assert pack(two_rounds(), SECTOR, "list", 1).offsets == (0, 1024, 1536, 1024, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_s6_what_is_carried_over_alternates_and_fits_for_ever(kind):
    allocator = kind(DryMemory(1 << 16))
    allocator.load_plan(two_rounds())
    held = allocator.allocate(1000, "a")
    places = [held.address]
    for _ in range(6):
        x = allocator.allocate(300, "x")
        updated = allocator.allocate(1000, "b")
        allocator.free(held)
        allocator.free(x)
        allocator.check()
        held = updated
        places.append(held.address)
    assert places[0] == places[2] == places[4] != places[1] == places[3] == places[5]
    assert allocator.stats().peak_reserved_bytes == allocator.snapshot()["top"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("nbytes", "tag", "words"),
    [(1000, "b", "foreseen was 'a'"), (1001, "a", "foreseen was 'a' with 1000 B"),
     (999, "a", "foreseen was 'a'")],
)  # fmt: skip
def test_s5_what_was_not_foreseen_is_refused(kind, nbytes, tag, words):
    allocator = kind(DryMemory(1 << 16))
    allocator.load_plan(two_rounds())
    before = allocator.snapshot()
    with pytest.raises(PlanMismatch, match=words):
        allocator.allocate(nbytes, tag)
    assert allocator.snapshot() == before
    assert allocator.stats().failures == 1
    allocator.allocate(1000, "a")
    allocator.check()


@pytest.mark.parametrize("kind", KINDS)
def test_s5_a_block_that_is_freed_late_stops_the_next_round(kind):
    allocator = kind(DryMemory(1 << 16))
    allocator.load_plan(Forecast((Lifetime(1000, "a", 0, 1),)))
    late = allocator.allocate(1000, "a")
    before = allocator.snapshot()
    with pytest.raises(PlanMismatch, match="still in its place"):
        allocator.allocate(1000, "a")
    assert allocator.snapshot()["blocks"] == before["blocks"]
    allocator.free(late)
    with pytest.raises(InvalidFree):
        allocator.free(late)
    assert allocator.allocate(1000, "a").address == late.address


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_comes_before_the_first_block_and_fits_the_arena(kind):
    allocator = kind(DryMemory(2048))
    with pytest.raises(OutOfDeviceMemory, match=r"placement of a whole step|the arena is full"):
        allocator.load_plan(two_rounds())
    assert allocator.stats().failures == 1
    allocator.check()
    block = allocator.allocate(100)
    with pytest.raises(PlanMismatch, match="before the first"):
        allocator.load_plan(Forecast((Lifetime(100, "a", 0, 1),)))
    allocator.free(block)
    allocator.load_plan(Forecast(()))
    with pytest.raises(PlanMismatch, match="nothing was foreseen"):
        allocator.allocate(100)


@given(
    traces(max_bytes=3000), machines(), st.sampled_from(["first-fit", "first-fit-by-size"]),
    st.sampled_from(["keep-all", "naive", "window"]),
)  # fmt: skip
def test_s6_planned_steps_run_round_after_round_in_exactly_their_extent(
    trace, machine, name, planner
):
    choice = choose_allocator(name, 1 << 30)
    plan = least_plan(get_planner(planner), trace, machine, choice.granule)
    reserved = reserved_peak(plan.schedule, plan.trace, choice)
    assert plan.peak_bytes <= reserved
    program = make_program(plan.trace, plan.schedule, choice)
    allocator = choice.make(DryMemory(max(512, reserved)))
    placement = Placement(program, allocator)
    for _ in range(4):
        placement.claim_start()
        play_step(placement)
        allocator.check()
    stats = allocator.stats()
    assert stats.peak_reserved_bytes == reserved
    assert stats.peak_granted_bytes == plan.peak_bytes
    assert allocator.snapshot()["least"] >= plan.peak_bytes


def test_a_step_that_updates_in_place_is_foreseen_once():
    """Its parameters lie at its end where they lay at its beginning: no second step is another."""
    model = oc.nn.Sequential(oc.nn.Flatten(), oc.nn.Linear(12, 2))
    trace = oc.trace(model, (2, 3, 2, 2), threads=1)
    plan = oc.plan(trace, "1GiB", "keep-all", "v100-pcie")
    program = make_program(plan.trace, plan.schedule, choose_allocator("first-fit", 1 << 30))
    foreseen = forecast(program, SECTOR)
    tags = [life.tag for life in foreseen.lifetimes]
    assert foreseen.carried
    assert len(set(tags)) == len(tags)


@given(traces(max_bytes=3000), machines(), st.sampled_from(["keep-all", "naive", "window"]))
def test_a_dry_run_counts_what_the_ledger_counts(trace, machine, planner):
    choice = choose_allocator("first-fit", 1 << 30)
    plan = least_plan(get_planner(planner), trace, machine, choice.granule)
    counted = DryAllocator(choice.granule)
    placement = Placement(make_program(plan.trace, plan.schedule, choice), counted)
    placement.claim_start()
    play_step(placement)
    counted.check()
    assert counted.stats().peak_granted_bytes == plan.peak_bytes


def least_plan(planner, trace, machine, granule):
    """The planner's plan at its own minimum, where everything that can move moves."""
    try:
        return planner.plan(Question(trace, 1, machine, granule=granule))
    except Infeasible as refusal:
        return planner.plan(Question(trace, refusal.minimum_bytes, machine, granule=granule))


def test_a_forecast_goes_through_wrappers():
    inner = FirstFit(DryMemory(4096))
    assert innermost(Recorder(Recorder(inner))) is inner
    assert isinstance(inner, Plannable)
    assert not isinstance(innermost(Recorder(DryAllocator(SECTOR))), Plannable)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_plan_there_are_no_pools_and_no_least(kind):
    allocator = kind(DryMemory(4096))
    allocator.allocate(1000)
    seen = allocator.snapshot()
    assert (seen["top"], seen["pools"], seen["least"]) == (1024, [], 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["best-fit", "first-fit", "first-fit-by-size"])
def test_a_placement_that_is_too_large_is_planned_again_with_a_smaller_ledger(name):
    """Paper 000's figure 3: to stay within the budget the scheduler must be given less."""
    oc.manual_seed(0)
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    step = oc.trace(model, (4, 3, 64, 64), threads=1)
    how = Settings(allocator=name, planner="window", budget="70%", machine="v100-pcie")
    prepared = prepare(step, how)
    notes, budget = prepared.plan.notes, prepared.allocator.budget_bytes
    assert prepared.plan.peak_bytes <= prepared.reserved_bytes <= budget
    if "ledger_limit_bytes" in notes:
        assert notes["reserved_at_budget"] > budget >= notes["ledger_limit_bytes"]
    else:
        assert name == "first-fit-by-size"


def test_what_no_ledger_limit_can_place_does_not_fit_and_says_how_much_is_fragmentation():
    model = oc.models.build("lenet", num_classes=10)
    step = oc.trace(model, (8, 3, 32, 32), threads=1)
    how = Settings(allocator="bump", planner="window", budget="60%", machine="v100-pcie")
    with pytest.raises(DoesNotFit, match=r"on allocator 'bump'") as caught:
        prepare(step, how)
    assert "are fragmentation" in str(caught.value)
    assert caught.value.reserved_bytes > caught.value.budget_bytes


def test_the_larger_first_packs_a_training_step_tighter_than_list_order():
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    step = apply_rewrites(oc.trace(model, (4, 3, 64, 64), threads=1), ("fuse", "share_storage"))
    choices = [choose_allocator(kind.name, 1 << 30) for kind in KINDS]
    planner, machine = get_planner("window"), oc.machine("v100-pcie")
    budget = resolve_budget(step, "40%", choices[0].granule)
    plan = planner.plan(Question(step, budget, machine, granule=choices[0].granule))
    in_order, by_size = (reserved_peak(plan.schedule, step, choice) for choice in choices)
    assert plan.peak_bytes <= by_size < in_order


@pytest.mark.parametrize("name", ["va", "best-fit", "first-fit"])
def test_a_budget_larger_than_the_machine_is_refused(name):
    model = oc.nn.Sequential(oc.nn.Flatten(), oc.nn.Linear(12, 2))
    trainer = oc.Trainer(model, budget=1 << 60, allocator=name)
    with pytest.raises(ConfigError, match="more memory than this machine has free"):
        trainer.step(np.zeros((2, 3, 2, 2), np.float32), np.zeros(2, np.int64))


@pytest.mark.parametrize(("name", "told"), [("first-fit", True), ("va", False)])
def test_plan_prints_the_gap_to_the_least(name, told, capsys):
    words = ["plan", "lenet", "--batch", "64", "--planner", "window", "--budget", "40%"]
    assert main([*words, "--machine", "v100-pcie", "--allocator", name]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (f"{name} reserves" in printed) == told
    assert ("the minimum possible" in printed) == told
