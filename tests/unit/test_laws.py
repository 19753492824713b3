"""The laws as a pytest plug-in: each is a named test, and a failure tells all that is needed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib import import_module

import pytest

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.schedule import SwapIn
from ooctrain.testing.allocator_laws import LAWS as ALLOCATOR_LAWS
from ooctrain.testing.check_allocator import check_allocator
from ooctrain.testing.check_planner import LAWS, PlannerFailure, check_planner

BROKEN_PLANNER = '''
from ooctrain.sched.planners.registry import get_planner


class Mine:
    """Says that it needs a byte more than it does."""

    name = "mine"

    def plan(self, question):
        import ooctrain as oc

        try:
            return get_planner("keep-all").plan(question)
        except oc.Infeasible as refusal:
            raise oc.Infeasible("mine", minimum_bytes=refusal.minimum_bytes + 1) from refusal
'''
FORGETFUL_PLANNER = '''
from dataclasses import replace

from ooctrain.sched.planners.registry import get_planner


class Mine:
    """Forgets the last call."""

    name = "mine"

    def plan(self, question):
        from ooctrain.sched.schedule import Run

        plan = get_planner("keep-all").plan(question)
        listed = list(plan.schedule.instructions)
        del listed[max(k for k, one in enumerate(listed) if isinstance(one, Run))]
        return replace(plan, schedule=replace(plan.schedule, instructions=tuple(listed)))
'''
BROKEN_ALLOCATOR = '''
from ooctrain.alloc.bump import Bump


class Mine(Bump):
    """Says that a byte more is in use than is."""

    def stats(self):
        from dataclasses import replace

        found = super().stats()
        return replace(found, requested_bytes=found.requested_bytes + 1)
'''


def run_pytest(folder, *arguments):
    """(exit status, output) of a pytest of its own."""
    plugins = ["-p", "ooctrain.laws.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-rfs", "-v", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def laws(folder, *arguments):
    return run_pytest(folder, "--pyargs", "ooctrain.laws", *arguments)


@pytest.mark.slow
def test_each_law_of_a_planner_is_a_test(tmp_path):
    status, shown = laws(tmp_path, "--planner", "keep-all", "--law-examples", "2")
    assert status == 0, shown
    for law in LAWS:
        assert f"test_planner[{law.replace(' ', '_')}] PASSED" in shown


@pytest.mark.slow
def test_a_failure_prints_the_example_the_law_and_how_to_repeat_it(tmp_path):
    (tmp_path / "my.py").write_text(BROKEN_PLANNER)
    status, shown = laws(tmp_path, "--planner", "my.py:Mine")
    assert status == 1
    assert "test_planner[infeasible_is_honest] FAILED" in shown
    assert "test_planner[plans_are_legal] PASSED" in shown
    assert "trace of 1 calls" in shown
    assert "During handling of the above exception" not in shown, "it stands there once"
    assert "the law says: The minimum does not depend on the budget asked" in shown
    repeat = re.search(r"repeat: (pytest .*)", shown)[1]
    again, shown_again = run_pytest(tmp_path, *repeat.split()[1:])
    assert again == 1
    assert "1 failed" in shown_again
    assert "PASSED" not in shown_again


@pytest.mark.slow
def test_a_list_is_shown_up_to_the_offending_instruction(tmp_path):
    (tmp_path / "my.py").write_text(FORGETFUL_PLANNER)
    status, shown = laws(tmp_path, "--planner", "my.py:Mine", "-k", "plans_are_legal")
    assert status == 1
    assert "list, instructions" in shown


class ForgetsACopy:
    """Naive, but the first value that is brought in again is not."""

    name = "forgets-a-copy"

    def plan(self, question):
        plan = get_planner("naive").plan(question)
        listed = list(plan.schedule.instructions)
        copies = [k for k, one in enumerate(listed) if isinstance(one, SwapIn)]
        del listed[copies[0] : copies[0] + 1]
        return replace(plan, schedule=replace(plan.schedule, instructions=tuple(listed)))


def test_the_law_of_exact_results_shows_the_list_up_to_the_instruction_that_goes_wrong():
    with pytest.raises(PlannerFailure, match="not resident") as caught:
        check_planner(ForgetsACopy(), laws=("results are exact",))
    last, length = re.search(r"instructions \d+ to (\d+) of (\d+)", caught.value.where).groups()
    assert int(last) < int(length) - 1
    shown = caught.value.where.splitlines()[-1]
    assert re.search(rf"{last} (run|free|out) ", shown)


def test_a_law_that_there_is_not_is_named():
    with pytest.raises(ConfigError, match="did you mean 'results are exact'"):
        check_planner("naive", laws=("results are exakt",))


@pytest.mark.parametrize(
    ("backends", "told"),
    [
        (("memdf",), "did you mean 'memfd'"),  # it must not be another one in silence
        (("strict", "gpu"), "no back end is called 'gpu'"),
        (("plain",), "va can be tried on none of plain"),  # it must not pass without any test
        ((), "none of no back ends"),
    ],
)
def test_an_allocator_is_tried_on_the_back_ends_that_are_named_or_not_at_all(backends, told):
    with pytest.raises(ConfigError, match=told):
        check_allocator("va:chunk=4KiB", examples=1, backends=backends)


@pytest.mark.slow
def test_each_law_of_an_allocator_is_a_test(tmp_path):
    status, shown = laws(tmp_path, "--allocator", "best-fit", "--law-examples", "5")
    assert status == 0, shown
    for law in ("P1", "P8", "B3", "none_names_it"):
        assert f"test_allocator[law_{law}] PASSED" in shown
    assert "test_allocator[law_V4] SKIPPED" in shown
    assert ALLOCATOR_LAWS["V4"][:20] in shown


@pytest.mark.slow
def test_a_broken_allocator_fails_its_laws_and_passes_the_others(tmp_path):
    (tmp_path / "my.py").write_text(BROKEN_ALLOCATOR)
    status, shown = laws(tmp_path, "--allocator", "my.py:Mine", "--law-examples", "5")
    assert status == 1
    assert "law_P7] FAILED" in shown
    assert "law_P1] PASSED" in shown
    assert "law_P4] PASSED" in shown
    assert "not reached" not in shown
    assert "repeat:" in shown


@pytest.mark.slow
def test_one_file_is_all_that_a_course_edits(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "adapters.py").write_text('def planner():\n    return "keep-all"\n')
    status, shown = laws(tmp_path, "--law-examples", "1", "-k", "test_planner")
    assert status == 0
    assert f"{len(LAWS)} passed" in shown


@pytest.mark.slow
def test_this_checkout_has_the_file(repository):
    status, shown = laws(repository, "--law-examples", "1", "-k", "P1 or budget")
    assert status == 0, shown
    for what in ("planner", "allocator"):
        assert f"test_{what}" in shown
        assert f"give --{what}" not in shown


@pytest.mark.slow
def test_without_a_name_nothing_is_tried(tmp_path):
    status, shown = laws(tmp_path)
    assert status == 0
    assert "passed" not in shown
    assert "give --planner" in shown


def test_the_entry_point_is_the_plug_in(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    for name, module in project["entry-points"]["pytest11"].items():
        assert name == module, "so that `-p` and the entry point are one plug-in"
        assert import_module(module).pytest_addoption


class NamesNoCall:
    """Refuses honestly, but for the name of the call that needs the most."""

    name = "names no call"

    def plan(self, question):
        try:
            return get_planner("naive").plan(question)
        except Infeasible as refusal:
            refusal.witness_call = "some call"
            raise


def test_a_witness_must_be_a_call_of_the_step():
    with pytest.raises(PlannerFailure, match="'some call' is not a call of the step"):
        check_planner(NamesNoCall(), examples=1)
