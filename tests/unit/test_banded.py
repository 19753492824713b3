"""The planner `banded`, the choice of bands and tiles, and whom `auto` asks for tilings."""

from __future__ import annotations

from functools import cache

import pytest
from support import known_steps

import ooctrain as oc
from benchmarks.tiling_bounds import any_tiling_us
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.execution.planners import get_planner, planners, tilings
from ooctrain.experiments.paper_003.sft_images import convolutional_step
from ooctrain.report.text import tiling_rows
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.tile import banded, choose, segment_costs
from ooctrain.rewrite.tile.banded import FINE, Banded, _fineness, can_be_banded, offers_for
from ooctrain.rewrite.tile.mixed_bands import mixed_tilings, sparing
from ooctrain.rewrite.tile.offers import MOVES, Offer, OperatorTimes, tiled_as_offered
from ooctrain.rewrite.tile.operators import operators_of
from ooctrain.rewrite.tile.segment_costs import (
    BANDS,
    GRIDS,
    MOST_CALLS,
    Costs,
    SegmentChoice,
    _as_they_are,
    _bands,
    _tiles,
    cuts_of,
)
from ooctrain.rewrite.tile.sft import FtSegment
from ooctrain.rewrite.tile.sft_planner import tile_bytes
from ooctrain.sched.budget import lasting_bytes, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners import registry
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.step.machine import call_durations_ns
from ooctrain.step.presets import cpu_generic, rtx2080ti, v100_pcie
from ooctrain.step.trace import Trace


def model() -> nn.Sequential:
    oc.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


@cache
def step(pixels: int = 32) -> tuple[Trace, Trace]:
    trace = oc.trace(model(), (1, 3, pixels, pixels), threads=2, conv_algorithm="direct")
    return trace, apply_rewrites(trace, ("fuse", "share_storage"))


def test_a_network_is_cut_where_one_small_tensor_leads_across() -> None:
    operators = operators_of(step()[1])
    names = [operators.calls[i].name for i in cuts_of(operators)[:-1]]
    assert {"0.fwd", "5.fwd"} <= {*names}  # the begin, and behind the pooling
    assert "1.fwd" not in names  # an activation stays with what it follows


def test_what_lasts_counts_once() -> None:
    """Parameters and momenta, though each has a variable before the step and one after it."""
    parameter_bytes = sum(parameter.numpy().nbytes for parameter in model().parameters())
    assert lasting_bytes(step()[1]) == 2 * parameter_bytes


def test_offers_go_down_in_memory_and_do_not_know_the_budget() -> None:
    _, trace = step(64)
    offers = offers_for(trace, v100_pcie())
    assert offers[0].rewrites == ()
    needs = [offer.need_bytes for offer in offers[1:]]
    assert len(needs) > 4
    assert needs == sorted(needs, reverse=True)
    for moves in MOVES:
        works = [offer.work for offer in offers[1:] if offer.moves == moves]
        assert works == sorted(works)  # less memory is never less work
        assert all(work >= 1 for work in works)


def question_of(trace: Trace, device_bytes: int, host_bytes: int) -> Question:
    return Question(trace, device_bytes, rtx2080ti(), BYTES, host_bytes, 0, None)


@pytest.mark.slow
def test_some_segments_run_again_where_the_host_cannot_hold_all_and_not_more_than_must() -> None:
    """Paper 003's largest image: 490 GiB of activations, 11 GiB beside a host of 128 GiB."""
    trace = oc.trace(oc.models.build("vgg16", 10, "cifar"), (1, 3, 20480, 20480))
    operators = operators_of(trace)
    times = OperatorTimes.of(operators, rtx2080ti())
    works = []
    for host in (32 << 30, 128 << 30, 1 << 40):
        fastest = mixed_tilings(operators, times, question_of(trace, 11 << 30, host))[0]
        works.append(fastest.work)
        if host == 128 << 30:
            assert {name.split(":")[0] for name in fastest.rewrites} == {"bands", "bands_again"}
    assert works == sorted(works, reverse=True)  # a larger host is never slower
    assert works[1] < 1.3  # all of forward again is 1.33


def test_no_mixed_choice_stores_more_than_both_memories_hold() -> None:
    _, trace = step(64)
    operators, table = operators_of(trace), 0
    times = OperatorTimes.of(operators, rtx2080ti())
    lasting = sum(v.nbytes for v in trace.variables if v.persistent)
    inputs = sum(v.nbytes for v in trace.variables if v.kind == "input")
    for part in (4, 3, 2):
        device = lasting + trace_peak_bytes(trace) // part
        for host in (inputs, inputs + (1 << 17), inputs + (1 << 19)):
            for offer in mixed_tilings(operators, times, question_of(trace, device, host)):
                tiled = apply_rewrites(trace, offer.rewrites)
                assert trace_peak_bytes(tiled) <= 1.5 * (device + host - inputs)
                table += 1
    assert table


def asked_for(monkeypatch: pytest.MonkeyPatch, budget_bytes: int, trace: Trace) -> list[Offer]:
    """The offers that are written out where nothing fits as it is; there is a plan."""
    written: list[Offer] = []

    def noted(step: Trace, offer: Offer) -> Trace | None:
        written.append(offer)
        return tiled_as_offered(step, offer)

    monkeypatch.setattr(banded, "tiled_as_offered", noted)
    Banded().plan(Question(trace, budget_bytes, rtx2080ti()))
    return written


def test_no_tiling_is_written_out_beside_a_list_that_is_long(monkeypatch) -> None:
    """Of a very long one not even those that are made for these budgets, and `prefix` makes few."""
    _, trace = step(64)
    budget = lasting_bytes(trace) + (trace_peak_bytes(trace) - lasting_bytes(trace)) // 3
    usual = asked_for(monkeypatch, budget, trace)
    monkeypatch.setattr(banded, "MORE_CALLS", 1)
    fewer = asked_for(monkeypatch, budget, trace)
    monkeypatch.setattr(banded, "VERY_LONG", 1)
    fewest = asked_for(monkeypatch, budget, trace)
    assert len(usual) > len(fewer) >= len(fewest)
    assert fewest == usual[: len(fewest)]  # up to the first that has a plan
    assert _fineness(2) < _fineness(1) == FINE


def test_the_last_layer_of_a_segment_runs_once_where_its_result_is_stored() -> None:
    _, trace = step(64)
    operators = operators_of(trace)
    times = OperatorTimes.of(operators, v100_pcie())
    offer = Offer(("bands_again:4:0.fwd:4.fwd",), 1.5)
    found = sparing(operators, times, offer)
    assert found is not None
    assert found.rewrites == ("bands_again:4:0.fwd:2.fwd", "bands:4:3.fwd:4.fwd")
    assert found.work == offer.work - times.forward[2] / times.total

    def again(names: tuple[str, ...]) -> set[str]:
        calls = apply_rewrites(trace, names).calls
        return {call.name.partition(".again")[0] for call in calls if ".again" in call.name}

    assert again(offer.rewrites) - again(found.rewrites) >= {"2.fwd"}
    assert "0.fwd" in again(found.rewrites)
    assert sparing(operators, times, Offer(("bands:4:0.fwd:4.fwd",), 1.5)) is None


def test_no_plan_of_any_tiling_comes_below_the_bound_of_all() -> None:
    _, trace = step(64)
    where = v100_pcie()
    alone = sum(call_durations_ns(trace, where)) / 1e3
    lasting = sum(trace.variables[v].nbytes for v in trace.initial)
    bounds = []
    for names in (("bands_again:4:0:7",), ("bands_again:2:0:4", "bands:4:5:7"), ("tile:2x2:0:7",)):
        tiled = apply_rewrites(trace, names)
        device = trace_peak_bytes(tiled)
        plan = oc.plan(tiled, device, "belady", where, host_budget=lasting)
        bounds.append(any_tiling_us(trace, device + lasting, where))
        assert bounds[-1] <= plan.makespan_us
    assert max(bounds) > alone  # it says something


@pytest.mark.slow
def test_a_small_host_holds_what_the_last_layer_makes() -> None:
    """VGG-16 at 1,024 pixels, a quarter of its in-core memory and 64 MiB: 1.22 if all of three
    stages runs again.
    """
    trace = oc.trace(oc.models.build("vgg16", 10, "cifar"), (1, 3, 1024, 1024))
    budget = trace_peak_bytes(trace) // 4
    plan = oc.plan(trace, budget, "banded", "v100-pcie", host_budget="64MiB")
    assert plan.makespan_us < 1.19 * sum(call_durations_ns(trace, v100_pcie())) / 1000


def test_where_the_host_is_too_small_it_says_so_and_by_how_much() -> None:
    original, trace = step(24)
    inputs = sum(v.nbytes for v in trace.variables if v.kind == "input")
    budget = trace_minimum_bytes(trace) * 2 // 3
    with pytest.raises(oc.Infeasible, match="host's memory") as refused:
        oc.plan(original, budget, planner="banded", machine="v100-pcie", host_budget=inputs)
    assert "host budget" in str(refused.value)
    assert "of 0 bytes" not in str(refused.value)


@pytest.mark.slow
def test_what_it_promises_of_its_tilings_is_so() -> None:
    """Offers of bands that run again fit without swapping in about what they are estimated at."""
    _, trace = step(128)
    for offer in offers_for(trace, v100_pcie())[1:]:
        tiled = apply_rewrites(trace, offer.rewrites)
        resident = offer.moves == "nothing"
        peak = trace_peak_bytes(tiled) if resident else trace_minimum_bytes(tiled)
        assert peak < 1.5 * offer.need_bytes


def test_it_plans_below_the_least_budget_of_the_untiled_step() -> None:
    original, trace = step(24)
    budget = trace_minimum_bytes(trace) * 2 // 3
    plan = oc.plan(original, budget, planner="banded", machine="v100-pcie")
    assert plan.peak_bytes <= budget
    tiled = [name for name in plan.rewrites if name.startswith(("bands", "tile"))]
    assert ", ".join(tiled) == plan.notes["tiling"]
    assert plan.notes["why"]
    assert plan.notes["work_over_untiled"] >= 1
    kept = [v.nbytes for v in plan.trace.variables if ".kept[" in v.name]
    assert plan.notes["kept_bytes"] == sum(kept)
    assert plan.notes["least_bytes"] <= plan.peak_bytes
    shown = " ".join(text for _, text in tiling_rows(plan))
    for said in (plan.notes["tiling"], "kept rows", "least budget", plan.notes["why"]):
        assert said in shown
    assert tiling_rows(oc.plan(original, "100%", planner="banded", machine="v100-pcie")) == []
    oc.verify(plan, original, budget)


def test_an_evaluation_is_planned_below_the_least_budget_of_its_untiled_step() -> None:
    """It stores nothing for a backward pass; what a single call needs is what bands make less."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 2, 3, padding=1),
    )  # fmt: skip
    step = oc.trace(model, (4, 3, 32, 32), loss=None, threads=1, training=False)
    whole = trace_minimum_bytes(step)
    for planner in ("banded", "auto"):
        plan = oc.plan(step, whole // 3, planner=planner)
        assert any(name.startswith(("bands", "tile")) for name in plan.rewrites)
        assert plan.peak_bytes <= whole // 3


class Shortcuts(nn.Module):
    """Its parameters are large beside its images, and may move to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(8, 8, 1, bias=False) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(2)])
        self.head = nn.Linear(8, 4)

    def forward(self, x: oc.Tensor) -> oc.Tensor:
        y = F.relu(self.stem(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = F.relu(norm(conv(y)) + y)
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


@pytest.mark.slow
def test_its_minimum_is_the_same_whatever_was_asked_where_parameters_move() -> None:
    """A tiling whose parameters do not fit together may still be the one that needs least."""
    oc.manual_seed(0)
    traced = oc.trace(Shortcuts(), (4, 3, 12, 12), threads=1, conv_algorithm="direct")
    trace = apply_rewrites(traced, ("fuse", "share_storage"))
    banded, least = Banded(untiled=False), set()
    for asked in (1000, 20_000, 29_000):
        with pytest.raises(oc.Infeasible) as refused:
            banded.plan(Question(trace, asked, v100_pcie()))
        least.add(refused.value.minimum_bytes)
    (named,) = least
    plan = banded.plan(Question(trace, named, v100_pcie()))
    assert plan.peak_bytes <= named < trace_minimum_bytes(plan.trace)
    with pytest.raises(oc.Infeasible) as again:
        banded.plan(Question(trace, named - 1, v100_pcie()))
    assert again.value.minimum_bytes == named


def test_its_minimum_is_its_minimum() -> None:
    _, trace = step(16)
    banded = Banded()
    with pytest.raises(oc.Infeasible, match="least of any tiling") as refused:
        banded.plan(Question(trace, 1, v100_pcie()))
    least = refused.value.minimum_bytes
    assert banded.plan(Question(trace, least, v100_pcie())).peak_bytes <= least
    with pytest.raises(oc.Infeasible) as again:
        banded.plan(Question(trace, least - 1, v100_pcie()))
    assert again.value.minimum_bytes == least
    assert "a row rule" in str(again.value)
    assert "'10.fwd'" in str(again.value)


def test_lists_by_another_planner() -> None:
    _, trace = step()
    plan = get_planner("banded:planner=naive").plan(
        Question(trace, trace_minimum_bytes(trace) * 3 // 4, v100_pcie())
    )
    assert plan.notes["lists_by"] == "naive"
    with pytest.raises(oc.errors.ConfigError, match="naiv"):
        get_planner("banded:planner=naiv")


def test_where_moving_takes_longer_than_running_again_prefix_has_the_fastest_list() -> None:
    _, trace = step(64)
    budget, where = trace_minimum_bytes(trace) * 6 // 5, cpu_generic()
    both = Banded(untiled=False).plan(Question(trace, budget, where))
    assert both.notes["lists_by"] == "prefix"
    alone = Banded("belady", untiled=False).plan(Question(trace, budget, where))
    assert both.makespan_us < alone.makespan_us


def test_of_lists_that_are_as_fast_the_first_one_stays() -> None:
    """Where nothing has to be moved or run again, that of `belady`."""
    _, trace = step()
    plan = Banded(untiled=False).plan(Question(trace, 2 * trace_minimum_bytes(trace), v100_pcie()))
    assert plan.notes["lists_by"] == "belady"


def test_a_limit_is_what_a_way_may_need() -> None:
    """The room without what lies in blocks on the device; all of it and what is stored in both."""
    segment = SegmentChoice("tile:2x2:a:b", 5.0, stored_bytes=10, room_bytes=20, blocks_bytes=4)
    assert choose.best_way({(0, 1): [segment]}, 16, 30).choices == (segment,)
    assert choose.best_way({(0, 1): [segment]}, 15, 30) is None
    assert choose.best_way({(0, 1): [segment]}, 16, 29) is None


def test_auto_asks_for_tilings_only_where_no_list_of_the_untiled_step_is_as_good() -> None:
    original, trace = step()
    roomy = oc.plan(original, trace_peak_bytes(trace), machine="v100-pcie")
    assert not any(name.startswith(("bands", "tile")) for name in roomy.rewrites)
    budget = trace_minimum_bytes(trace) * 3 // 4
    with pytest.raises(oc.Infeasible):
        Auto().plan(Question(trace, budget, v100_pcie(), effort=Effort.within(0.1)))
    tiled = oc.plan(original, budget, machine="v100-pcie", time_limit_s=0.1)
    assert tiled.notes["planner"] == "auto"
    assert tiled.notes["chosen"] == "banded"
    assert any(name.startswith(("bands", "tile")) for name in tiled.rewrites)


def test_nobody_is_asked_for_tilings_beside_a_list_that_may_be_as_good() -> None:
    """Where the bound is as short as the calls; unless there is no list to be as good as."""
    trace = step()[1]
    question = Question(trace, trace_peak_bytes(trace), v100_pcie())
    roomy = Naive().plan(question)
    assert [planner.name for planner in tilings(question, None)] == ["banded"]
    assert tilings(question, roomy) == ()


def test_names_of_the_composition() -> None:
    assert {"sft", "banded"} == {*planners()} - {*registry.planners()}
    assert oc.planners() == planners()


def test_a_step_without_images_has_nothing_to_tile() -> None:
    linear = oc.trace(nn.Sequential(nn.Linear(8, 8)), (2, 8), threads=1)
    assert not can_be_banded(linear)
    assert Banded().plan(Question(linear, 1 << 20, v100_pcie())).rewrites == ()
    assert [offer.rewrites for offer in offers_for(linear, v100_pcie(), untiled=False)] == [()]


@pytest.mark.parametrize("planner", ["banded", "sft"])
def test_a_step_that_is_tiled_already_is_planned_as_it_is(planner: str) -> None:
    """Nobody can name a tile as the end of a segment; what is still whole may be tiled."""
    original, _ = step(24)
    names = ("fuse", "share_storage", "bands:3:0:4")
    plan = oc.plan(original, "100%", planner=planner, machine="v100-pcie", rewrites=names)
    assert plan.rewrites[:3] == names
    with pytest.raises(oc.errors.ConfigError, match=r"'0\.fwd' runs in tiles already"):
        oc.tile(plan.trace, (2, 2), "0.fwd", "4.fwd")


@pytest.mark.slow
def test_vgg16_at_1024_pixels_in_a_quarter_of_its_memory() -> None:
    """Untiled no planner fits; in bands the step takes 6 % longer than in core (docs/tiling.md)."""
    original = oc.trace(oc.models.build("vgg16", stem="cifar"), (1, 3, 1024, 1024), threads=2)
    trace = apply_rewrites(original, ("fuse", "share_storage"))
    in_core = get_planner("keep-all").plan(Question(trace, 1 << 40, v100_pcie()))
    plan = Banded().plan(Question(trace, in_core.peak_bytes // 4, v100_pcie()))
    assert plan.makespan_us / in_core.makespan_us < 1.07


@pytest.mark.slow
def test_thirteen_thousand_calls_are_planned() -> None:
    """VGG-16's convolutional part on an image of 20480 pixels in 11 GiB, which
    in-core takes 489 GiB.
    """
    trace = convolutional_step("vgg16", 20480)
    where = rtx2080ti()
    plan = Banded().plan(
        Question(trace, where.device_bytes, where, host_budget_bytes=where.host_bytes)
    )
    assert {"bands", "bands_again"} <= {name.split(":")[0] for name in plan.rewrites}
    assert plan.makespan_us < 1.25 * sum(call_durations_ns(trace, where)) / 1000
    # As many calls were planned on the way; here they are in one list.
    tiled = apply_rewrites(trace, ("bands_again:80:0.0.fwd:0.30.fwd",))
    assert len(tiled.calls) > 12_900
    get_planner("belady").plan(Question(tiled, where.device_bytes, where))


def test_estimates_of_one_convolution_in_bands_by_hand() -> None:
    """An image of 3 x 32 x 32 becomes 8 x 32 x 32; a band of eight rows reads two of another's."""
    operators, out, two_rows = operators_of(step()[0]), 8 * 32 * 32 * 4, 3 * 2 * 32 * 4
    times, costs = OperatorTimes.of(operators, v100_pcie()), Costs.of(v100_pcie())
    bands = {found.name.split(":")[1]: found for found in _bands(operators, times, (0, 0), costs)}
    gradient = out  # the image has none
    band = out // 4 + two_rows
    assert bands["4"].room_bytes == gradient + band + 2 * out // 4 + two_rows
    assert bands["4"].stored_bytes == out + 3 * two_rows
    assert _as_they_are(operators, (0, 1)).extra_ns == 0


@pytest.mark.parametrize("most", [23, 24, MOST_CALLS])
def test_no_way_in_bands_has_more_calls_than_a_trace_may_have(monkeypatch, most: int) -> None:
    """Each band of each image is three calls: forward twice, and backward."""
    monkeypatch.setattr(segment_costs, "MOST_CALLS", most)
    operators, machine = operators_of(step()[0]), v100_pcie()
    images, _, rows, _ = operators.trace.variables[operators.calls[0].ins[0]].shape
    found = _bands(operators, OperatorTimes.of(operators, machine), (0, 0), Costs.of(machine))
    assert [int(choice.name.split(":")[1]) for choice in found] == [
        bands for bands in BANDS
        if bands * images > 1 and bands <= rows and 3 * bands * images <= most
    ]  # fmt: skip


def test_limits_go_down_from_what_an_evaluation_needs_as_it_is(monkeypatch) -> None:
    """That is what its largest operator needs beside the parameters; here the last one."""
    limits: list[int] = []
    monkeypatch.setattr(choose, "_limits", lambda most: limits.append(most) or [])
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 32, 3, padding=1))
    trace = oc.trace(net, (1, 3, 16, 16), None, training=False, threads=1)
    operators, machine = operators_of(trace), v100_pcie()
    choose.tilings_of(operators, OperatorTimes.of(operators, machine), machine)
    needs = [segment_costs.room_bytes(operators, place) for place in (0, 1)]
    assert needs[0] < needs[1]
    assert limits == [lasting_bytes(trace) + needs[1]]


@pytest.mark.parametrize(("rows", "most", "grids"), [
    (6, MOST_CALLS, [2, 4]), (8, MOST_CALLS, [2, 4, 8]), (8, 3 * 4**2 * 4, [2, 4]),
    (8, 3 * 4**2 * 4 - 1, [2]),
])  # fmt: skip
def test_a_grid_has_as_many_tiles_as_rows_at_most_and_a_trace_so_many_calls(
    monkeypatch, rows: int, most: int, grids: list[int]
) -> None:
    """Of each tile three for each of the four calls."""
    monkeypatch.setattr(segment_costs, "MOST_CALLS", most)
    trace = oc.trace(model(), (1, 3, rows, 64), threads=2, conv_algorithm="direct")
    operators, machine = operators_of(trace), v100_pcie()
    found = _tiles(
        operators, OperatorTimes.of(operators, machine), FtSegment(0, 3, ()), Costs.of(machine)
    )
    assert [int(choice.name.split(":")[1].split("x")[0]) for choice in found] == grids


def test_tiles_need_room_for_the_gradients_at_their_borders_and_one_of_them() -> None:
    """Of this segment's output alone, as it begins with the image."""
    operators, machine, segment = operators_of(step()[0]), v100_pcie(), FtSegment(0, 3, ())
    found = list(
        _tiles(operators, OperatorTimes.of(operators, machine), segment, Costs.of(machine))
    )
    border = 8 * 32 * 32 * 4
    assert [choice.room_bytes for choice in found] == [
        border + tile_bytes(operators, segment, (tiles, tiles)) for tiles in GRIDS
    ]
    assert {choice.stored_bytes for choice in found} == {border}


class Counting:
    """Counts its plans; a planner may be given by itself, not only by its name."""

    name, plans = "counting", 0

    def plan(self, question):
        found = Belady().plan(question)
        self.plans += 1
        return found


@pytest.mark.slow
def test_each_choice_more_is_a_plan_more():
    """The first is taken where there is one choice; else some are made for the budget alone."""
    asked = Question(
        known_steps.step("plain"), known_steps.budget("plain", 0.7), known_steps.MACHINE
    )
    counts = []
    for choices in (1, 2, 3, 4):
        planner = Counting()
        Banded(planner=planner, choices=choices).plan(asked)
        counts.append(planner.plans)
    assert counts == [1, 4, 5, 6]
