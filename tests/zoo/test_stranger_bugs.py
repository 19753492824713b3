"""The tables of what users bring bite: each planted bug breaks its law, which holds without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from strangers import test_arguments_of_any_type as ARGUMENTS
from strangers import test_images_as_bytes as BYTES
from strangers import test_images_of_a_folder as IMAGES
from strangers import test_operators_of_python as OPERATORS
from strangers import test_paths_as_people_write_them as PATHS
from strangers import test_python_state as PYTHON
from strangers import test_schedules_that_count_steps as SCHEDULES
from strangers import test_split_of_a_folder as SPLIT
from strangers import test_state_dicts_that_people_have as STATES
from strangers import test_targets as TARGETS
from unit import test_charts as CHARTS
from zoo.stranger_bugs import BEST, BUGS, CURVES, SIDES

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.errors import OoctrainError


def the_law(name: str, tmp_path: Path) -> None:
    if name in IMAGES.SHOWN:
        IMAGES.test_an_image_is_what_a_viewer_shows(name, tmp_path)
    elif name in IMAGES.REFUSED_WHEN_READ:
        IMAGES.test_a_fault_in_the_pixels_names_the_file(name, tmp_path)
    elif name in IMAGES.LITTER:
        IMAGES.test_hidden_files_and_folders_are_no_data(name, True, tmp_path)
    else:
        assert name in LAWS, "a bug names a law that is not there"
        LAWS[name](tmp_path)


LAWS = {
    SIDES: lambda _: SPLIT.test_sides_are_those_of_always(),
    CURVES: lambda _: (
        CHARTS.test_curves_can_be_told_apart_without_colours_and_the_legend_has_their_signs()
    ),
    "moves nothing": SPLIT.test_what_is_added_or_removed_moves_nothing_else,
    "links": lambda folder: _in(folder, PATHS.test_a_link_stays_and_what_it_points_to_is_written),
    "rights": lambda folder: PATHS.test_access_rights_are_kept(0o640, folder),
    "bytes": lambda _: BYTES.test_bytes_come_through("TensorDataset"),
    "files": lambda _: PATHS.test_so_are_those_of_a_call(
        lambda name: oc.plan(oc.trace(nn.Linear(2, 2), (1, 2)), "50%", planner=name), None
    ),
    "mixup": lambda _: TARGETS.test_several_targets_are_told_what_to_write(
        "two", lambda o, t: F.cross_entropy(o, t[0]) + F.cross_entropy(o, t[1])
    ),
    "wrapped": lambda _: BYTES.test_bytes_come_through_data_sets_of_ones_own("a wrapper", 1),
    "subclass": lambda _: BYTES.test_bytes_come_through_data_sets_of_ones_own("a subclass", 0),
    "in place": lambda _: OPERATORS.test_in_place_every_name_of_the_tensor_has_the_result(
        "imul", "a tensor"
    ),
    "first tutorial": lambda _: (
        OPERATORS.test_a_parameter_is_changed_only_where_no_gradient_is_recorded()
    ),
    "prefix": lambda _: STATES.test_it_is_refused_and_nothing_is_changed(
        "a prefix, and a key too few", False
    ),
    BEST: lambda _: SCHEDULES.test_a_plateau_remembers_an_infinite_best("max", "rel", 2, 1),
    "waits": lambda _: (
        SCHEDULES.test_a_cycle_that_waits_in_a_state_of_pytorch_leaves_the_momentum_alone()
    ),
    "numbers of NumPy": lambda _: ARGUMENTS.test_a_number_of_numpy_counts_as_the_number_that_it_is(
        float
    ),
    "batch_size": lambda _: ARGUMENTS.test_the_argument_is_named(
        lambda: oc.data.DataLoader(ARGUMENTS.samples(), True), "batch_size"
    ),
    "mistaken": lambda _: ARGUMENTS.test_what_is_mistaken_for_another_is_told_what_to_give(
        "a loss's class"
    ),
    "cached": lambda _: PYTHON.test_what_a_model_holds_and_reads_is_seen("a function with a cache"),
    "fit": lambda _: SCHEDULES.test_fit_steps_a_cycle_once_a_step(SCHEDULES.cycle(6)),
}


def _in(folder: Path, law) -> None:
    """A law that works in the folder in which it is, with a home in another."""
    (folder / "home").mkdir()
    (folder / "here").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "here")
        law(folder / "home")


@pytest.mark.parametrize("name", sorted({law for law, _ in BUGS.values()}))
def test_the_right_ones_pass(name, tmp_path):
    the_law(name, tmp_path)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_breaks_the_law(name, monkeypatch, tmp_path):
    law, plant = BUGS[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, OoctrainError, pytest.fail.Exception)):
        the_law(law, tmp_path)
