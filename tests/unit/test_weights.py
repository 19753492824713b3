"""Files of weights: what goes in comes out, other tools' types too, and all else is refused."""

from __future__ import annotations

import os
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import ooctrain as oc
from ooctrain.cli import main
from ooctrain.errors import OoctrainError
from ooctrain.execution.checkpoint import RunState
from ooctrain.execution.checkpoint import save as save_run

NAMES = st.text("ab.é1", min_size=1, max_size=6)
SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)
TYPES = ("float32", "float64", "int64", "int32", "uint8", "bool")
BATCH = ["--data", "digits", "--batch", "64", "--steps", "1"]


@given(st.dictionaries(NAMES, st.tuples(SHAPES, st.sampled_from(TYPES)), max_size=4))
def test_what_goes_in_comes_out(tmp_path_factory, described):
    path = tmp_path_factory.mktemp("w") / "w.safetensors"
    rng = np.random.default_rng(0)
    arrays = {n: rng.integers(0, 2, shape).astype(kind) for n, (shape, kind) in described.items()}
    oc.save(arrays, path)
    for found in (oc.load(path), load_file(path)):
        assert set(found) == set(arrays)
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found[name], array)


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=5))
def test_half_precision_becomes_float32_with_the_same_values(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("w") / "w.safetensors"
    upper = np.float32(numbers).view(np.uint32) >> 16
    with np.errstate(over="ignore"):
        half = np.float32(numbers).astype(np.float16)
    save_file({"h": half, "b": upper.astype(np.uint16)}, path)
    path.write_bytes(_as_bfloat16(path.read_bytes()))
    found = oc.load(path)
    assert found["h"].dtype == found["b"].dtype == np.float32
    np.testing.assert_array_equal(found["h"], half.astype(np.float32))
    np.testing.assert_array_equal(found["b"], (upper << 16).view(np.float32))


def _as_bfloat16(content: bytes) -> bytes:
    """The file with its type U16 called BF16; the header is one longer, and padded with spaces."""
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].replace(b'"U16"', b'"BF16"')
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def test_a_run_begins_with_the_weights_of_another(tmp_path):
    path, again = tmp_path / "w.safetensors", tmp_path / "again.safetensors"
    assert main(["train", "lenet", *BATCH, "--save-weights", str(path)]) == 0
    model = oc.models.build("lenet", stem="cifar")
    model.load_state_dict(oc.load(path))
    assert set(load_file(path)) == set(model.state_dict())
    assert main(["train", "lenet", *BATCH, "--lr", "1e-30", "--weights", str(path),
                 "--save-weights", str(again)]) == 0  # fmt: skip
    for name, array in oc.load(path).items():
        np.testing.assert_array_equal(oc.load(again)[name], array)


def _pickled(path):
    path.write_bytes(pickle.dumps({"w": [1.0]}))


def _zipped(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")


def _cut(path):
    oc.save({"w": np.ones(100, np.float32)}, path)
    path.write_bytes(path.read_bytes()[:-1])


def _run(path):
    save_run(path, {"model/w": np.ones(2, np.float32)}, RunState(1))


#: {what is there: (how it came there, code)}
NO_WEIGHTS = {
    "nothing": (lambda path: None, "OOC-311"), "a pickle": (_pickled, "OOC-112"),
    "PyTorch's archive": (_zipped, "OOC-112"), "the half of a file": (_cut, "OOC-310"),
    "a text": (lambda path: path.write_text("weights"), "OOC-310"),
    "an empty file": (lambda path: path.write_bytes(b""), "OOC-310"),
    "a folder": (os.mkdir, "OOC-311"), "the checkpoint of a run": (_run, "OOC-313"),
}  # fmt: skip


@pytest.mark.parametrize("what", NO_WEIGHTS)
def test_what_is_no_file_of_weights_is_refused(what, tmp_path, capsys):
    make, code = NO_WEIGHTS[what]
    path = tmp_path / "w.pth"
    make(path)
    with pytest.raises(OoctrainError) as refusal:
        oc.load(path)
    assert refusal.value.code == code
    assert main(["train", "lenet", *BATCH, "--weights", str(path)]) != 0
    assert code in capsys.readouterr().err


@pytest.mark.parametrize("value", [None, "w", [1.0], {1: np.ones(2)}, {"w": "text"}, {"w": None}])
def test_what_is_no_state_dict_is_refused_and_nothing_is_written(value, tmp_path):
    path = tmp_path / "w.safetensors"
    oc.save({"w": np.ones(2, np.float32)}, path)
    before = path.read_bytes()
    with pytest.raises(OoctrainError):
        oc.save(value, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_place_that_cannot_be_written_is_found_before_the_first_step(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "w.safetensors"
    assert main(["train", "lenet", *BATCH, "--save-weights", str(path)]) != 0
    shown = capsys.readouterr()
    assert "loss" not in shown.out
    assert main(["train", "lenet", *BATCH, "--weights", "w", "--resume", "w"]) != 0
    assert "OOC-106" in capsys.readouterr().err
