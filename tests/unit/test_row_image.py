"""Images that are read by rows: what files give, how they reach a step, what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn
from ooctrain.data import RowImage
from ooctrain.errors import ConfigError, DataFormatError, ShapeError

PIXELS = np.random.default_rng(0).integers(0, 256, (50, 34, 3), dtype=np.uint8)


def saved(folder: Path, array: np.ndarray, name: str = "a.npy") -> Path:
    np.save(folder / name, array)
    return folder / name


def test_rows_of_an_npy_file_are_its_pages(tmp_path: Path) -> None:
    image = RowImage(saved(tmp_path, PIXELS))
    assert (image.shape, image.dtype, repr(image)) == (
        (1, 3, 50, 34), np.uint8, "RowImage(1 x 3 x 50 x 34 uint8)"
    )  # fmt: skip
    window = image.rows(0, 7, 20)
    assert window.shape == (1, 3, 13, 34)
    assert np.array_equal(np.asarray(window)[0], PIXELS[7:20].transpose(2, 0, 1))
    assert isinstance(window.read(), np.memmap)


FILES = Path("/proc/self/fd")


@pytest.mark.skipif(not FILES.is_dir(), reason="the system does not list open files")
@pytest.mark.parametrize("kind", ["npy", "plain tif", "deflated tif", "tiled tif"])
def test_no_file_stays_open_between_reads(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind.split()[-1]}"
    if kind == "npy":
        saved(tmp_path, PIXELS)
    else:
        tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
        options = {"plain tif": {}, "deflated tif": {"compression": "zlib", "rowsperstrip": 8},
                   "tiled tif": {"tile": (16, 16)}}[kind]  # fmt: skip
        tifffile.imwrite(path, PIXELS, photometric="rgb", **options)
    RowImage(path)  # what is imported for it may open files
    before = len(list(FILES.iterdir()))
    batch = RowImage(*[path] * 40)
    assert len(list(FILES.iterdir())) == before
    for image in range(40):
        window = batch.rows(image, 3, 30)
        assert np.array_equal(np.asarray(window)[0], PIXELS[3:30].transpose(2, 0, 1))
    assert len(list(FILES.iterdir())) == before
    path.unlink()
    with pytest.raises(DataFormatError) as found:
        np.asarray(window)
    assert found.value.path == str(path)


def test_a_file_that_has_changed_is_named(tmp_path: Path) -> None:
    window = RowImage(saved(tmp_path, PIXELS)).rows(0, 0, 9)
    saved(tmp_path, PIXELS[:40])
    with pytest.raises(DataFormatError):
        np.asarray(window)


def test_a_batch_is_of_several_files_of_one_size(tmp_path: Path) -> None:
    grey = PIXELS[..., 0].astype(np.float32)
    paths = [saved(tmp_path, grey, "a.npy"), saved(tmp_path, grey + 1, "b.npy")]
    batch = RowImage(*paths)
    assert batch.shape == (2, 1, 50, 34)
    assert np.array_equal(np.asarray(batch.rows(1, 3, 5))[0, 0], grey[3:5] + 1)
    with pytest.raises(ConfigError, match="one size") as refusal:
        RowImage(paths[0], saved(tmp_path, grey[:40], "c.npy"))
    assert "c.npy (40, 34, 1) float32" in str(refusal.value)
    with pytest.raises(ConfigError, match="no rows 49 to 51"):
        batch.rows(0, 49, 51)
    with pytest.raises(ConfigError, match="needs a file"):
        RowImage()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"\x93NUMPY\x01\x00", "cannot be read"),
        ("a.npy", b"", "cannot be read"),
        ("a.png", b"\x89PNG", "cannot be read by rows"),
    ],
)
def test_files_that_are_none_are_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFormatError, match=message) as refusal:
        RowImage(tmp_path / name)
    assert refusal.value.path == str(tmp_path / name)


def test_arrays_that_are_no_image_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFormatError, match="not an image"):
        RowImage(saved(tmp_path, PIXELS[None]))
    with pytest.raises(DataFormatError, match="holds int64"):
        RowImage(saved(tmp_path, PIXELS.astype(np.int64)))
    with pytest.raises(DataFormatError, match="there is no file"):
        RowImage(tmp_path / "none.npy")
    with pytest.raises(DataFormatError, match="without pixels"):
        RowImage(saved(tmp_path, PIXELS[:0]))
    with pytest.raises(DataFormatError, match="byte order") as refusal:
        RowImage(saved(tmp_path, PIXELS.astype(">f4")))
    assert "astype('float32')" in str(refusal.value)
    with pytest.raises(ConfigError, match="takes paths, not list"):
        RowImage([tmp_path / "none.npy"])  # type: ignore[arg-type]
    whole = saved(tmp_path, PIXELS).read_bytes()
    (tmp_path / "half.npy").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataFormatError, match="cannot be read"):
        RowImage(tmp_path / "half.npy")


# TIFF

KINDS = {
    "mapped": {},
    "stripes": {"rowsperstrip": 7, "compression": "zlib"},
    "tiles": {"tile": (16, 16)},
    "deflated tiles, predicted": {"tile": (16, 32), "compression": "zlib", "predictor": True},
    "planes": {"planarconfig": "separate", "rowsperstrip": 9},
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_tiff_are_those_of_the_array(tmp_path: Path, kind: str) -> None:
    tifffile = pytest.importorskip("tifffile")
    path, how = tmp_path / "a.tif", KINDS[kind]
    stored = np.moveaxis(PIXELS, 2, 0) if kind == "planes" else PIXELS
    tifffile.imwrite(path, stored, photometric="rgb", **how)
    image = RowImage(path)
    assert image.shape == (1, 3, 50, 34)
    for lo, hi in ((0, 50), (0, 1), (13, 35), (49, 50)):
        found = np.asarray(image.rows(0, lo, hi))
        assert np.array_equal(found[0], PIXELS[lo:hi].transpose(2, 0, 1)), (lo, hi)


def test_threads_that_read_one_tiff_at_once_get_their_own_rows(tmp_path: Path) -> None:
    """Each trainer has a thread that reads ahead, and the file is one."""
    tifffile = pytest.importorskip("tifffile")
    path, rows = tmp_path / "a.tif", 64
    pixels = np.repeat(np.arange(rows, dtype=np.uint8)[:, None, None], 300, 1).repeat(3, 2)
    tifffile.imwrite(path, pixels, photometric="rgb", rowsperstrip=1, compression="zlib")
    image = RowImage(path)

    def read(row: int) -> np.ndarray:
        return np.asarray(image.rows(0, row % rows, row % rows + 1))

    with ThreadPoolExecutor(8) as pool:
        for row, found in enumerate(pool.map(read, range(40 * rows))):
            assert np.all(found == row % rows), row % rows


def test_broken_tiffs_are_refused_when_they_are_opened(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    path.write_bytes(b"II*\x00")
    with pytest.raises(DataFormatError, match="no TIFF that can be read"):
        RowImage(path)
    tifffile.imwrite(path, PIXELS, photometric="rgb", tile=(16, 16))
    path.write_bytes(path.read_bytes()[:-1500])
    with pytest.raises(DataFormatError, match="truncated") as refusal:
        RowImage(path)
    assert "of 12 stripes or tiles" in str(refusal.value)


def test_a_palette_is_no_image(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    colours = np.zeros((3, 256), np.uint16)
    tifffile.imwrite(
        tmp_path / "a.tif", PIXELS[..., 0].copy(), photometric="palette", colormap=colours
    )
    with pytest.raises(DataFormatError, match="palette"):
        RowImage(tmp_path / "a.tif")


def test_a_tiff_that_cannot_be_unpacked_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, PIXELS, photometric="rgb", rowsperstrip=5, compression="zlib")
    data = bytearray(path.read_bytes())
    at = data.index(b"\x03\x01\x03\x00")  # tag 259, compression, SHORT
    data[at + 8 : at + 10] = (34933).to_bytes(2, "little")  # a codec that is not a part of tifffile
    path.write_bytes(data)
    with pytest.raises(DataFormatError, match="cannot be unpacked") as refusal:
        RowImage(path)
    assert "imagecodecs" in str(refusal.value)


def test_without_tifffile_a_tiff_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tifffile", None)
    (tmp_path / "a.tif").write_bytes(b"II*\x00")
    with pytest.raises(ConfigError, match="tifffile") as refusal:
        RowImage(tmp_path / "a.tif")
    assert "ooctrain[data]" in str(refusal.value)


# In a step


def model(*first: nn.Module) -> nn.Sequential:
    oc.manual_seed(0)
    return nn.Sequential(
        *first, nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def test_a_trainer_takes_it_like_an_array(tmp_path: Path) -> None:
    image, labels = RowImage(saved(tmp_path, PIXELS)), np.array([2])
    whole = np.ascontiguousarray(PIXELS.transpose(2, 0, 1)[None])
    losses = []
    for batch in (image, whole):
        with oc.Trainer(model(nn.FromBytes()), threads=1) as trainer:
            losses.append([trainer.step(batch, labels) for _ in range(2)])
            losses[-1].append(trainer.predict(batch).tolist())
    assert losses[0] == losses[1]


def test_what_does_not_fit_the_model_is_said_before_anything_runs(tmp_path: Path) -> None:
    image, labels = RowImage(saved(tmp_path, PIXELS)), np.array([2])
    grey = RowImage(saved(tmp_path, PIXELS[..., 0], "grey.npy"))
    thin = RowImage(saved(tmp_path, PIXELS[:2], "thin.npy"))
    with oc.Trainer(model(), threads=1) as trainer:
        with pytest.raises(ShapeError, match="uint8, the model takes float32") as refusal:
            trainer.step(image, labels)
        assert "nn.FromBytes" in str(refusal.value)
    with oc.Trainer(model(nn.FromBytes()), threads=1) as trainer:
        with pytest.raises(ShapeError, match="channels"):
            trainer.step(grey, labels)
        with pytest.raises(ShapeError, match="float64, the model takes uint8"):
            trainer.step(np.zeros((1, 3, 8, 8)), labels)
    unpadded = nn.Sequential(
        nn.FromBytes(), nn.Conv2d(3, 4, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    with oc.Trainer(unpadded, threads=1) as trainer, pytest.raises(ShapeError, match="2"):
        trainer.step(thin, labels)
