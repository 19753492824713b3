"""The laws of grading bite: with each planted bug one of them is broken."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from strangers import test_blind_laws as BLIND
from strangers import test_graded_liars as LIARS
from strangers import test_hand_ins as HAND_INS
from unit import test_cage as CAGE
from unit import test_grade as GRADE
from unit import test_grade_attacks as ATTACKS
from zoo.grade_bugs import BUGS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")


def an_attack(name):
    return lambda folder: ATTACKS.test_an_attack_is_stopped_and_told(name, folder)


def in_time(folder):
    started = time.monotonic()
    CAGE.test_a_message_keeps_to_its_limits()
    assert time.monotonic() - started < 4


def all_words(folder):
    for kind in ("SystemExit", "StopIteration", "eval"):
        CAGE.test_no_word_of_a_submission_ends_or_skips_a_test(kind)
    CAGE.test_no_word_of_a_submission_moves_the_cursor()


def all_twists(folder):
    for twist in GRADE.TWISTED:
        GRADE.test_a_plan_is_taken_apart_before_it_is_believed(twist)


def environment(folder):
    with pytest.MonkeyPatch.context() as patch:
        CAGE.test_the_teachers_environment_is_not_to_be_read(folder, patch)


def a_daemon(folder):
    """Ends what a bug has left."""
    try:
        CAGE.test_a_daemon_ends_with_the_question_where_no_layer_forbids_it(folder)
    finally:
        path = Path(folder / "daemon")
        if path.exists() and CAGE.is_running(int(path.read_text())):
            os.kill(int(path.read_text()), 9)


def a_folder_of_a_mac(folder):
    (folder / "class").mkdir()
    place = HAND_INS.read_rubric(HAND_INS.tiny_assignment(folder / "tiny")), folder / "class"
    HAND_INS.test_a_right_submission_is_found(
        "what macOS and Jupyter add", (*place, folder / "unpacked")
    )


LAW = {
    "a blind law counts": lambda folder: BLIND.test_a_law_that_asks_nothing_gets_nothing(
        "the other number of the call"
    ),
    "a folder of a Mac": a_folder_of_a_mac,
    "laws apart": lambda folder: (
        LIARS.test_overlapping_blocks_are_found_behind_whatever_else_is_broken(LIARS.AlsoGrantsMore)
    ),
    "a pair": lambda folder: BLIND.test_both_sides_of_a_pair_are_asked_the_same_question(),
    "a false alarm": lambda folder: BLIND.test_one_false_alarm_ends_the_hunt(),
    "a message": lambda folder: CAGE.test_a_message_keeps_to_its_limits(),
    "a message in time": in_time,
    "a deep answer": an_attack("a deep answer"),
    "an early answer": an_attack("an answer before the question"),
    "a question back": an_attack("a question to the grader"),
    "ended": CAGE.test_a_process_that_ended_is_asked_no_more_until_the_time_begins_again,
    "left": CAGE.test_nothing_is_left_of_a_session,
    "environment": environment,
    "a word": all_words,
    "a refusal": lambda folder: (
        CAGE.test_only_too_small_a_host_excuses_a_refusal_that_names_no_budget("device")
    ),
    "an error": lambda folder: CAGE.test_errors_cross_over_as_what_they_are(),
    "taken apart": all_twists,
    "laws": CAGE.test_an_honest_planner_keeps_the_laws_from_afar,
    "pure": CAGE.test_harm_to_its_input_is_told_by_its_law,
    "given": CAGE.test_what_is_given_holds_no_planner_and_no_allocator,
    "a daemon": a_daemon,
    "processes": lambda folder: CAGE.test_no_process_is_started_or_signalled(
        CAGE.IN_CONTAINER, folder
    ),
    "a folder (landlock)": lambda folder: CAGE.test_the_teachers_folder_is_neither_read_nor_changed(
        CAGE.IN_CONTAINER, folder
    ),
    "a folder (namespaces)": lambda folder: (
        CAGE.test_the_teachers_folder_is_neither_read_nor_changed(
            CAGE.LAYERS - {"landlock"}, folder
        )
    ),
    "no cage": lambda folder: (
        CAGE.test_an_honest_planner_works_in_a_cage_and_without_and_is_said_to_be_trusted(
            {"namespaces", "landlock"}, False, folder
        )
    ),
    "memory": an_attack("memory without end"),
    "output": an_attack("output without end"),
    "delegation": an_attack("a planner of the library under another name"),
}
#: Each kind of bug once in every run; the others are variants, or take a while.
QUICK = (
    "any length of an answer is read", "any answer is the answer", "any error may be named",
    "the right arena comes behind the broken one", "orphans go elsewhere",
    "Landlock lets all be seen",
)  # fmt: skip


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=[] if bug in QUICK else [pytest.mark.slow]) for bug in BUGS],
)
def test_a_bug_breaks_its_law(bug, tmp_path, monkeypatch):
    BUGS[bug].plant(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):
        LAW[BUGS[bug].law](tmp_path)
