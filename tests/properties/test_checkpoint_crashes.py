"""Laws of checkpoint files: a crash at any moment, and anything that is altered.

A killed process leaves, under the checkpoint's name, the one before or the new one, whole. So does
a machine that loses its power, whatever it had not flushed; and once `save` has returned, the new
one is there for good, the ones before it beside it. A file of which anything has been altered, its
bytes or what the header says of them, is refused, or holds exactly what was saved.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.crash import CrashingOs
from support.directed import always

from ooctrain.errors import CheckpointError
from ooctrain.execution import checkpoint as files
from ooctrain.execution import checkpoint_file
from ooctrain.execution.checkpoint import RunState, load, read, save

NAME = "run.safetensors"
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc here")


def arrays(step):
    """Some, of which one is larger than the buffer of a file object."""
    return {"a": np.full(3000, step, np.float32), "count": np.array(step, np.int64)}


def watch_calls(patch, watch):
    """All of the system's calls that a save makes go through `watch`."""
    for module in (files, checkpoint_file):
        patch.setattr(module, "os", watch)


def step_of(folder, content, reader):
    """Which checkpoint a folder with these files has; None: none that is whole."""
    for path in folder.iterdir():
        path.unlink()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = reader(folder / NAME)
    except CheckpointError:
        return None
    assert found.arrays.keys() == arrays(0).keys()
    same = all(np.array_equal(found.arrays[n], v) for n, v in arrays(found.run.step).items())
    return found.run.step if same else None


def check_crashes(folder, saves, keep, *, links=True):
    """Each state that a crash may leave during some saves has the last checkpoint or the new one.

    Args:
        links: whether the disk knows hard links. Without them there is a moment at which the name
            is nobody's, and `load` takes the previous file.
    """
    kept, tried = folder / "kept", folder / "tried"
    kept.mkdir()
    tried.mkdir()
    watch = CrashingOs(kept, frozenset() if links else frozenset({"link"}))
    reader = read if links else load
    seen = set()
    try:
        for step in range(1, saves + 1):
            with pytest.MonkeyPatch.context() as patch:
                watch_calls(patch, watch)
                save(kept / NAME, arrays(step), RunState(step), keep=keep)
            allowed = {step - 1 or None, step}
            watch.look()
            states = {frozenset(content.items()) for content in (*watch.killed, *watch.unpowered)}
            for content in map(dict, states):
                seen.add(tuple(sorted(content)))
                assert step_of(tried, content, reader) in allowed, f"left: {sorted(content)}"
            for content in watch.at_rest():
                assert step_of(tried, content, reader) == step, "the new one can still be lost"
                kept_before = [read(p).run.step for p in files.previous_files(tried / NAME)]
                assert kept_before == list(range(step - 1, 0, -1))[: keep - 1]
            watch.killed.clear()
            watch.unpowered.clear()
    finally:
        watch.end()
    return seen


@needs_proc
@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("links", [True, False])
def test_a_crash_leaves_the_last_checkpoint_or_the_new_one(tmp_path, keep, links):
    if keep == 1 and not links:
        return  # nothing is kept under another name
    seen = check_crashes(tmp_path, 4, keep, links=links)
    assert len(seen) > 2, "no state but the first and the last was looked at"


@needs_proc
@pytest.mark.parametrize("refused", ["fsync", "replace", "open"])
def test_a_call_that_fails_leaves_the_last_checkpoint(tmp_path, refused):
    save(tmp_path / NAME, arrays(1), RunState(1))
    watch = CrashingOs(tmp_path, frozenset({refused}))
    with pytest.MonkeyPatch.context() as patch:
        watch_calls(patch, watch)
        with pytest.raises(CheckpointError):
            save(tmp_path / NAME, arrays(2), RunState(2))
    watch.end()
    assert read(tmp_path / NAME).run.step == 1
    assert not list(tmp_path.glob("*.tmp.*"))


# What is altered.

CONTENT = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(6, 12, dtype=np.float32).reshape(2, 3),
    "c": np.arange(6, dtype=np.int32),
    "d": np.zeros((0, 2), np.float32),
    "e": np.float32(3).reshape(()),
}
RUN = RunState(step=3, seed=1, history={"losses": [1.5]})
#: Types of as many bytes each.
ALIKE = [("F32", "I32"), ("F64", "I64"), ("U8", "BOOL")]
shapes = st.sampled_from(
    [[2, 3], [3, 2], [6], [1, 6], [6, 1], [2, 3, 1], [0, 2], [0], [0, 7], [], [1]]
)


def header_of(raw):
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def with_header(header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


@st.composite
def alterations(draw):
    """A function that changes a header: a shape, a type, names, places, the state, the order."""
    name, other = draw(st.sampled_from("abcde")), draw(st.sampled_from("abcde"))
    kind = draw(st.sampled_from(["shape", "type", "swap", "places", "name", "state", "order"]))
    shape, key = draw(shapes), draw(st.sampled_from(["step", "seed", "epoch"]))
    return kind, name, other, shape, key


def altered(header, kind, name, other, shape, key):
    found = {**header}
    if kind == "shape":
        found[name] = {**found[name], "shape": shape}
    elif kind == "type":
        pairs = {a: b for pair in ALIKE for a, b in (pair, pair[::-1])}
        found[name] = {**found[name], "dtype": pairs[found[name]["dtype"]]}
    elif kind == "swap":
        found[name], found[other] = found[other], found[name]
    elif kind == "places":
        a, b = found[name]["data_offsets"], found[other]["data_offsets"]
        found[name], found[other] = (
            {**found[name], "data_offsets": b}, {**found[other], "data_offsets": a},
        )  # fmt: skip
    elif kind == "name":
        found[f"{name}x"] = found.pop(name)
    elif kind == "state":
        state = json.loads(found["__metadata__"]["ooctrain"])
        text = json.dumps({**state, key: state[key] + 1}, sort_keys=True)
        found["__metadata__"] = {**found["__metadata__"], "ooctrain": text}
    else:
        found = dict(reversed(found.items()))
    return found


def check_altered(path, what):
    """The file is refused, or read as it was saved."""
    save(path, CONTENT, RUN, keep=1)
    header, data = header_of(path.read_bytes())
    path.write_bytes(with_header(altered(header, *what), data))
    try:
        found = read(path)
    except CheckpointError:
        return
    assert found.run == RUN
    assert found.arrays.keys() == CONTENT.keys()
    for name, array in CONTENT.items():
        same = found.arrays[name].dtype == array.dtype and found.arrays[name].shape == array.shape
        assert same, f"{name} came back as {found.arrays[name].dtype}{found.arrays[name].shape}"
        assert found.arrays[name].tobytes() == array.tobytes()


#: One of each kind, on which some part of the checksum alone tells.
ALTERED = [
    ("shape", "a", "a", [3, 2], "step"), ("shape", "d", "a", [0, 7], "step"),
    ("shape", "e", "a", [1], "step"), ("type", "c", "a", [], "step"),
    ("swap", "a", "b", [], "step"), ("places", "a", "b", [], "step"),
    ("name", "b", "a", [], "step"), ("state", "a", "a", [], "step"),
    ("state", "a", "a", [], "seed"), ("order", "a", "a", [], "step"),
]  # fmt: skip


@settings(max_examples=80)
@given(alterations())
@always((what,) for what in ALTERED)
def test_an_altered_header_is_refused_or_changes_nothing(tmp_path_factory, what):
    check_altered(tmp_path_factory.mktemp("altered") / NAME, what)
