"""What is kept is found again, is never stale, and is never believed once it is damaged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ooctrain.api import step_trace
from ooctrain.experiments import kept, planned
from ooctrain.experiments.kept import ResultStore, package_sources, planner_sources
from ooctrain.experiments.planned import PlanQuestion
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.schedule import BYTES
from ooctrain.sched.verify import verify
from ooctrain.step.presets import machine

OWN_PLANNER = """
import ooctrain as oc
from ooctrain.sched.planners.keep_all import KeepAll


class Mine(KeepAll):
    name = "mine"
"""


@pytest.fixture(scope="module")
def question():
    step = step_trace("lenet", 16, None)
    least, most = trace_minimum_bytes(step, BYTES), trace_peak_bytes(step, BYTES)
    return PlanQuestion(step, (least + most) // 2, machine("v100-pcie"), "belady")


@pytest.fixture
def no_planner(monkeypatch):
    """From here on planning fails."""

    def refuse(spec):
        raise AssertionError(f"{spec} is asked")

    return lambda: monkeypatch.setattr(planned, "get_planner", refuse)


def test_a_store_reads_what_it_wrote_and_nothing_else(tmp_path):
    store = ResultStore(tmp_path / "made")
    assert store.read("a") is None
    for content in ({"x": [1, 2.5, None, "é"]}, [], 0):
        store.write("a", content)
        assert store.read("a") == content
    assert store.read("b") is None
    assert [path.name for path in store.folder.iterdir()] == ["a"]


def test_without_a_folder_nothing_is_kept():
    ResultStore(None).write("a", 1)
    assert ResultStore(None).read("a") is None


@pytest.mark.parametrize("damage", [
    lambda data: b"",
    lambda data: data[:-1],
    lambda data: data.replace(b"17", b"18"),
    lambda data: b"\xff" + data,
    lambda data: data.partition(b"\n")[2],
    lambda data: data + data,
])  # fmt: skip
def test_a_damaged_file_is_as_good_as_none(tmp_path, damage):
    store = ResultStore(tmp_path)
    store.write("a", {"makespan_us": 17})
    (tmp_path / "a").write_bytes(damage((tmp_path / "a").read_bytes()))
    assert store.read("a") is None


def test_a_writer_that_dies_leaves_what_was_there(tmp_path, monkeypatch):
    store = ResultStore(tmp_path)
    store.write("a", 1)

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kept.Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        store.write("a", 2)
    assert store.read("a") == 1


def test_a_kept_plan_is_the_plan(question, tmp_path, no_planner):
    first = planned.planned(question, ResultStore(tmp_path))
    no_planner()
    again = planned.planned(question, ResultStore(tmp_path))
    assert again == first
    assert again.plan.schedule.instructions
    verify(again.plan, question.step, question.budget_bytes, question.machine)


def test_a_kept_refusal_is_the_refusal(question, tmp_path, no_planner):
    asked = replace(question, planner="keep-all")
    first = planned.planned(asked, ResultStore(tmp_path))
    assert first.plan is None
    assert first.minimum_bytes > asked.budget_bytes
    no_planner()
    assert planned.planned(asked, ResultStore(tmp_path)) == first


def test_a_damaged_plan_is_planned_again_and_mended(question, tmp_path, no_planner):
    first = planned.planned(question, ResultStore(tmp_path))
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace('"free"', '"out"', 1))
    again = planned.planned(question, ResultStore(tmp_path))
    assert again.plan == first.plan
    no_planner()
    assert planned.planned(question, ResultStore(tmp_path)) == again


def test_whatever_decides_a_plan_is_in_its_name(question):
    others = [
        replace(question, step=step_trace("lenet", 8, None)),
        replace(question, budget_bytes=question.budget_bytes + 1),
        replace(question, machine=replace(question.machine, latency_us=1)),
        replace(question, machine=replace(question.machine, profile={"a call": 1})),
        replace(question, planner="belady:pieces=10"),
        replace(question, granule_bytes=2),
        replace(question, seed=1),
        replace(question, time_limit_s=1.0),
    ]
    names = {asked.name for asked in (question, *others)}
    assert len(names) == 1 + len(others)
    assert replace(question, machine=machine("v100-pcie")).name == question.name


def test_an_edit_of_the_library_makes_new_names(question, tmp_path, monkeypatch):
    (tmp_path / "sched").mkdir()
    source = tmp_path / "sched" / "belady.py"
    source.write_text("pieces = 200\n")
    monkeypatch.setattr(kept, "PACKAGE", tmp_path)
    found = []
    for text in ("pieces = 200\n", "pieces = 100\n", "pieces = 200\n"):
        source.write_text(text)
        package_sources.cache_clear()
        found.append(question.name)
    package_sources.cache_clear()
    assert found[0] != found[1]
    assert found[0] == found[2]


def test_an_edit_of_ones_own_planner_or_beside_it_makes_new_names(tmp_path):
    source, helper = tmp_path / "mine.py", tmp_path / "helper.py"
    source.write_text(OWN_PLANNER)
    first = planner_sources(f"{source}:Mine")
    helper.write_text("")
    second = planner_sources(f"{source}:Mine")
    source.write_text(OWN_PLANNER + "# changed\n")
    third = planner_sources(f"{source}:Mine")
    assert len({first, second, third}) == 3
    assert planner_sources("belady") == planner_sources("belady:pieces=3")


def test_a_planner_of_another_package_is_named_by_its_sources(tmp_path, monkeypatch):
    package = tmp_path / "others"
    package.mkdir()
    (package / "__init__.py").write_text(OWN_PLANNER)
    info = tmp_path / "others-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[ooctrain.planners]\nmine = others:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    first = planner_sources("mine")
    (package / "helper.py").write_text("")
    assert planner_sources("mine") != first
