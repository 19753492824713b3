"""The laws of rough machines bite: with each planted bug one of them is broken."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from properties import test_foreign_json as JSON
from unit import test_checkpoint as CHECKPOINT
from unit import test_cli_train as TRAIN
from unit import test_data as DATA
from unit import test_kernel_cache as CACHE
from unit import test_optim as OPTIM
from zoo import rough_bugs as ZOO
from zoo.planting import plant

pytestmark = pytest.mark.usefixtures("default_signals")


class Law:
    """What laws ask pytest for."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
        self.folder, self.patch, self.capfd = folder, patch, capfd

    def new_folder(self) -> Path:
        path = self.folder / str(len(list(self.folder.iterdir())))
        path.mkdir()
        return path


def of_code(law: Law) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as a traceback would be
        for kind in ("truncated", "a bit in the code", "unreadable", "another pickle"):
            CACHE.test_damaged_code_is_never_run(law.new_folder(), kind)


def of_images(law: Law) -> None:
    for size in ((8193, 8192), (1_000_000, 1)):
        DATA.test_an_image_bomb_is_refused_before_it_is_decoded(
            law.new_folder(), law.patch, size
        )  # fmt: skip


def of_words(law: Law) -> None:
    JSON.test_brackets_in_words_are_words('"' + "[" * 400 + '"')


def of_updates(law: Law) -> None:
    for count in ("x", True):
        CHECKPOINT.test_how_often_a_parameter_was_updated_is_a_count(law.new_folder(), count)


def of_fields(law: Law) -> None:
    for field in CHECKPOINT.STATE:
        CHECKPOINT.test_a_field_of_another_type_is_a_broken_checkpoint(
            law.new_folder(), field, [[1]]
        )  # fmt: skip


def of_the_way(law: Law) -> None:
    CHECKPOINT.test_a_folder_in_the_way_is_found_before_anything_is_written(
        law.new_folder(), "run.1"
    )  # fmt: skip


def of_signals(law: Law) -> None:
    law.patch.setattr(TRAIN, "stop_on_signal", ZOO.training.stop_on_signal)
    # What ends the process where nobody hears it shall only be noticed.
    before = {number: signal.signal(number, notice) for number in TRAIN.STOPPING[1:]}
    try:
        TRAIN.test_a_signal_asks_once_and_ctrl_c_after_it_stops_at_once(law.capfd)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def notice(number: int, _frame: object) -> None:
    raise AssertionError(f"nobody hears {signal.Signals(number).name}")


LAWS: dict[str, Callable[[Law], None]] = {
    "code": of_code,
    "sources": lambda law: CACHE.test_code_of_other_sources_or_versions_is_not_taken(
        law.new_folder()
    ),
    "depth": lambda law: JSON.test_what_is_nested_too_deep_is_no_json("[" * 100_000),
    "words": of_words,
    "updates": of_updates,
    "fields": of_fields,
    "in the way": of_the_way,
    "images": of_images,
    "norm": lambda law: (
        OPTIM.test_clipping_by_a_norm_that_is_no_finite_number_is_as_in_torch()
    ),
    "signals": of_signals,
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_without_a_bug_the_law_holds(law, tmp_path, monkeypatch, capfd):
    assert LAWS[law](Law(tmp_path, monkeypatch, capfd)) is None


@pytest.mark.parametrize("bug", ZOO.BUGS)
def test_bug(bug, tmp_path, monkeypatch, capfd):
    law, *piece = ZOO.BUGS[bug]
    plant(monkeypatch, *piece)
    with pytest.raises((Exception, pytest.fail.Exception)):
        LAWS[law](Law(tmp_path, monkeypatch, capfd))
