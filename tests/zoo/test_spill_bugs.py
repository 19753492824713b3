"""The laws of the slab on a disk bite: each planted bug still copies a piece, and breaks a law."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from properties import test_spill_laws as LAWS
from support.spilling import Anywhere
from unit import test_spill as SPILL
from zoo import spill_bugs as ZOO

from ooctrain.devices.spill import FileCalls
from ooctrain.errors import ConfigError, TransferError


def every_form_of_copy(folder):
    """Each file system, each list of copies that is always tried."""
    for kind in SPILL.KINDS:
        for moves in SPILL.COPIES_OF_ALL_FORMS:
            SPILL.copy_and_compare(SPILL.opened(folder, kind()), moves).close()


def nothing_stays_cached(folder):
    for kind in (SPILL.Anywhere, SPILL.Buffered, SPILL.SILENT):
        SPILL.test_nothing_of_the_file_stays_in_the_page_cache(folder, kind)


def what_was_said_is_written(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileCalls, "file_system", lambda self, folder: 0xEF53)
        LAWS.test_what_a_step_writes_is_what_was_said(str(folder))


def on_a_disk(test):
    def run(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileCalls, "file_system", lambda self, folder: 0xEF53)
            test(str(folder), patch)

    return run


def with_patch(test):
    def run(folder):
        with pytest.MonkeyPatch.context() as patch:
            test(folder, patch)

    return run


CHECKS = {
    "again": on_a_disk(LAWS.test_a_trainer_that_has_its_space_needs_no_block_more),
    "cache": nothing_stays_cached,
    "copies": every_form_of_copy,
    "done": SPILL.test_a_copy_is_done_when_all_its_pieces_are,
    "ends": SPILL.test_the_file_is_whole_blocks_and_never_grows,
    "fails": lambda folder: SPILL.test_a_failing_disk_is_an_error_of_the_copy(
        folder, errno.EIO, SPILL.SIZE
    ),
    "growth": on_a_disk(SPILL.test_growth_that_the_disk_refuses_leaves_the_space_to_others),
    "killed": lambda folder: SPILL.test_a_file_without_a_name_leaves_none(folder),
    "late": SPILL.test_a_write_that_the_disk_refuses_later_is_an_error_too,
    "link": lambda _: SPILL.test_a_disk_is_one_link_unless_reading_beside_writing_is_faster(),
    "memory": with_patch(SPILL.test_memory_under_the_name_of_a_folder_is_refused),
    "neighbours": lambda folder: SPILL.neighbours_at_once(folder, 40),
    "outside": SPILL.test_a_copy_outside_the_slab_is_refused,
    "rate": lambda _: SPILL.test_the_plan_s_link_is_the_disk_at_most_as_fast_as_asked(),
    "reserved": SPILL.test_the_space_is_taken_at_the_start,
    "written": what_was_said_is_written,
}


@pytest.mark.parametrize("law", CHECKS)
@pytest.mark.slow
def test_the_library_passes(law, tmp_path):
    assert CHECKS[law](tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO.BUGS)
def test_each_bug_copies_a_little_and_breaks_a_law(name, tmp_path, monkeypatch):
    monkeypatch.setattr(FileCalls, "file_system", lambda self, folder: 0xEF53)
    ZOO.plant(monkeypatch, name)
    slab = SPILL.opened(tmp_path, Anywhere(), SPILL.PIECE)
    slab.put(0, np.arange(SPILL.PIECE, dtype=np.uint8))
    assert (slab.get(0, SPILL.PIECE) == np.arange(SPILL.PIECE, dtype=np.uint8)).all()
    slab.close()
    folder = tmp_path / "law"
    folder.mkdir()
    with pytest.raises((AssertionError, pytest.fail.Exception, TransferError, ConfigError)):
        CHECKS[ZOO.BUGS[name][-1]](folder)
