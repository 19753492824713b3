"""Checkpoints: whole or absent, checked to the bit, with the previous one as a stand-in."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.quick import quick

from ooctrain.errors import CheckpointError
from ooctrain.execution.checkpoint import (
    RunState,
    check_arrays,
    check_config,
    expect_writable,
    load,
    only_writer,
    previous_files,
    read,
    save,
)
from ooctrain.execution.checkpoint_file import write

RUN = RunState(
    step=12, epoch=2, seed=7, data={"epoch": 2, "position": 3}, schedule={"last": 0.1},
    config={"model": "resnet18"}, history={"losses": [2.5, 1.25]},
)  # fmt: skip


def arrays(scale: float = 1.0) -> dict[str, np.ndarray]:
    return {
        "model/conv.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2) * scale,
        "model/steps": np.array(5, np.int64),
        "optimizer/empty": np.zeros((0, 3), np.float32),
        "optimizer/transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    }


def assert_same(have, want):
    assert sorted(have) == sorted(want)
    for name, array in want.items():
        assert have[name].dtype == array.dtype
        assert have[name].shape == array.shape
        assert have[name].tobytes() == array.tobytes()


def test_arrays_and_state_come_back_as_they_were(tmp_path):
    path = tmp_path / "new" / "run.safetensors"
    save(path, arrays(), RUN)
    checkpoint = load(path)
    assert_same(checkpoint.arrays, arrays())
    assert checkpoint.run == RUN
    assert os.listdir(path.parent) == ["run.safetensors"]


def test_threads_that_read_at_once_get_whole_values(tmp_path):
    """The file has one position; eight threads read by turns what lies apart."""
    path, values = tmp_path / "a.safetensors", {
        str(number): np.full(1000, number, np.float32) for number in range(40)
    }  # fmt: skip
    save(path, values, RUN)
    found = load(path).arrays
    with ThreadPoolExecutor(8) as pool:
        for read in pool.map(lambda _: dict(found), range(40)):
            assert_same(read, values)


def test_other_readers_of_safetensors_can_read_it(tmp_path):
    from safetensors.numpy import load_file

    save(tmp_path / "a.safetensors", arrays(), RUN)
    assert_same(load_file(tmp_path / "a.safetensors"), arrays())


def test_the_file_has_the_mode_of_any_new_file(tmp_path):
    save(tmp_path / "a", arrays(), RUN)
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_the_last_files_are_kept_and_no_more(tmp_path):
    path = tmp_path / "run.safetensors"
    for step in range(5):
        save(path, arrays(), RunState(step), keep=3)
    assert [p.name for p in previous_files(path)] == ["run.safetensors.1", "run.safetensors.2"]
    assert [read(p).run.step for p in (path, *previous_files(path))] == [4, 3, 2]
    save(path, arrays(), RunState(5), keep=1)
    assert os.listdir(tmp_path) == ["run.safetensors"]


# Each byte has its turn with one of its bits; `make test-all` flips all eight.
@pytest.mark.parametrize("bits", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_every_single_flipped_bit_is_noticed(bits, tmp_path):
    path = tmp_path / "run.safetensors"
    save(path, {"w": np.ones(2, np.float32)}, RunState(1), keep=1)
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in range(position, position + bits):
            altered = bytearray(whole)
            altered[position] ^= 1 << bit % 8
            path.write_bytes(altered)
            with pytest.raises(CheckpointError):
                read(path)


def test_every_truncation_and_appendix_is_noticed(tmp_path):
    path = tmp_path / "run.safetensors"
    save(path, {"w": np.ones(2, np.float32)}, RunState(1), keep=1)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError):
        read(path)


@given(st.binary(max_size=200))
def test_rubbish_is_a_checkpoint_error(tmp_path_factory, rubbish):
    path = tmp_path_factory.mktemp("rubbish") / "x.safetensors"
    path.write_bytes(rubbish)
    with pytest.raises(CheckpointError):
        read(path)


def test_the_previous_file_stands_in_for_a_broken_one_and_both_are_named(tmp_path):
    path = tmp_path / "run.safetensors"
    save(path, arrays(), RunState(1))
    save(path, arrays(2.0), RunState(2))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(
        UserWarning, match=r"run\.safetensors cannot be used.*run\.safetensors\.1, step 1"
    ) as warned:
        checkpoint = load(path)
    assert warned[0].filename == __file__  # at the line that loads it
    assert_same(checkpoint.arrays, arrays())
    assert checkpoint.run.step == 1


def test_a_broken_file_names_the_one_before_it_or_says_that_there_is_none(tmp_path):
    path = tmp_path / "run.safetensors"
    path.write_bytes(b"rubbish")
    with pytest.raises(CheckpointError, match=re.escape(f"there is no {path}.1")):
        read(path)
    (tmp_path / "run.safetensors.1").write_bytes(b"older")
    with pytest.raises(CheckpointError, match=re.escape(f"--resume {path}.1")):
        read(path)


def test_no_checkpoint_at_all(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint") as caught:
        load(tmp_path / "none")
    assert caught.value.code == "OOC-311"


def test_a_newer_version_is_not_replaced_by_an_older_file(tmp_path):
    path = tmp_path / "run.safetensors"
    save(path, {}, RunState(1))
    save(path, {}, RunState(2))
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    state = json.loads(header["__metadata__"]["ooctrain"])
    header["__metadata__"]["ooctrain"] = json.dumps({**state, "version": 99})
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CheckpointError, match="newer version"):
        load(path)


def with_state(path, state) -> None:
    """A checkpoint with this state, its checksum right: nothing says that it is damaged."""
    found = arrays()
    ordered = {name: np.asarray(found[name], order="C") for name in sorted(found)}
    text = state if isinstance(state, str) else json.dumps(state)
    write(path, ordered, text)


STATE = {"version": 2, **asdict(RUN), "updates": {"conv.weight": 3}}
OTHER_TYPES = [None, "x", -1, 1.5, True, [], [[1]], {}, 1 << 70]


@pytest.mark.parametrize("field", STATE)
@pytest.mark.parametrize("value", OTHER_TYPES, ids=repr)
def test_a_field_of_another_type_is_a_broken_checkpoint(tmp_path, field, value):
    path = tmp_path / "run.safetensors"
    with_state(path, {**STATE, field: value})
    fits = value == {} if isinstance(STATE[field], dict) else (field, value) == ("seed", -1)
    if fits:
        assert getattr(read(path).run, field) == value
    else:
        with pytest.raises(CheckpointError, match="its state cannot be read"):
            read(path)


@pytest.mark.parametrize("count", [None, "x", -1, 1.5, True, [], 1 << 70])
def test_how_often_a_parameter_was_updated_is_a_count(tmp_path, count):
    with_state(tmp_path / "a", {**STATE, "updates": {"conv.weight": count}})
    with pytest.raises(CheckpointError, match="its state cannot be read"):
        read(tmp_path / "a")


NO_STATES = ["", "nothing", "[]", "3", "{}", "[" * 100_000, '{"a":' * 100_000]


@pytest.mark.parametrize("state", NO_STATES, ids=lambda state: state[:8])
def test_a_state_that_is_none_is_a_broken_checkpoint(tmp_path, state):
    with_state(tmp_path / "a", state)
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path / "a")
    assert caught.value.code == "OOC-310"


def test_weights_alone_are_not_a_checkpoint(tmp_path):
    from safetensors.numpy import save_file

    save_file({"w": np.ones(3, np.float32)}, tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="no checkpoint of this library"):
        read(tmp_path / "weights.safetensors")


def test_a_foreign_model_is_told_by_its_first_wrong_array(tmp_path):
    save(tmp_path / "a", arrays(), RUN)
    checkpoint = load(tmp_path / "a")
    check_arrays(checkpoint, arrays())
    wrong = {**arrays(), "model/conv.weight": np.zeros((4, 3, 2, 2), np.float32)}
    with pytest.raises(CheckpointError, match=r"'model/conv.weight' is float32\(2, 3, 2, 2\)"):
        check_arrays(checkpoint, wrong)
    with pytest.raises(CheckpointError, match="'model/aaa' is missing"):
        check_arrays(checkpoint, {**arrays(), "model/aaa": np.zeros(1)})
    fewer = {name: array for name, array in arrays().items() if name != "model/steps"}
    with pytest.raises(CheckpointError, match="holds 'model/steps'"):
        check_arrays(checkpoint, fewer)


def test_other_settings_are_told_by_name(tmp_path):
    save(tmp_path / "a", {}, RUN)
    check_config(load(tmp_path / "a"), {"model": "resnet18"})
    with pytest.raises(CheckpointError, match="another model"):
        check_config(load(tmp_path / "a"), {"model": "vgg11"})


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "quota"), (errno.EFBIG, "ulimit -f")],
)
def test_what_a_file_system_refuses_is_told_apart(tmp_path, monkeypatch, number, said):
    """Beyond a quota, df shows space that is free: it is not the disk that is full."""
    save(tmp_path / "run.safetensors", arrays(), RUN)

    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(CheckpointError, match=f"{said}.*; the last one is kept") as caught:
        save(tmp_path / "run.safetensors", arrays(), RunState(99))
    assert caught.value.code == "OOC-314"
    assert load(tmp_path / "run.safetensors").run == RUN
    assert os.listdir(tmp_path) == ["run.safetensors"]


def test_a_full_disk_is_one_clear_line_and_keeps_the_last_checkpoint(tmp_path):
    path = tmp_path / "run.safetensors"
    save(path, arrays(), RUN)
    large = {"w": np.zeros(1 << 16, np.float32)}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on the size of files fails writes half way, as a full disk does.
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"\(ulimit -f\); the last one is kept") as caught:
            save(path, large, RunState(99))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old_handler)
    assert caught.value.code == "OOC-314"
    assert load(path).run == RUN
    assert os.listdir(tmp_path) == ["run.safetensors"]


def test_a_folder_that_may_not_be_written_is_an_error_not_a_crash(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save(tmp_path / "file" / "run", {}, RUN)


@pytest.mark.parametrize("kills", quick([3, 12], 0))
def test_a_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path, kills):
    path = tmp_path / "run.safetensors"
    script = textwrap.dedent(
        f"""
        import numpy as np
        from ooctrain.execution.checkpoint import RunState, save
        step = 0
        while True:
            step += 1
            save({str(path)!r}, {{"w": np.full(300_000, step, np.float32)}}, RunState(step))
        """
    )
    delays = np.random.default_rng(0).uniform(0.0, 0.05, kills)
    for delay in delays:
        writer = subprocess.Popen([sys.executable, "-c", script])
        while not path.exists():
            time.sleep(0.005)
        time.sleep(0.25 + delay)  # the interpreter has started, and some files have been written
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        checkpoint = read(path)
        assert (checkpoint.arrays["w"] == checkpoint.run.step).all()


@pytest.mark.parametrize("name", ["run", "new/folder/run"])
def test_what_can_be_written_is_left_as_it_was(tmp_path, name):
    path = tmp_path / name
    expect_writable(path)
    assert not path.exists()
    assert os.listdir(path.parent) == []
    save(path, arrays(), RUN)
    expect_writable(path)
    assert read(path).run == RUN
    assert os.listdir(path.parent) == ["run"]


@pytest.mark.parametrize("place", ["run", "run.1"])
def test_a_folder_in_the_way_is_found_before_anything_is_written(tmp_path, place):
    (tmp_path / place).mkdir()
    with pytest.raises(CheckpointError, match="cannot be written") as caught:
        expect_writable(tmp_path / "run")
    assert caught.value.code == "OOC-314"


def test_a_folder_of_that_name_stays_where_it_is(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    with pytest.raises(CheckpointError, match="not a file") as refused:
        save(folder, arrays(), RUN)
    assert refused.value.code == "OOC-314"
    assert os.listdir(tmp_path) == ["runs"]
    assert folder.is_dir()


@pytest.mark.skipif(os.name != "posix", reason="nobody can ask whether a process lives")
def test_what_a_killed_process_left_is_removed_by_the_next_save(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    target = tmp_path / "run.safetensors"
    abandoned = tmp_path / f"run.safetensors.tmp.{ended.pid}.0123abcd"
    others = [
        tmp_path / f"run.safetensors.tmp.{os.getpid()}.0123abcd",
        tmp_path / f"other.safetensors.tmp.{ended.pid}.0123abcd",
    ]
    for file in (abandoned, *others):
        file.write_bytes(b"half")
    save(target, {"w": np.ones(2, np.float32)}, RUN)
    assert not abandoned.exists()
    assert all(file.exists() for file in others)


def test_a_second_process_cannot_write_the_same_checkpoint(tmp_path):
    path = tmp_path / "run.safetensors"
    second = (
        "import sys\nfrom ooctrain.execution.checkpoint import only_writer\n"
        "with only_writer(sys.argv[1]): pass"
    )

    def run():
        command = [sys.executable, "-c", second, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with only_writer(path), only_writer(tmp_path / "other.safetensors"):
        refused = run()
        assert f"process {os.getpid()}" in refused.stderr
        assert "OOC-315" in refused.stderr
    assert run().returncode == 0
    (tmp_path / "run.safetensors.lock").write_text("4711")  # of a process that was killed
    assert run().returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="nobody locks here")
def test_folders_of_a_checkpoint_that_are_not_there_are_made(tmp_path):
    folder = tmp_path / "runs" / "today"
    with only_writer(folder / "run.safetensors"):
        assert folder.is_dir()


def test_a_lock_that_its_holder_has_just_removed_holds_nobody_up(tmp_path, monkeypatch):
    path, removed = tmp_path / "run.safetensors", []
    flock = fcntl.flock

    def after_it_was_removed(descriptor, how):
        if not removed:
            removed.append((tmp_path / "run.safetensors.lock").unlink())
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", after_it_was_removed)
    again = pytest.raises(CheckpointError, match="another process")
    with only_writer(path), again, only_writer(path):
        pass
