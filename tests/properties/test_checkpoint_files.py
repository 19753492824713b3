"""Laws of checkpoint files beside each other: what comes back, which one is taken, what is left.

Whatever is saved comes back as it was. Of several checkpoints `load` takes the newest whole one,
whichever are damaged, and says what is wrong with the first. And nobody else's file is read,
renamed or removed, however alike its name.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from support.directed import always

from ooctrain.errors import CheckpointError
from ooctrain.execution import checkpoint as files
from ooctrain.execution.checkpoint import RunState

NAME = "run.safetensors"
TYPES = ["float32", "float64", "int64", "int32", "uint8", "bool"]
names = st.text("abc/.:é", min_size=1, max_size=5)
numbers = st.integers(0, 2**40)
arrays = arrays_of.arrays(
    st.sampled_from(TYPES), arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
)
states = st.builds(
    RunState, step=numbers, epoch=numbers, seed=numbers,
    data=st.dictionaries(names, numbers, max_size=2),
    schedule=st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False), max_size=2),
    config=st.dictionaries(names, names | st.none() | st.booleans(), max_size=2),
    history=st.dictionaries(names, st.lists(numbers, max_size=2), max_size=2),
    updates=st.dictionaries(names, numbers, max_size=2),
)  # fmt: skip
SAVED = [
    ({}, RunState(0), False),
    ({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, RunState(3, updates={"w": 2}), True),
    (
        {"a": np.zeros((0, 2), np.float32), "b": np.array(True)},
        RunState(1, config={"a": None}),
        False,
    ),
]


@settings(max_examples=60)
@given(st.dictionaries(names, arrays, max_size=3), states, st.booleans())
@always(SAVED)
def test_what_is_saved_comes_back(tmp_path_factory, content, state, turned):
    check_saved(tmp_path_factory.mktemp("saved") / "deep" / "er" / NAME, content, state, turned)


def check_saved(path, content, state, turned):
    """Arrays that lie in memory as they like; a file of version 1 if nothing else is needed."""
    lying = {n: a.T.copy().T if turned else a for n, a in content.items()}
    files.save(path, lying, state)
    found = files.load(path)
    assert found.path == path
    assert found.run == state
    assert found.arrays.keys() == content.keys()
    for name, array in content.items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (array.dtype, array.shape)
        assert found.arrays[name].tobytes() == array.tobytes()
    assert [p.name for p in path.parent.iterdir()] == [NAME]
    raw = path.read_bytes()
    assert (b'\\"version\\": 1' in raw) == (not state.updates)
    assert (b'\\"updates\\"' in raw) == bool(state.updates), "version 1 does not know it"
    files.check_arrays(found, content)


def test_an_array_of_another_shape_or_type_is_foreign(tmp_path):
    check_foreign_arrays(tmp_path)


def check_foreign_arrays(folder):
    """What a model has not just so, by name, shape and type."""
    mine = {"w": np.zeros((2, 3), np.float32)}
    for other in (np.zeros((2, 2), np.float32), np.zeros((2, 3), np.int32)):
        files.save(folder / NAME, {"w": other}, RunState(1))
        with pytest.raises(CheckpointError, match="'w' is") as caught:
            files.check_arrays(files.load(folder / NAME), mine)
        assert caught.value.code == "OOC-313"


# Several files.

#: Names that are alike, and nobody's previous file.
FOREIGN = [
    "run.safetensors.old", "run.safetensors.1.old", "run.safetensors.x.1", "arun.safetensors.1",
    "run.safetensors.tmp.x.y", "run.safetensors.tmp", "run.safetensors.-1",
    "other.safetensors.tmp.1.2", "run.safetensors.+2", "run.safetensors.99x",
]  # fmt: skip
DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x55"),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}
#: (how many are kept, {how old a file is: what is done to it}).
DAMAGED = [
    (3, {}), (3, {0: "cut"}), (3, {0: "gone"}), (3, {0: "gone", 1: "flipped"}), (2, {1: "empty"}),
    (12, {0: "cut", 1: "gone", 2: "empty"}), (12, dict.fromkeys(range(10), "gone")),
    (2, {0: "cut", 1: "flipped"}), (2, {0: "gone", 1: "gone"}), (1, {0: "flipped"}),
]  # fmt: skip


@settings(max_examples=10)
@given(st.integers(1, 5), st.dictionaries(st.integers(0, 4), st.sampled_from([*DAMAGE])))
@always(DAMAGED)
def test_the_newest_whole_checkpoint_is_taken(tmp_path_factory, keep, damaged):
    check_newest(tmp_path_factory.mktemp("several"), keep, damaged)


def test_letters_of_patterns_are_letters_in_a_name(tmp_path):
    for number, name in enumerate(("run[1]", "*", "a?b", "[!a]*")):
        (tmp_path / str(number)).mkdir()
        check_newest(tmp_path / str(number), 3, {0: "cut", 1: "gone"}, name)


def test_saving_leaves_no_file_open(tmp_path):
    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc here")
    before = len(os.listdir("/proc/self/fd"))
    for step in range(5):
        files.save(tmp_path / NAME, {}, RunState(step))
    # What an earlier test has left open may be closed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before


def check_newest(folder, keep, damaged, own_name=NAME):
    """The file of step `last - age` is `age` old."""
    path, last = folder / own_name, keep + 2
    for name in FOREIGN:
        (folder / name).write_text(name)
    for step in range(1, last + 1):
        files.save(path, {"w": np.full(2, step, np.float32)}, RunState(step), keep=keep)
    for age, how in damaged.items():
        if age < keep:
            DAMAGE[how](path if age == 0 else folder / f"{own_name}.{age}")
    whole = [age for age in range(keep) if age not in damaged]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if whole:
            found = files.load(path)
            assert found.run.step == found.arrays["w"][0] == last - whole[0]
        else:
            with pytest.raises(CheckpointError) as caught:
                files.load(path)
            # The first one is what was asked for, so what is wrong with it is said.
            assert str(path) in caught.value.what
            assert f"{own_name}." not in caught.value.what
            assert caught.value.code == ("OOC-311" if damaged[0] == "gone" else "OOC-310")
    assert len(told) == (1 if whole and whole[0] else 0)
    assert not told or f"step {last - whole[0]}" in str(told[0].message)
    assert all((folder / name).read_text() == name for name in FOREIGN), "a foreign file changed"
