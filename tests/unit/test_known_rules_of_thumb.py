"""Planners answer many small questions as they did: each rule of thumb, with each of its settings.

`test_known_plans.py` knows what planners answer to a few questions about networks, by their
defaults. Here are many steps of a few calls, random ones and chains, of which each is asked for
little and for much memory, for whole values and for bytes, with a host that is limited and one that
is not, on machines of every kind; and planners with other settings than their own. A row has how
many questions were refused and the sum of what was answered, so that a reviewer sees whether
planners got slower; a digest has the lists. `support/known.py` says how to write the tables anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace

import pytest
from support import known
from support.known_steps import DUPLEX, MACHINE, budget, step
from support.quick import every

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.execution.planners import get_planner
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners import (
    belady,
    bn_recompute,
    capuchin,
    chen,
    dtr,
    dynprog,
    greedy,
    hmms,
    keep_all,
    lms,
    lru,
    naive,
    pofo,
    prefix,
    revolve,
    rotor,
    superneurons,
    tflms_hybrid,
    vdnn,
    window,
)
from ooctrain.sched.planners.bn_recompute import (
    generated_bytes,
    offloadable_share,
    outputs_of_norms,
)
from ooctrain.sched.planners.registry import PLANNERS
from ooctrain.sched.planners.tflms_hybrid import calls_added, times_to_drop_ns
from ooctrain.sched.planning import (
    chain_runs,
    chain_view,
    decisions,
    fastest,
    host_gaps,
    list_writer,
    lower,
    offloadable,
    residency,
    swap,
    unroll,
)
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.offloadable import check_ratio, offloadable_storages, take
from ooctrain.sched.planning.planner import check_true_or_false, check_whole_numbers
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.schedule import BYTES, Granule
from ooctrain.step.chain import chain
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import random_machine, random_trace

#: Their mistakes are this file's to notice.
JUDGED = (
    belady, bn_recompute, capuchin, chain_runs, chain_view, chen, decisions, dtr, dynprog, fastest,
    greedy, hmms, host_gaps, keep_all, list_writer, lms, lower, lru, naive, offloadable, pofo,
    prefix, residency, revolve, rotor, superneurons, swap, tflms_hybrid, unroll, vdnn, window,
)  # fmt: skip
#: They search, or run all others, or solve programs with a solver of others.
LEFT_OUT = {"auto", "combined", "checkmate", "checkmate-lp"}
SETTINGS = (
    "belady:pieces=3", "dtr:limits=2",
    "dynprog:slots=20", "dynprog:exact_stages=2", "dynprog:transfers=up", "hmms:ratio=0.5",
    "hmms:ratio=0", "hmms:ratio=1", "lms:swapout_threshold=2", "lms:swapout_threshold=3,rule=code",
    "lms:swapin_ahead=0", "lms:swapin_ahead=3,swapin_groupby=2", "lms:swapin_groupby=9",
    "lru:page_bytes=64", "pofo:slots=20", "pofo:most_states=3", "pofo:most_amounts=1",
    "prefix:steps=3", "rotor:slots=30", "vdnn-all:ratio=0.5",
    "vdnn-all:ratio=0", "window:size=1.5",
    "window:count=occurrence", "window:persistent=device", "window:persistent=host",
    "window-cyclic:resident=false", "window-cyclic:across=false", "window-cyclic:tuned=false",
    "window-cyclic:ordered=false",
)  # fmt: skip
SPECS = [name for name in PLANNERS if name not in LEFT_OUT] + list(SETTINGS)


def random_step(seed: int) -> Trace:
    rng = random.Random(f"thumb/{seed}")
    return random_trace(rng, calls=rng.randint(8, 16), max_bytes=300, duration_ns=8000)


def random_chain(seed: int) -> Trace:
    rng = random.Random(f"chain/{seed}")
    stages = rng.randint(3, 7)

    def drawn(low: int, high: int, count: int) -> list[int]:
        return [rng.randint(low, high) for _ in range(count)]

    sizes, grads = drawn(10, 90, stages + 1), drawn(10, 90, stages + 1)
    return chain(sizes, grads, drawn(1, 9, stages), drawn(1, 9, stages), drawn(0, 20, stages),
                 drawn(0, 20, stages))  # fmt: skip


#: {name: (step, machine)}
STEPS = {
    **{f"random {seed}": (random_step(seed), random_machine(random.Random(seed)))
       for seed in range(4)},
    **{f"chain {seed}": (random_chain(seed), (MACHINE, DUPLEX)[seed % 2]) for seed in range(2)},
    **{f"slow chain {seed}": (random_chain(seed), random_machine(random.Random(seed)))
       for seed in (3,)},
}  # fmt: skip
#: (share of the way from the least to the peak, granule, host bytes as a share of the peak)
ASKED = (
    (-0.1, BYTES, None), (0.15, BYTES, None), (0.45, Granule(16), None), (0.4, BYTES, 0.5),
    (0.7, Granule(32, ranges=False), None), (0.8, BYTES, 0.1), (1.0, Granule(8), None),
)  # fmt: skip


#: Rules about convolutions, norms and activations.
OF_NETWORKS = (
    "vdnn-conv", "bn-recompute", "bn-recompute:swap=belady", "bn-recompute:swap=window-cyclic",
    "bn-recompute:swap=lms-auto", "hmms:ratio=0.4", "tflms-hybrid:checkpoint_list=2+4",
    "tflms-hybrid:checkpoint_list=all", "tflms-hybrid:checkpoint_list=none",
    "tflms-hybrid:checkpoint_list=3,recomp_checkpoint_ops_by_types=ReLU+Linear",
    "tflms-hybrid:recomp_checkpoint_ops_by_types=MaxPool2d", "superneurons", "chen-sqrt", "lms",
    "sft", "sft:tiles=3",
)  # fmt: skip


def question(name: str, which: int) -> Question:
    step, machine = STEPS[name]
    share, granule, host = ASKED[which]
    least, most = trace_minimum_bytes(step, granule), trace_peak_bytes(step, granule)
    room = None if host is None else int(most * host)
    budget = int(least + (most - least) * share)
    return Question(step, budget, machine, granule, room, seed=3, effort=Effort(20))


def answered(spec: str, questions: Iterable[Question]) -> known.Row:
    """(answers, sum of their times, sum of the least budgets of refusals, all of it): the first one
    that needs the host is asked for again with what it takes of it, and with less.
    """
    whole, took_us, least, planned = [], 0.0, 0, 0
    asking, hosts = list(questions), 0
    while asking:
        asked = asking.pop(0)
        try:
            plan = get_planner(spec).plan(asked)
        except (Infeasible, ConfigError) as error:
            minimum = getattr(error, "minimum_bytes", None)
            whole.append((error.code, minimum, getattr(error, "witness_call", ""),
                          getattr(error, "needs", "")))  # fmt: skip
            least += minimum or 0
            continue
        notes = {key: value for key, value in plan.notes.items() if not key.endswith("_s")}
        whole.append((plan.peak_bytes, plan.host_peak_bytes, plan.makespan_us, notes,
                      plan.schedule.to_json(), plan.rewrites))  # fmt: skip
        took_us, planned = took_us + plan.makespan_us, planned + 1
        if plan.host_peak_bytes and not hosts:  # once more: what it takes, and a byte less
            hosts = plan.host_peak_bytes
            asking += [replace(asked, host_budget_bytes=hosts - less) for less in (0, 1)]
    return planned, took_us, least, known.digest(whole)


@pytest.mark.parametrize("spec", every(SPECS, 3))
def test_a_rule_of_thumb_answers_as_it_did(spec):
    few = spec in SETTINGS  # a setting changes one thing; each rule is asked all by its defaults
    steps = list(STEPS)[:: 2 if few else 1]
    asked = {
        name: [question(name, which) for which in range(0, len(ASKED), 2 if few else 1)]
        for name in steps
    }
    known.check_rows("thumb", spec, [(name, *answered(spec, asked[name])) for name in steps])


@pytest.mark.parametrize("spec", OF_NETWORKS)
def test_a_rule_about_networks_answers_as_it_did(spec):
    rows = []
    for name, shares in (("plain", (0.45, 0.7, 1.0)), ("blocks", (0.55, 0.8))):
        asked = [
            Question(step(name), budget(name, share), MACHINE, BYTES, effort=Effort(20))
            for share in shares
        ]
        rows.append((name, *answered(spec, asked)))
    known.check_rows("thumb", f"{spec} of networks", rows)


def test_every_row_is_of_a_rule_of_thumb():
    assert known.whose("thumb") == {*SPECS, *(f"{spec} of networks" for spec in OF_NETWORKS)}


@pytest.mark.parametrize("name", ["plain", "blocks", "everything", *STEPS])
def test_what_rules_look_at_is_what_it_was(name):
    """Calls that are computed again where some values are dropped; what the link can carry."""
    trace, machine = STEPS.get(name) or (step(name), MACHINE)
    rng, values, rows = random.Random(name), sorted(droppable(trace)), []
    for share in (0.0, 0.2, 0.5, 1.0):
        dropped = [var for var in values if rng.random() <= share]
        wanted = [run.call for run in rematerialise(trace, dropped)]
        again = calls_added(trace, dropped)
        assert sorted([*again, *range(len(trace.calls))]) == sorted(wanted)
        (added_ns,) = times_to_drop_ns(trace, machine, [dropped])
        made = sum(generated_bytes(trace, dropped).values())
        carried = offloadable_share(trace, machine, dropped)
        rows.append((len(dropped), known.digest(again), added_ns, made, carried))
    norms = outputs_of_norms(trace) if name in ("plain", "blocks", "everything") else ()
    known.check_rows("looked", name, [*rows, [known.digest(norms)]])


#: What a setting may be given.
VALUES = (
    -1, 0, 1, 2, 3, 10**9, -0.5, 0.0, 0.5, 1.0, 1.5, float("inf"), float("nan"), True, False, None,
    "", "auto", "all", "2+4", "x", (1, 2), "paper", "code", "unique", "occurrence", "device",
    "host", "up", "down", "belady", "hmms",
)  # fmt: skip


SET = [
    name for name, planner in PLANNERS.items()
    if hasattr(planner, "__dataclass_fields__") and name != "combined"
]  # fmt: skip


@pytest.mark.parametrize("name", SET)
def test_settings_are_taken_and_refused_as_they_were(name):
    factory, rows = PLANNERS[name], []
    for setting in factory.__dataclass_fields__:
        taken = []
        for value in VALUES:
            try:
                factory(**{setting: value})
            except ConfigError as error:
                taken.append(error.code)
            except TypeError as error:
                taken.append(type(error).__name__)
            else:
                taken.append("taken")
        rows.append((setting, taken.count("taken"), known.digest(taken)))
    known.check_rows("settings", name, rows)


def test_what_is_checked_of_settings_has_borders():
    ratios = (0, True), (1, True), (-0.01, False), (1.01, False), ("1", False), (-1, False)
    for ratio, fine in ratios:
        with nullcontext() if fine else pytest.raises(ConfigError):
            check_ratio("x", ratio)
    for number, least, fine in ((1, 1, True), (0, 1, False), (0, 0, True), (-1, 0, False),
                                (1.0, 1, False), (True, 1, False), ("1", 1, False)):  # fmt: skip
        with nullcontext() if fine else pytest.raises(ConfigError):
            check_whole_numbers("x", {"a": 5, "b": number}, least)
    for value, fine in ((True, True), (False, True), (1, False), (None, False)):
        with nullcontext() if fine else pytest.raises(ConfigError):
            check_true_or_false("x", {"a": True, "b": value})


def test_a_search_that_has_no_time_says_so_and_numbers_may_be_a_tuple():
    asked = question("chain 0", 2)
    whole = get_planner("lms-grid").plan(asked)
    assert "cut_short" not in whole.notes
    hurried = get_planner("lms-grid").plan(replace(asked, effort=Effort.within(0.0)))
    assert hurried.notes["cut_short"] is True
    assert hurried.makespan_us >= whole.makespan_us
    asked = Question(step("blocks"), budget("blocks", 0.8), MACHINE, BYTES)
    plans = [tflms_hybrid.TflmsHybrid(ids).plan(asked) for ids in ((2, 4), "2+4")]
    assert plans[0].schedule == plans[1].schedule


def test_a_share_of_what_may_leave_is_taken():
    trace = STEPS["chain 0"][0]
    offered = list(offloadable_storages(trace))
    rows = [
        (share, known.digest(list(take(offered, share)))) for share in (0.0, 0.2, 0.5, 0.8, 1.0)
    ]
    known.check_rows("settings", "taken", [(len(offered), known.digest(offered)), *rows])
