"""What `--resume` says when the run is no longer what it was: other images, another length.

A checkpoint knows its images (names of the classes, counts, a fingerprint) and over how many epochs
its learning rates went. What harms is refused by name, what can go on does so with one line.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.quick import quick

from ooctrain.cli import main
from ooctrain.data import image_folder
from ooctrain.execution.checkpoint import load, save

pytestmark = pytest.mark.usefixtures("default_signals")


@pytest.fixture
def train(capsys, tmp_path):
    """Runs `train lenet`; gives (status, numbers, stdout, stderr)."""

    def call(*words: object):
        path = tmp_path / "numbers.json"
        status = main(["train", "lenet", "--threads", "1", "--json", str(path), *map(str, words)])
        captured = capsys.readouterr()
        out = " ".join(captured.out.split())
        return status, json.loads(path.read_text()), out, " ".join(captured.err.split())

    return call


# --- images


@pytest.fixture
def photos(tmp_path) -> Path:
    pytest.importorskip("PIL.Image", reason="Pillow (the extra data) is not installed")
    for name in "ab":
        put(tmp_path / "photos", *(f"{name}/{i:02}.png" for i in range(12)))
    return tmp_path / "photos"


def put(top: Path, *below: str) -> None:
    image = pytest.importorskip("PIL.Image")
    for one in below:
        (top / one).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (32, 32), (hash_of(one), 0, 0)).save(top / one)


def hash_of(text: str) -> int:
    return sum(text.encode()) % 256


@pytest.fixture
def begun(train, photos, tmp_path):
    """Folder, checkpoint after a step, and what goes on from there."""
    run = tmp_path / "run.safetensors"
    words = ["--image-size", 32, "--batch", 4]
    assert train("--data", photos, *words, "--steps", 1, "--checkpoint", run)[0] == 0

    def go_on(*more: object, data: Path | None = None):
        return train("--data", data or photos, *words, "--steps", 2, "--resume", run, *more)

    return photos, run, go_on


def notes(out: str) -> int:
    return out.count("note: ")


def test_the_same_images_are_not_spoken_of(begun):
    _, _, go_on = begun
    status, _, out, _ = go_on()
    assert (status, notes(out)) == (0, 0)


def test_the_same_images_in_another_place_are_the_same(begun, tmp_path):
    photos, _, go_on = begun
    status, _, out, _ = go_on(data=photos.rename(tmp_path / "elsewhere"))
    assert (status, notes(out)) == (0, 0)


def test_images_that_have_changed_are_told(begun):
    photos, run, go_on = begun
    put(photos, "a/00-copy.png")
    status, _, out, _ = go_on()
    assert (status, notes(out)) == (0, 1)
    assert "the data has changed" in out
    assert notes(go_on("--steps", 3)[2]) == 0, "told once: the new file knows the new images"
    (photos / "a/00.png").rename(photos / "a/000.png")
    for _ in range(2):  # also when the images are the same again as in the last part of the run
        assert go_on("--steps", 3, "--verify")[1]["error"].startswith("[OOC-100]")
        go_on("--steps", 3)
    assert load(run).run.step == 3


@pytest.mark.parametrize("schedule", quick(["cosine", "onecycle"], 1))
def test_a_folder_that_has_become_smaller_goes_on(schedule, train, photos, tmp_path):
    run = tmp_path / "run.safetensors"
    words = ["--data", photos, "--image-size", 32, "--batch", 4, "--lr-schedule", schedule]
    train(*words, "--epochs", 2, "--steps", 9, "--checkpoint", run)
    assert load(run).run.data == {"epoch": 1, "position": 4}, "of five batches"
    for i in range(6):
        (photos / f"a/{i:02}.png").unlink()
    status, _, out, err = train(*words, "--epochs", 2, "--resume", run)
    assert (status, notes(out)) == (0, 1), err
    assert load(run).run.step == 9, "the second epoch is over"
    assert train(*words, "--epochs", 4, "--resume", run)[0] == 0
    assert load(run).run.data == {"epoch": 4, "position": 0}


#: {what: (images of each class more or fewer, steps before, --epochs, --steps, steps in the end)};
#: there were 5 steps an epoch.
LENGTHS = {
    "smaller, within an epoch": (-2, 7, 3, None, 7 + 2 + 4),
    "smaller, after an epoch": (-2, 5, 3, None, 5 + 4 + 4),
    "smaller, so the epoch is over": (-6, 9, 3, None, 9 + 2),
    "larger, within an epoch": (4, 7, 3, None, 7 + 5 + 7),
    "larger, after an epoch": (4, 5, 3, None, 5 + 7 + 7),
    "larger, and stopped": (4, 7, 3, 11, 11),
    "smaller, and stopped": (-6, 9, 3, 10, 10),
    "of the same length": (0, 7, 3, None, 15),
}


@pytest.mark.parametrize("what", quick(LENGTHS, 0, 3, 6))
def test_steps_and_epochs_are_counted_right_after_a_change_of_length(what, train, photos, tmp_path):
    more, before, epochs, steps, end = LENGTHS[what]
    run, words = tmp_path / "run.safetensors", ["--data", photos, "--image-size", 32, "--batch", 4]
    train(*words, "--epochs", epochs, "--steps", before, "--checkpoint", run)
    trained = len(image_folder(photos, train=True, image_size=32))
    change(photos, more)
    now = len(image_folder(photos, train=True, image_size=32)) // 4
    limit = [] if steps is None else ["--steps", steps]
    status, numbers, out, err = train(*words, "--epochs", epochs, *limit, "--resume", run)
    assert status == 0, err
    told = re.findall(r"step +(\d+)/(\d+) +epoch (\d+)/", out)
    lines = [tuple(map(int, numbers)) for numbers in told]
    assert len(numbers["losses"]) == end
    assert {line[1] for line in lines} == {end}
    assert lines[-1][:2] == (load(run).run.step,) * 2
    assert all(1 <= epoch <= epochs for *_, epoch in lines)
    assert [epoch for *_, epoch in lines] == sorted(epoch for *_, epoch in lines)
    if steps is None:
        assert lines[-1][2] == epochs
        assert f"epoch {epochs}/{epochs} mean loss" in out
    assert notes(out) == (more != 0)
    assert out.count("steps an epoch") == (now != trained // 4)
    if now != trained // 4:
        assert f"{trained // 4} steps an epoch, now {now}" in out


def change(photos: Path, more: int) -> None:
    """Adds images to both classes, or takes some away."""
    for name in "ab":
        put(photos, *(f"{name}/x{i:02}.png" for i in range(more)))
        for path in sorted((photos / name).iterdir())[: max(0, -more)]:
            path.unlink()


def test_a_folder_in_another_place_with_other_images_is_told(begun, tmp_path):
    photos, _, go_on = begun
    put(photos, "a/new.png")
    status, _, out, _ = go_on(data=photos.rename(tmp_path / "elsewhere"))
    assert (status, notes(out)) == (0, 1)


def test_another_spelling_of_the_folder_is_the_same(begun, monkeypatch):
    photos, run, go_on = begun
    monkeypatch.chdir(photos.parent)
    older(run)
    for spelling in ("./photos/", "folder:photos", f"folder:path={photos}", f"file://{photos}"):
        status, _, _, err = go_on(data=spelling)
        assert status == 0, err


def test_other_data_is_refused(begun):
    _, _, go_on = begun
    status, numbers, _, _ = go_on(data="synthetic:classes=2,samples=64")
    assert status == 1
    assert numbers["error"].startswith("[OOC-313]")
    assert "another data" in numbers["error"]


def test_every_setting_that_has_changed_is_named(begun):
    """With another optimizer comes another rate, which alone was named; a rate may change."""
    _, _, go_on = begun
    status, numbers, _, _ = go_on("--optimizer", "adam")
    assert status == 1
    for one in ("optimizer: saved 'sgd'", "now 'adam'", "another optimizer"):
        assert one in numbers["error"]


@pytest.mark.parametrize("change", ["renamed", "one more", "one fewer"])
def test_other_classes_are_refused_by_name(change, begun):
    photos, run, go_on = begun
    if change == "renamed":
        (photos / "b").rename(photos / "c")
    elif change == "one more":
        put(photos, *(f"c/{i}.png" for i in range(9)))
    else:
        (photos / "b").rename(photos.parent / "b")
    before = run.read_bytes()
    status, numbers, _, err = go_on()
    assert status == 1
    assert numbers["error"].startswith("[OOC-313]")
    assert "'b'" in err or "'c'" in err
    assert run.read_bytes() == before


def older(run: Path) -> None:
    """Makes of a checkpoint what a version wrote that knew no images."""
    found = load(run)
    history = {"losses": found.run.history["losses"], "ranks": [1]}
    config = {name: value for name, value in found.run.config.items() if name != "classes"}
    save(run, dict(found.arrays), replace(found.run, history=history, config=config))


def test_an_older_checkpoint_goes_on_with_a_notice(begun):
    _, run, go_on = begun
    older(run)
    status, _, out, _ = go_on()
    assert (status, notes(out)) == (0, 1)
    assert "older version" in out
    assert notes(go_on("--steps", 3)[2]) == 0


def test_an_older_checkpoint_of_other_data_is_verified_as_ever(train, tmp_path):
    run = tmp_path / "run.safetensors"
    train(*DIGITS, "--steps", 1, "--checkpoint", run)
    older(run)
    assert train(*DIGITS, "--steps", 2, "--resume", run, "--verify")[0] == 0


def test_a_folder_without_an_image_to_test_is_trained_on(train, tmp_path):
    put(tmp_path / "photos", *(f"train/{name}/{i}.png" for name in "ab" for i in range(4)))
    status, numbers, _, err = train(
        "--data", tmp_path / "photos", "--image-size", 32, "--batch", 4, "--steps", 1
    )
    assert status == 0
    assert numbers["test_accuracy"] is None
    assert "no image is tested" in err


# --- the length of the learning rates

DIGITS = ("--data", "synthetic:samples=64", "--batch", 16, "--optimizer", "sgd")


def cosine(step: int, steps: int) -> float:
    return 0.05 * (1 + math.cos(math.pi * step / steps)) / 2


def test_more_epochs_go_on_with_a_stretched_cosine(train, tmp_path):
    run = tmp_path / "run.safetensors"
    assert train(*DIGITS, "--epochs", 1, "--checkpoint", run)[0] == 0
    status, _, out, _ = train(*DIGITS, "--epochs", 1, "--resume", run)
    assert status == 0
    assert "a larger --epochs goes on" in out
    assert notes(out) == 0
    status, numbers, out, _ = train(*DIGITS, "--epochs", 3, "--resume", run)
    assert (status, notes(out)) == (0, 1)
    assert "the schedule cosine is stretched: it went over 1 epochs, and now 3" in out
    assert len(numbers["losses"]) == 3 * 4
    state = load(run).run
    assert state.schedule["lr"] == [pytest.approx(0, abs=1e-12)]
    assert state.history["epochs"] == [1, 3]
    assert train(*DIGITS, "--epochs", 4, "--resume", run, "--verify")[0] != 0


@pytest.mark.slow
@pytest.mark.parametrize("schedule", quick(["cosine", "cosine:eta_min=0.01", "onecycle"], 2))
def test_rates_of_a_stretched_schedule_are_those_of_its_new_length(schedule, train, tmp_path):
    run, straight = tmp_path / "run.safetensors", tmp_path / "straight.safetensors"
    words = (*DIGITS, "--lr-schedule", schedule)
    train(*words, "--epochs", 2, "--steps", 4, "--checkpoint", run)
    status, _, out, _ = train(*words, "--epochs", 4, "--steps", 7, "--resume", run)
    assert (status, notes(out)) == (0, 1)
    train(*words, "--epochs", 4, "--steps", 7, "--checkpoint", straight)
    one, other = load(run).run.schedule, load(straight).run.schedule
    assert one["lr"] == pytest.approx(other["lr"], rel=1e-12)
    assert one.get("_momenta", []) == pytest.approx(other.get("_momenta", []), rel=1e-12)
    # A shorter one too, as long as a step is left.
    status, _, out, _ = train(*words, "--epochs", 2, "--resume", run)
    assert (status, notes(out)) == (0, 1)
    assert len(load(run).run.history["losses"]) == 8


@pytest.mark.parametrize("schedule", quick(["cosine", "onecycle", "constant"], 1))
def test_fewer_epochs_than_are_done_leave_nothing_to_do(schedule, train, tmp_path):
    run, copy = tmp_path / "run.safetensors", tmp_path / "copy.safetensors"
    words = (*DIGITS, "--lr-schedule", schedule)
    train(*words, "--epochs", 2, "--checkpoint", run)
    status, _, out, _ = train(*words, "--epochs", 1, "--resume", run, "--checkpoint", copy)
    assert status == 0
    assert "nothing is left to do" in out
    assert notes(out) == 0
    assert load(copy).run.schedule == load(run).run.schedule
    status, numbers, _, _ = train(*words, "--epochs", 1, "--resume", copy, "--verify")
    assert (status, numbers["identical_to_incore"]) == (0, True)
    assert train(*words, "--epochs", 3, "--resume", copy)[0] == 0


def test_what_must_be_larger_is_what_has_been_reached(train, tmp_path):
    run = tmp_path / "run.safetensors"
    train(*DIGITS, "--epochs", 1, "--checkpoint", run)
    for words, larger in (
        (["--epochs", 1, "--steps", 9], "a larger --epochs goes on"),
        (["--epochs", 2, "--steps", 4], "a larger --steps goes on"),
        (["--epochs", 1, "--steps", 3], "a larger --epochs and --steps goes on"),
    ):
        assert larger in train(*DIGITS, *words, "--resume", run)[2]


def test_a_constant_rate_has_no_length_to_speak_of(train, tmp_path):
    run, words = tmp_path / "run.safetensors", (*DIGITS, "--lr-schedule", "constant")
    train(*words, "--epochs", 1, "--checkpoint", run)
    status, _, out, _ = train(*words, "--epochs", 2, "--resume", run, "--verify")
    assert (status, notes(out)) == (0, 0)


def test_a_schedule_of_the_users_own_goes_on_from_its_state(train, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from ooctrain.optim import CosineAnnealingLR\n"
        "def mine(run): return CosineAnnealingLR(run.optimizer, run.steps)\n"
    )
    run, words = tmp_path / "run.safetensors", (*DIGITS, "--lr-schedule", f"{mine}:mine")
    train(*words, "--epochs", 2, "--steps", 4, "--checkpoint", run)
    rate = load(run).run.schedule["lr"]
    status, _, out, _ = train(*words, "--epochs", 3, "--steps", 4, "--resume", run)
    assert (status, notes(out)) == (0, 1)
    assert load(run).run.schedule["lr"] == rate


# --- another learning rate


@pytest.mark.parametrize("schedule", quick(["constant", "cosine", "onecycle", "step"], 2))
def test_another_learning_rate_counts_from_there_on(schedule, train, tmp_path):
    def go(name: str, steps: int, *more: object):
        path = tmp_path / f"{name}.safetensors"
        words = ["--data", "digits", "--batch", 16, "--lr-schedule", schedule, "--epochs", 1]
        begin = ["--resume" if path.exists() else "--checkpoint", path]
        found = train(*words, "--steps", steps, *begin, *more)
        return found, load(path).run

    go("plain", 2, "--lr", 0.05)
    (status, before, _, _), plain = go("plain", 4, "--lr", 0.05)
    assert status == 0
    go("lower", 2, "--lr", 0.05)
    (status, numbers, out, _), run = go("lower", 4, "--lr", 0.01)
    assert (status, notes(out)) == (0, 1)
    assert "the learning rate was 0.05, and is 0.01" in out
    for found, usual in zip(run.schedule["lr"], plain.schedule["lr"], strict=True):
        assert math.isclose(found, usual / 5)
    assert numbers["losses"][:3] == before["losses"][:3]
    assert numbers["losses"][3] != before["losses"][3]
    for more, said in ((["--lr", 0.01], 0), (["--lr", 0.05], 1)):  # told once, and again
        (status, _, out, _), run = go("lower", 5, *more)
        assert (status, notes(out)) == (0, said)
    assert run.history["rates"] == [0.05, 0.01]
    (status, numbers, _, _), _ = go("lower", 6, "--lr", 0.01, "--verify")
    assert status == 2
    assert "another learning rate" in numbers["error"]
