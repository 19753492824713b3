"""Planners by name: parameters, files, entry points, and what a wrong name or a wrong plan says."""

from __future__ import annotations

import inspect
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

import ooctrain as oc
from ooctrain import plugins as specs
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.execution.planners import as_planner, get_planner, planners
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.schedule import BYTES


def test_names_are_listed():
    assert {"auto", "keep-all", "naive", "window"} <= set(planners())
    assert oc.planners() == planners()


@pytest.mark.parametrize("name", planners())
def test_every_listed_planner_can_be_made(name):
    assert get_planner(name).name == name


@pytest.mark.parametrize("name", planners())
def test_what_is_not_said_means_the_same_to_every_planner(name):
    """The seed, the granule and the limits that are left out are those of the protocol."""
    asked, promised = (
        inspect.signature(kind.plan).parameters.values()
        for kind in (type(get_planner(name)), Planner)
    )
    assert [(p.name, p.kind, p.default) for p in asked] == [
        (p.name, p.kind, p.default) for p in promised
    ]


def test_parameters_reach_the_planner():
    assert get_planner("window:size=2,count=occurrence") == SlidingWindow(
        size=2, count="occurrence"
    )
    assert get_planner(" window : size = 2.5 ".replace(" ", "")) == SlidingWindow(size=2.5)


def test_a_file_gives_a_planner(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n    name = 'mine'\n"
        "    def __init__(self, depth=1):\n        self.depth = depth\n"
        "    def plan(self, question):\n        pass\n"
    )
    assert get_planner(f"{file}:Mine:depth=3").depth == 3


def test_a_file_may_define_a_dataclass(tmp_path):
    """`dataclass` looks for the module of a class in `sys.modules` where annotations are text."""
    file = tmp_path / "planners.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n"
        "@dataclass(frozen=True)\nclass Mine:\n    depth: int = 1\n    name: str = 'mine'\n"
        "    def plan(self, question):\n        pass\n"
    )
    assert get_planner(f"{file}:Mine:depth=3").depth == 3


def test_an_entry_point_gives_a_planner(monkeypatch):
    class Entry:
        name = "theirs"

        @staticmethod
        def load():
            return KeepAll

    def entry_points(*, group, name="theirs"):
        return [Entry] if (group, name) == ("ooctrain.planners", "theirs") else []

    monkeypatch.setattr(specs, "entry_points", entry_points)
    assert isinstance(get_planner("theirs"), KeepAll)
    assert "theirs" in planners()


def test_an_entry_point_whose_package_is_broken(monkeypatch):
    entry = EntryPoint("theirs", "no_such_package:Theirs", "ooctrain.planners")
    monkeypatch.setattr(specs, "entry_points", lambda **_asked: [entry])
    with pytest.raises(ConfigError, match="cannot be loaded: No module named 'no_such_package'"):
        get_planner("theirs")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("windwo", "did you mean 'window'"),
        ("window:sise=2", "did you mean 'size'"),
        ("window:size", "is not key=value"),
        ("window:size=2,size=3", "gives 'size' twice"),
        ("window:size=-1", "finite number above 0"),
        ("window:size=wide", "finite number above 0"),
        ("window:count=some", "occurrence"),
        ("", "names nothing"),
        ("nowhere.py:Planner", "no Python file"),
        ("keep-all:size=1", "no parameter 'size'"),
        ("rotor:slots=0", "slots=0 is not a whole number of at least 1"),
        ("rotor:slots=1.5", "slots=1.5 is not a whole number of at least 1"),
        ("prefix:steps=-1", "steps=-1 is not a whole number of at least 0"),
        ("dtr:limits=many", "limits='many' is not a whole number of at least 0"),
        ("dynprog:exact_stages=few", "exact_stages='few' is not a whole number of at least 0"),
        ("dynprog:slots=0", "slots=0 is not a whole number of at least 1"),
        ("pofo:most_amounts=0", "most_amounts=0 is not a whole number of at least 1"),
        ("lru:page_bytes=0", "page_bytes=0 is not a whole number of at least 1"),
        ("belady:pieces=true", "pieces=True is not a whole number of at least 1"),
        ("combined:evaluations=-1", "evaluations=-1"),
        ("combined:evaluations=true", "evaluations=True"),
        ("combined:evaluations=many", "evaluations='many'"),
        ("window-cyclic:resident=no", "resident='no' is neither true nor false"),
        ("tflms-hybrid:recomp_checkpoint_ops_by_types=2", "=2 names no operations"),
        ("lms:swapin_ahead=-1", "swapin_ahead=-1 is not a whole number of at least 0"),
        ("hmms:ratio=2", "ratio=2 is not between 0 and 1"),
        ("bn-recompute:swap=nobody", "swap='nobody'"),
    ],
)
def test_what_is_wrong_is_said_with_the_nearest_right(spec, says):
    with pytest.raises(ConfigError) as caught:
        get_planner(spec)
    assert says in str(caught.value)
    assert caught.value.fix


def test_a_file_without_the_class_suggests_the_nearest(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Planner:\n    pass\n")
    with pytest.raises(ConfigError, match="OOC-106") as caught:
        get_planner(f"{file}:Plannr")
    assert "'Planner'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-3", -3), ("1.5", 1.5), ("1e-3", 1e-3), ("1MiB", 2**20), ("8GB", 8 * 10**9),
        ("true", True), ("False", False), ("none", None), ("word", "word"),
    ],
)  # fmt: skip
def test_values_are_read_by_their_looks(text, value):
    found = specs.parse_value(text)
    assert found == value
    assert type(found) is type(value)


class OfThreeArguments:
    """As planners were up to 0.1: what is in a question comes one by one."""

    name = "three"

    def plan(self, trace, budget_bytes, machine, *, granule=BYTES, host_budget_bytes=None, seed=0):
        return None


class OfThreeArgumentsByClass(OfThreeArguments):
    """The same where no object is needed."""

    @staticmethod
    def plan(trace, budget_bytes, machine, **rest):
        return None


class OfNoArgument:
    """Knows of no question."""

    name = "none"

    def plan(self):
        return None


class Changed:
    """`naive`, and its plan with other fields."""

    name = "changed"

    def __init__(self, **fields):
        self.fields = fields

    def plan(self, question):
        plan = get_planner("naive").plan(question)
        if "instructions" in self.fields:
            return replace(plan, schedule=replace(plan.schedule, **self.fields))
        return replace(plan, **self.fields)


class RefusesWith:
    """Refuses, and names a least budget."""

    name = "refuses"

    def __init__(self, least, needs="device"):
        self.least, self.needs = least, needs

    def plan(self, question):
        raise Infeasible("no", minimum_bytes=self.least, needs=self.needs)


@pytest.mark.parametrize(
    ("planner", "says"),
    [
        (OfThreeArguments, r"(?s)OfThreeArguments\.plan does not .*def plan\(self, question\)"),
        (OfThreeArgumentsByClass, r"(?s)ByClass\.plan does not .*def plan\(self, question\)"),
        (OfNoArgument, r"(?s)OfNoArgument\.plan does not .*def plan\(self, question\)"),
        (Changed(notes=None), "plan of planner 'changed' has NoneType as its notes"),
        (Changed(trace=None), "has NoneType as its trace"),
        (Changed(schedule=[1]), "has list as its schedule"),
        (Changed(instructions=("run",)), "has 'run' as instruction 0, not an Instruction"),
        (RefusesWith(None), "planner 'refuses' refuses with minimum_bytes=None"),
        (RefusesWith(1.5), "minimum_bytes=1.5"),
        (RefusesWith(-1), "minimum_bytes=-1"),
    ],
)
def test_what_a_planner_does_wrong_is_said_in_one_line(planner, says):
    """Each was a traceback through the library: TypeError, KeyError, AttributeError."""
    trace = oc.chain([8] * 3, [8] * 3, [1] * 2, [1] * 2, [0] * 2, [0] * 2)
    with pytest.raises(ConfigError, match=says) as caught:
        oc.plan(trace, "100%", planner=planner)
    assert caught.value.code == "OOC-108"


def test_a_planner_of_one_s_own_may_refuse_for_the_host_and_name_no_budget():
    trace = oc.chain([8] * 3, [8] * 3, [1] * 2, [1] * 2, [0] * 2, [0] * 2)
    with pytest.raises(Infeasible) as refused:
        oc.plan(trace, "100%", planner=RefusesWith(None, "host"))
    assert (refused.value.minimum_bytes, refused.value.needs) == (None, "host")


@pytest.mark.parametrize("named", [OfThreeArguments, OfNoArgument])
def test_what_cannot_be_asked_is_refused_by_whatever_name_it_comes(named, tmp_path):
    """`compare` named it in a row, with a TypeError of the library's own line."""
    text = f"class Mine:\n    name = 'mine'\n{inspect.getsource(named.plan)}"
    (tmp_path / "own.py").write_text(f"BYTES = None\n{text}", encoding="utf-8")
    spec = f"{tmp_path / 'own.py'}:Mine"
    for asked in (get_planner, as_planner):
        with pytest.raises(ConfigError) as refused:
            asked(spec)
        assert refused.value.code == "OOC-108"
