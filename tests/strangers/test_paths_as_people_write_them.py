"""Paths with a tilde, a link, a comma or "file://" mean what the user meant, reading and writing.

A file that is written anew keeps its access rights, and a link to it stays a link.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn
from ooctrain.cli import main
from ooctrain.errors import CheckpointError, ConfigError, OoctrainError
from ooctrain.execution.checkpoint import (
    RunState,
    expect_writable,
    load,
    only_writer,
    previous_files,
    save,
)
from ooctrain.step.presets import cache_base

pytestmark = pytest.mark.usefixtures("default_signals")
ARRAYS = {"w": np.arange(3, dtype=np.float32)}


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The user's, elsewhere than where commands run."""
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("OOCTRAIN_CACHE", str(cache_base()))  # kernels are in the true home
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def step_in(path: Path) -> int:
    return load(path).run.step


# --- checkpoints


@pytest.mark.parametrize(
    "text",
    ["~/run.st", "{home}/run.st", "file://{home}/run.st", "../home/run.st", "{home}//run.st"],
)
def test_a_checkpoint_is_where_the_path_points(text, home):
    text = text.format(home=home)
    model = nn.Linear(2, 2)
    with oc.Trainer(model) as trainer:
        trainer.save(text)
        assert trainer.resume(text).step == 0
    assert {p.name for p in home.iterdir()} == {"run.st"}
    assert not list(Path().iterdir())
    expect_writable(text)


@pytest.mark.parametrize("given", ["", None, b"run.ck", 3])
def test_what_is_no_path_is_named(given):
    model = nn.Linear(2, 2)
    with oc.Trainer(model, threads=1) as trainer:
        for use in (trainer.save, trainer.resume):
            with pytest.raises(ConfigError) as caught:
                use(given)
            assert caught.value.code == "OOC-106"


def test_signs_of_addresses_are_part_of_a_name_unless_it_is_an_address(home):
    """An address ends where its query begins, a name does not."""
    for text in ("a%41?b#c.st", "file:%2F.st"):
        save(text, ARRAYS, RunState(1))
        assert [p.name for p in Path().iterdir()] == [text]
        Path(text).unlink()
    save(f"file://{home}/a%41.st?b#c", ARRAYS, RunState(2))
    assert {p.name for p in home.iterdir()} == {"aA.st"}


def test_a_tilde_that_is_no_home_is_a_name(home):
    save("~nobody-of-this-name.st", ARRAYS, RunState(1))
    assert step_in(Path("~nobody-of-this-name.st")) == 1
    assert [p.name for p in Path().iterdir()] == ["~nobody-of-this-name.st"]


def test_a_link_stays_and_what_it_points_to_is_written(home):
    real, link = home / "deep" / "real.st", Path("link.st")
    real.parent.mkdir()
    link.symlink_to(real)
    for step in (1, 2, 3):  # the first time there is nothing that it points to
        save(link, ARRAYS, RunState(step), keep=2)
        assert link.is_symlink()
        assert not real.is_symlink()
        assert step_in(link) == step_in(real) == step
    assert [p.name for p in Path().iterdir()] == ["link.st"]
    assert {p.name for p in real.parent.iterdir()} == {"real.st", "real.st.1"}
    assert previous_files(link) == previous_files(real) != []
    real.write_bytes(b"broken")
    with pytest.warns(UserWarning, match="step 2"):
        assert step_in(link) == 2


def test_links_to_links_and_folders_that_are_links(home):
    (home / "disk").mkdir()
    Path("runs").symlink_to(home / "disk")
    Path("a.st").symlink_to("b.st")
    Path("b.st").symlink_to("runs/c.st")
    save("a.st", ARRAYS, RunState(1))
    assert step_in(home / "disk" / "c.st") == 1
    save("runs/d.st", ARRAYS, RunState(2))
    assert step_in(home / "disk" / "d.st") == 2
    assert Path("runs").is_symlink()


def test_a_circle_of_links_is_named_before_training(home):
    Path("a.st").symlink_to("b.st")
    Path("b.st").symlink_to("a.st")
    for use in (lambda: expect_writable("a.st"), lambda: save("a.st", ARRAYS, RunState(1))):
        with pytest.raises(CheckpointError) as found:
            use()
        assert found.value.code == "OOC-314"
    assert Path("a.st").is_symlink()
    with pytest.raises(CheckpointError):
        load("a.st")


def test_a_link_and_its_file_are_one_checkpoint_to_writers(home):
    Path("link.st").symlink_to(home / "real.st")
    with only_writer("link.st"), pytest.raises(CheckpointError) as found, \
            only_writer("~/real.st"):  # fmt: skip
        pass
    assert found.value.code == "OOC-315"


@pytest.mark.parametrize("rights", [0o600, 0o640, 0o664, 0o444])
def test_access_rights_are_kept(rights, home):
    path = home / "run.st"
    save(path, ARRAYS, RunState(1))
    fresh = stat.S_IMODE(path.stat().st_mode)
    path.chmod(rights)
    for step in (2, 3):
        save(path, ARRAYS, RunState(step))
        assert stat.S_IMODE(path.stat().st_mode) == rights
    other = home / "other.st"
    save(other, ARRAYS, RunState(1))
    assert stat.S_IMODE(other.stat().st_mode) == fresh, "those of the umask"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs a superuser")
def test_a_superuser_leaves_the_owner_alone(home):
    path = home / "run.st"
    save(path, ARRAYS, RunState(1))
    os.chown(path, 12345, 23456)
    path.chmod(0o600)
    save(path, ARRAYS, RunState(2))
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 23456, 0o600)


# --- the command's files


def test_options_that_name_files_know_the_home(home):
    small = ["lenet", "--batch", "8", "--data", "synthetic:samples=16", "--threads", "1"]
    words = ["--checkpoint=~/run.st", "--json=~/n.json", "--allocation-log", "~/log.json"]
    assert main(["train", *small, "--epochs", "1", *words]) == 0
    assert main(["train", *small, "--epochs", "1", "--resume=~/run.st", "--json=~/n.json"]) == 0
    assert json.loads((home / "n.json").read_text())["error"] is None
    assert {"run.st", "n.json", "log.json"} <= {p.name for p in home.iterdir()}
    assert main(["replay", "~/log.json"]) == 0
    assert main(["train", "no-such-net", "--json=~/wrong.json"]) != 0
    assert json.loads((home / "wrong.json").read_text())["error"]
    assert main(["plan", "lenet", "--batch", "8", "--threads", "1", "--save", "~/plan.json"]) == 0
    assert (home / "plan.json").is_file()
    assert not list(Path().iterdir())


# --- data


def put_images(top: Path) -> Path:
    image = pytest.importorskip("PIL.Image", reason="Pillow (the extra data) is not installed")
    for name in ("ape", "bee"):
        for i in range(20):
            (top / name).mkdir(parents=True, exist_ok=True)
            image.new("RGB", (4, 4)).save(top / name / f"{i}.png")
    return top


NAMES = ("pics", "two words", "a,b", "a,b,c", "x=1", "a, b=2", "path=x", "pics:2024", "grün")
FORMS = ("folder:~/{name}", "folder:path=~/{name}", "~/{name}", "~/{name}/", "{home}/{name}",
         "folder:{home}/{name}/", "folder:../home/{name}", "file://{home}/{name}")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_images_is_found_as_it_is_called(name, home):
    put_images(home / name)
    for form in FORMS:
        text = form.format(name=name, home=home)
        assert len(oc.data.load(text, image_size=4)) == 29, text
    assert len(oc.data.load(home / name, image_size=4)) == 29, "a path"
    assert len(oc.data.image_folder(f"~/{name}", image_size=4)) == 29
    Path("link").symlink_to(home / name)
    assert len(oc.data.load("link", image_size=4)) == 29


def test_options_beside_a_folder_with_a_comma(home):
    (home / "a,b").mkdir()
    for text in ("mnist:~/a,b,channels=3", "mnist:channels=3,path=~/a,b"):
        with pytest.raises(OoctrainError) as found:
            oc.data.load(text)
        assert found.value.code == "OOC-300", "the folder is found, and holds no MNIST"


@pytest.mark.parametrize("text", ["~/nowhere", "./nowhere", "{home}/nowhere/", "file:///nowhere"])
def test_a_folder_that_is_not_there_is_said_to_be_none(text, home):
    with pytest.raises(ConfigError) as found:
        oc.data.load(text.format(home=home))
    assert found.value.code == "OOC-106"
    assert "there is no folder" in found.value.what


def test_rows_of_an_image_in_the_home(home):
    np.save(home / "x.npy", np.zeros((4, 4, 3), np.uint8))
    assert oc.data.RowImage("~/x.npy").shape == (1, 3, 4, 4)


# --- files that are named where a name or file.py:Name is wanted

LENET = ("lenet", "--batch", "4", "--threads", "1")
#: {command: its words, with FILE where a file may stand}
TAKING_FILES = {
    "grade": ("grade", "best_fit", "FILE"),
    "grade a planner": ("grade", "lru_planner", "FILE"),
    "grade bands": ("grade", "tiling", "FILE"),
    "grade a law": ("grade", "allocator_law", "FILE"),
    "grade by an assignment": ("grade", "FILE"),
    "an assignment": ("course", "copy", "FILE"),
    "plan": ("plan", "FILE"),
    "train": ("train", "FILE"),
    "simulate": ("simulate", "FILE"),
    "compare": ("compare", "FILE"),
    "calibrate": ("calibrate", "FILE"),
    "a planner": ("plan", *LENET, "--planner", "FILE"),
    "one planner of several": ("compare", "lenet", "--planner", "lru,FILE"),
    "an allocator": ("plan", *LENET, "--allocator", "FILE"),
    "a rewrite": ("plan", *LENET, "--rewrite", "FILE"),
    "a machine": ("plan", *LENET, "--machine", "FILE"),
    "data": ("train", *LENET, "--data", "FILE"),
    "a folder": ("train", *LENET, "--data", "folder:FILE"),
    "an optimizer": ("train", *LENET, "--optimizer", "FILE"),
    "a schedule": ("train", *LENET, "--lr-schedule", "FILE"),
    "a checkpoint": ("train", *LENET, "--resume", "FILE"),
    "a folder to spill to": ("train", *LENET, "--spill", "FILE"),
    "a log": ("replay", "FILE"),
    "a record": ("report", "FILE"),
    "lists": ("diff", "FILE", "FILE"),
}
NOT_THERE = ("nosuch.py", "nosuch.py:Mine", "~/nosuch")
SAID = ("there is no ", "No such file", "is not there", "is not a folder")


@pytest.mark.parametrize("command", TAKING_FILES)
def test_a_file_that_is_not_there_is_said_not_to_be(command, home, capsys):
    for name in NOT_THERE:
        words = [word.replace("FILE", name) for word in TAKING_FILES[command]]
        assert main(words) in (1, 2)
        said = " ".join(capsys.readouterr().err.split())
        assert any(words in said for words in SAID), said
        assert "unknown" not in said


#: those that take file.py:Name
TAKING_NAMES = (
    "plan", "train", "simulate", "compare", "a planner", "one planner of several", "an allocator",
    "a rewrite", "an optimizer", "a schedule",
)  # fmt: skip


@pytest.mark.parametrize("command", TAKING_NAMES)
def test_a_file_without_a_name_is_told_how_to_name_one(command, home, capsys):
    Path("mine.py").write_text("class Mine: pass\n")
    Path("notes.txt").write_text("no Python")
    Path("folder").mkdir()
    for name, said in (
        ("mine.py", "mine.py:"), ("./mine.py", "./mine.py:"), ("./notes.txt", "file.py:"),
        ("./folder", "file.py:"), ("mine.py:Nix", "defines no 'Nix'"), ("mine.py:", "mine.py:"),
    ):  # fmt: skip
        assert main([word.replace("FILE", name) for word in TAKING_FILES[command]]) == 2
        found = " ".join(capsys.readouterr().err.split())
        assert said in found
        assert "unknown" not in found
        assert "there is no" not in found


def test_files_that_are_no_assignments_are_told_what_to_name(home, capsys):
    Path("mine.py").write_text("class Mine: pass\n")
    for words in (["grade", "mine.py"], ["grade", "mine.py", "best_fit"], ["grade", "./mine.py:M"],
                  ["course", "copy", "mine.py"]):  # fmt: skip
        assert main(words) == 2
        assert "ooctrain grade ASSIGNMENT" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "use",
    [lambda name: oc.plan(oc.trace(nn.Linear(2, 2), (1, 2)), '50%', planner=name),
     lambda name: oc.Trainer(nn.Linear(2, 2), optimizer=name),
     lambda name: oc.models.build(name)],
)  # fmt: skip
def test_so_are_those_of_a_call(use, home):
    for name in ("nosuch.py", "nosuch.py:Mine", "./nosuch"):
        with pytest.raises(ConfigError) as found:
            use(name)
        assert found.value.code == "OOC-106"
        assert "there is no" in found.value.what
