"""An image of a folder stays on its side: training or test, whatever is added, removed or renamed.

The side is a hash of the path below the folder of the classes. So it is the same on every machine,
for every spelling of an accent, and in every version of Python and of this library (`KNOWN`).
"""

from __future__ import annotations

import shutil
import unicodedata
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooctrain import data
from ooctrain.data.folder import is_for_testing
from ooctrain.errors import DataFormatError

pillow = pytest.importorskip("PIL.Image", reason="Pillow (the extra data) is not installed")

#: {path below the folder of the classes: whether it is for testing}; never to be changed.
KNOWN = {
    "a/00.png": False, "a/01.png": True, "a/02.png": False, "b/00.png": False, "cat/1.jpg": False,
    "Cat/1.jpg": False, "caf\u00e9/1.jpg": False, "cat/sub/3.jpg": True,
}  # fmt: skip


def put(top: Path, *below: str) -> None:
    for one in below:
        (top / one).parent.mkdir(parents=True, exist_ok=True)
        pillow.new("L", (4, 4)).save(top / one)


def dealt(top: Path) -> tuple[set[str], set[str]]:
    """The paths below `top` that are trained on, and those that are tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [data.image_folder(top, train, 4).files for train in (True, False)]
    train, test = ({path.relative_to(top).as_posix() for path, _ in part} for part in parts)
    return train, test


def test_sides_are_those_of_always():
    assert {below: is_for_testing(below) for below in KNOWN} == KNOWN


@given(st.text("abcé/x0", min_size=1, max_size=12))
def test_spellings_of_an_accent_do_not_matter(below):
    sides = {is_for_testing(unicodedata.normalize(f, below)) for f in ("NFC", "NFD")}
    assert len(sides) == 1


def test_classes_are_called_alike_in_either_spelling(tmp_path):
    for form, part in (("NFC", "train"), ("NFD", "val")):
        name = unicodedata.normalize(form, "caf\u00e9")
        put(tmp_path, f"{part}/{name}/1.png", f"{part}/bar/1.png")
    for train in (True, False):
        found = data.image_folder(tmp_path, train, 4)
        assert found.classes == ["bar", "caf\u00e9"]
        assert [label for _, label in found.files] == [0, 1]
        assert len(found[1][0]) == 3


def test_about_a_fifth_of_each_class_is_for_testing():
    for name in ("cat", "dog", "a longer name"):
        tested = sum(is_for_testing(f"{name}/{i}.png") for i in range(5000))
        assert 900 < tested < 1100


def test_what_is_added_or_removed_moves_nothing_else(tmp_path):
    top = tmp_path / "top"
    first = [f"{name}/{i:02}.png" for name in "bc" for i in range(30)]
    put(top, *first)
    train, test = dealt(top)
    assert train | test == set(first)
    assert not train & test
    put(top, "b/000.png", "c/new/x.png", *(f"a/{i}.png" for i in range(10)))  # and a class more
    more_train, more_test = dealt(top)
    assert train <= more_train
    assert test <= more_test
    for i in range(0, 30, 3):
        (top / f"b/{i:02}.png").unlink()
    shutil.rmtree(top / "a")
    less_train, less_test = dealt(top)
    assert less_train <= more_train
    assert less_test <= more_test
    top.rename(tmp_path / "moved")
    assert dealt(tmp_path / "moved") == (less_train, less_test)


def side(names: list[str], testing: bool) -> list[str]:
    """Of these paths those on one side."""
    return [below for below in names if is_for_testing(below) == testing]


def test_a_class_without_an_image_on_one_side_is_named_in_one_line(tmp_path):
    many = [f"{name}/{i}.png" for name in ("ape", "bee") for i in range(30)]
    put(tmp_path, *many, *side([f"cow/{i}.png" for i in range(30)], False)[:2],
        *side([f"dog/{i}.png" for i in range(60)], True)[:2])  # fmt: skip
    for train, lacking in ((True, "dog"), (False, "cow")):
        with pytest.warns(UserWarning, match=f"'{lacking}'") as told:
            part = data.image_folder(tmp_path, train, 4)
        assert len(told) == 1
        assert "\n" not in str(told[0].message)
        assert part.classes == ["ape", "bee", "cow", "dog"]
        assert len({label for _, label in part.files}) == 3


def test_many_such_classes_are_one_line(tmp_path):
    put(tmp_path, *(side([f"{n:03}/{i}.png" for i in range(30)], False)[0] for n in range(100)))
    with pytest.warns(UserWarning, match="and 95 more") as told:
        assert len(data.image_folder(tmp_path, False, 4)) == 0
    assert len(str(told[0].message)) < 400


def test_nothing_to_train_on_is_an_error(tmp_path):
    put(tmp_path, side([f"ape/{i}.png" for i in range(30)], True)[0])
    with pytest.raises(DataFormatError) as found:
        data.image_folder(tmp_path, True, 4)
    assert found.value.path == str(tmp_path)


# --- folders that are parts already


@pytest.mark.parametrize(
    ("train", "test"), [("train", "val"), ("train", "valid"), ("Train", "Test"),
                        ("Training", "Testing"), ("train", "validation")],
)  # fmt: skip
def test_parts_are_found_under_their_usual_names(train, test, tmp_path):
    put(tmp_path, *(f"{train}/{name}/{i}.png" for name in "ab" for i in range(5)))
    put(tmp_path, *(f"{test}/{name}/{i}.png" for name in "ab" for i in range(3)))
    assert [len(part) for part in dealt(tmp_path)] == [10, 6]
    assert data.image_folder(tmp_path, True, 4).classes == ["a", "b"]


def test_a_folder_train_alone_is_trained_on_and_nothing_is_tested(tmp_path):
    put(tmp_path, *(f"train/{name}/{i}.png" for name in "ab" for i in range(5)))
    assert len(data.image_folder(tmp_path, True, 4)) == 10
    with pytest.warns(UserWarning, match="val") as told:
        assert len(data.image_folder(tmp_path, False, 4)) == 0
    assert len(told) == 1


def test_train_may_be_a_thing_that_is_told_from_others(tmp_path):
    put(tmp_path, *(f"{name}/{i}.png" for name in ("bus", "train") for i in range(30)))
    assert data.image_folder(tmp_path, True, 4).classes == ["bus", "train"]


def test_a_folder_train_without_classes_is_named(tmp_path):
    put(tmp_path, "train/1.png", "val/1.png")
    with pytest.raises(DataFormatError) as found:
        data.image_folder(tmp_path, True, 4)
    assert found.value.path == str(tmp_path / "train")


# --- what a data set is known by


def test_a_fingerprint_sees_what_is_trained_on_and_not_where_it_lies(tmp_path):
    top = tmp_path / "top"
    put(top, *(f"{name}/{i}.png" for name in "ab" for i in range(20)))
    seen = [fingerprint(top)]
    top = top.rename(tmp_path / "moved")
    assert fingerprint(top) == seen[0], "another place"
    for change in (
        lambda: put(top, "a/new.png"),
        lambda: (top / "a/0.png").rename(top / "a/other.png"),
        lambda: (top / "a/1.png").rename(top / "b/moved.png"),
        lambda: pillow.new("RGB", (9, 9)).save(top / "a/2.png"),
        lambda: (top / "a/3.png").unlink(),
    ):
        change()
        seen.append(fingerprint(top))
    assert len(set(seen)) == len(seen)


def fingerprint(top: Path) -> tuple[str, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(data.identity_of(data.image_folder(top, train, 4)).fingerprint
                     for train in (True, False))  # fmt: skip


def test_arrays_are_known_by_their_values():
    one, other = data.load("digits"), data.load("digits", train=False)
    known = data.identity_of(one)
    assert known == data.identity_of(data.load("digits"))
    assert known != data.identity_of(other)
    assert known.count == len(one)
