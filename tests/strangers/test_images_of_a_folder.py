"""Images of folders are what a viewer shows, or are refused by name before a step is made.

Each row of `SHOWN` is a file as cameras, microscopes, browsers and paint programs write it, with
the colours in which a viewer shows its corners; `REFUSED` has files that no viewer shows in one way
only. Which files and folders are data at all is at the end.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooctrain import data
from ooctrain.data.folder import MEAN, STD, decode
from ooctrain.errors import DataFormatError

pillow = pytest.importorskip("PIL.Image", reason="Pillow (the extra data) is not installed")

#: A ramp from black to white, and its corners in shades of grey: top left, top right, bottom left.
RAMP = np.linspace(0, 1, 64).reshape(8, 8)
CORNERS = (0.0, 255 / 9, 255 * 56 / 63)
WHITE, BLACK, RED = ([color] * 3 for color in ((255, 255, 255), (0, 0, 0), (255, 0, 0)))


def shown(path: Path, side: int = 8) -> np.ndarray:
    """(side, side, 3), from 0 to 255, as a model is given it before it is normalised."""
    return decode(path, side).transpose(1, 2, 0) * np.array(STD) + np.array(MEAN)


def grey(values: np.ndarray) -> Any:
    return pillow.fromarray(values)


def saved(image: Any, ending: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, {"jpg": "JPEG", "tif": "TIFF"}.get(ending, ending), **options)
    return file.getvalue()


def tiff(pixels: np.ndarray, tags: dict[int, int], order: str = "<") -> bytes:
    """A TIFF of one stripe of grey pixels, by hand: with the tags that Pillow does not write."""
    height, width = pixels.shape[:2]
    kind = {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]
    body = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    entries = {256: width, 257: height, 258: pixels.dtype.itemsize * 8, 259: 1, 262: 1, 273: 8,
               277: 1, 278: height, 279: len(body), 339: kind, **tags}  # fmt: skip
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8 + len(body))
    table = struct.pack(order + "H", len(entries))
    for tag in sorted(entries):
        table += struct.pack(order + "HHII", tag, 4, 1, entries[tag])
    return head + body + table + struct.pack(order + "I", 0)


def deep_png(kind: int, clear: bytes, values: np.ndarray) -> bytes:
    """A PNG of 16 bits, grey (0) or in colours (2), of which one is transparent."""

    def chunk(name: bytes, content: bytes) -> bytes:
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, kind, 0, 0, 0)), (b"tRNS", clear),
             (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def sixteen_bit_colours() -> bytes:
    color = (1000, 2000, 3000)
    return deep_png(2, struct.pack(">HHH", *color), np.full((8, 8, 3), color))


def twelve_bit_tiff() -> bytes:
    """Two values in three bytes."""
    one, other = (RAMP * 4095).round().astype(int).reshape(-1, 2).T
    packed = np.stack([one >> 4, (one & 15) << 4 | other >> 8, other & 255], 1).astype(np.uint8)
    return tiff(packed.reshape(8, 12), {256: 8, 258: 12})


def sixteen() -> np.ndarray:
    return (RAMP * 65535).round().astype(np.uint16)


def eight() -> np.ndarray:
    return (RAMP * 255).round().astype(np.uint8)


def pgm(most: int) -> bytes:
    values = (RAMP * most).round().astype(">u2" if most > 255 else np.uint8)
    return f"P5 8 8 {most}\n".encode() + values.tobytes()


def sheet(mode: str, value: Any) -> Any:
    return pillow.new(mode, (8, 8), value)


def palette(transparent: bool) -> bytes:
    image = sheet("P", 1)
    image.putpalette([0, 0, 255, 255, 0, 0])
    return saved(image, "png", **({"transparency": 1} if transparent else {}))


def frames(ending: str, **options: Any) -> bytes:
    """Red, then blue."""
    images = [sheet("RGB", color) for color in ((255, 0, 0), (0, 0, 255))]
    return saved(images[0], ending, save_all=True, append_images=images[1:], **options)


def turned(ending: str, orientation: int = 6) -> bytes:
    """White at the top left as a viewer shows it, and written turned by 90 degrees."""
    upright = np.zeros((8, 8, 3), np.uint8)
    upright[:4, :4] = 255
    exif = pillow.Exif()
    exif[274] = orientation
    back = {3: pillow.Transpose.ROTATE_180, 6: pillow.Transpose.ROTATE_90}[orientation]
    lossless = {"webp": {"lossless": True}, "jpg": {"quality": 100}}.get(ending, {})
    return saved(pillow.fromarray(upright).transpose(back), ending, exif=exif, **lossless)


#: {file: (its bytes, its corners top left, top right, bottom left)}, in grey or in colours.
SHOWN: dict[str, tuple[Callable[[], bytes], Any]] = {
    "8 bit.png": (lambda: saved(grey(eight()), "png"), CORNERS),
    "16 bit.png": (lambda: saved(grey(sixteen()), "png"), CORNERS),
    "16 bit.tif": (lambda: saved(grey(sixteen()), "tif"), CORNERS),
    "16 bit big-endian.tif": (lambda: tiff(sixteen(), {}, ">"), CORNERS),
    "16 bit white is 0.tif": (lambda: tiff(sixteen(), {262: 0}), tuple(255 - c for c in CORNERS)),
    "12 bit.tif": (lambda: twelve_bit_tiff(), CORNERS),
    "int32 of 16 bit.tif": (lambda: saved(grey(sixteen().astype(np.int32)), "tif"), CORNERS),
    "uint32 of 16 bit.tif": (lambda: tiff(sixteen().astype(np.uint32), {}), CORNERS),
    "float32.tif": (lambda: saved(grey(RAMP.astype(np.float32)), "tif"), CORNERS),
    "float32 big-endian.tif": (lambda: tiff(RAMP.astype(np.float32), {}, ">"), CORNERS),
    "float32 white is 0.tif": (
        lambda: tiff(RAMP.astype(np.float32), {262: 0}), tuple(255 - c for c in CORNERS)),
    "8 bit.pgm": (lambda: pgm(255), CORNERS),
    "10 bit.pgm": (lambda: pgm(1023), CORNERS),
    "16 bit.pgm": (lambda: pgm(65535), CORNERS),
    "16 bit with a clear value.png": (
        lambda: deep_png(0, struct.pack(">H", 0), sixteen()), (255.0, *CORNERS[1:])),
    "1 bit.png": (lambda: saved(grey(eight() > 127), "png"), (0, 0, 255)),
    "1 bit.tif": (lambda: saved(grey(eight() > 127), "tif", compression="group4"), (0, 0, 255)),
    "cmyk.jpg": (lambda: saved(sheet("CMYK", (0, 255, 255, 0)), "jpg", quality=100), RED),
    "cmyk.tif": (lambda: saved(sheet("CMYK", (0, 255, 255, 0)), "tif"), RED),
    "ycbcr.tif": (lambda: saved(sheet("RGB", (255, 0, 0)).convert("YCbCr"), "tif"), RED),
    "palette.png": (lambda: palette(False), RED),
    "palette with transparency.png": (lambda: palette(True), WHITE),
    "grey with alpha.png": (lambda: saved(sheet("LA", (0, 0)), "png"), WHITE),
    "half clear.png": (lambda: saved(sheet("LA", (0, 128)), "png"), (127,) * 3),
    "opaque.png": (lambda: saved(sheet("LA", (0, 255)), "png"), BLACK),
    "rgba.png": (lambda: saved(sheet("RGBA", (255, 0, 0, 0)), "png"), WHITE),
    "rgba.webp": (lambda: saved(sheet("RGBA", (0, 0, 0, 0)), "webp", lossless=True), WHITE),
    "opaque.webp": (lambda: saved(sheet("RGBA", (255, 0, 0, 255)), "webp", lossless=True), RED),
    "clear colour.png": (
        lambda: saved(sheet("RGB", (1, 2, 3)), "png", transparency=(1, 2, 3)), WHITE),
    "animated.gif": (lambda: frames("gif"), RED),
    "animated.png": (lambda: frames("png"), RED),
    "animated.webp": (lambda: frames("webp", lossless=True), RED),
    "pages.tif": (lambda: frames("tif"), RED),
    "turned.jpg": (lambda: turned("jpg"), (255, 0, 0)),
    "turned.png": (lambda: turned("png"), (255, 0, 0)),
    "turned.tif": (lambda: turned("tif"), (255, 0, 0)),
    "turned.webp": (lambda: turned("webp"), (255, 0, 0)),
    "upside down.tif": (lambda: turned("tif", 3), (255, 0, 0)),
    "LOUD.PNG": (lambda: saved(sheet("RGB", (255, 0, 0)), "png"), RED),
    "another ending.jpg": (lambda: saved(sheet("RGB", (255, 0, 0)), "png"), RED),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_an_image_is_what_a_viewer_shows(name, tmp_path):
    content, expected = SHOWN[name]
    place = tmp_path / "train" / "a" / name
    place.parent.mkdir(parents=True)
    place.write_bytes(content())
    assert data.image_folder(tmp_path, True, 8).files == [(place, 0)], "an image of the folder"
    found = shown(place)
    corners = np.stack([found[0, 0], found[0, 7], found[7, 0]])
    wanted = np.asarray(expected, float)
    wanted = wanted if wanted.ndim == 2 else np.broadcast_to(wanted[..., None], (3, 3))
    assert np.abs(corners - wanted).max() < 2, corners


def test_all_greys_of_a_deep_image_arrive(tmp_path):
    (tmp_path / "x.png").write_bytes(
        saved(grey(np.arange(4096, dtype=np.uint16).reshape(64, 64)), "png")
    )
    assert len(np.unique(decode(tmp_path / "x.png", 64)[0])) == 4096


def with_value(value: float, kind: type) -> Callable[[], bytes]:
    pixels = np.full((8, 8), 0.5).astype(kind) if kind is np.float32 else np.full((8, 8), 5, kind)
    pixels[3, 3] = value
    return lambda: saved(grey(pixels), "tif")


#: {file: its bytes}, whose header says it: found before training.
REFUSED_AT_ONCE: dict[str, Callable[[], bytes]] = {
    "empty.png": lambda: b"",
    "text.jpg": lambda: b"not an image",
    "lab.tif": lambda: saved(sheet("LAB", (50, 0, 0)), "tif"),
    "16 bit colours with a clear one.png": lambda: sixteen_bit_colours(),
    "int16.tif": lambda: tiff(sixteen().astype(np.int16), {}),
    "int8.tif": lambda: tiff(eight().astype(np.int8), {}),
    "huge.png": lambda: _huge_png(),
    "photo.heic": lambda: b"anything",
    "drawing.svg": lambda: b"<svg/>",
    "scan.dcm": lambda: b"anything",
}
#: And whose pixels say it.
REFUSED_WHEN_READ: dict[str, Callable[[], bytes]] = {
    "int32 beyond 16 bit.tif": with_value(65536, np.int32),
    "int32 below 0.tif": with_value(-1, np.int32),
    "uint32 beyond.tif": lambda: tiff(np.full((8, 8), 2**31, np.uint32), {}),
    "float above 1.tif": with_value(1.01, np.float32),
    "float below 0.tif": with_value(-0.01, np.float32),
    "float NaN.tif": with_value(np.nan, np.float32),
    "float infinity.tif": with_value(np.inf, np.float32),
    "truncated.jpg": lambda: _noise("jpg")[:-300],
    "truncated.png": lambda: _noise("png")[:-300],
    "truncated.tif": lambda: _noise("tif")[:-300],
    "truncated.bmp": lambda: _noise("bmp")[:-300],
    "truncated.gif": lambda: _noise("gif")[:-300],
    "truncated.webp": lambda: _noise("webp")[:-300],
    "truncated.ppm": lambda: _noise("ppm")[:-300],
}


def _noise(ending: str) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    return saved(pillow.fromarray(noise), ending)


def _huge_png() -> bytes:
    head = struct.pack(">IIBBBBB", 1 << 14, 1 << 14, 8, 0, 0, 0, 0)
    real = saved(sheet("L", 0), "png")
    chunk = b"IHDR" + head
    return real[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + real[33:]


@pytest.mark.parametrize("name", REFUSED_AT_ONCE)
@pytest.mark.parametrize("train", [True, False])
def test_a_fault_in_a_header_is_found_before_training(name, train, tmp_path):
    top = tmp_path / "top"
    for part in ("train", "val"):
        put(top / part / "a" / "x.png")
    bad = top / ("train" if train else "val") / "a" / name
    bad.write_bytes(REFUSED_AT_ONCE[name]())
    with pytest.raises(DataFormatError) as found:
        data.load(f"folder:{top}", train=train, image_size=8)
    assert (found.value.code, found.value.path) == ("OOC-300", str(bad))


@pytest.mark.parametrize("name", REFUSED_WHEN_READ)
def test_a_fault_in_the_pixels_names_the_file(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(REFUSED_WHEN_READ[name]())
    with pytest.raises(DataFormatError) as found:
        decode(path, 8)
    assert (found.value.code, found.value.path) == ("OOC-300", str(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such files")
def test_what_is_no_file_is_not_waited_for(tmp_path):
    put(tmp_path / "train" / "a" / "x.png")
    os.mkfifo(tmp_path / "train" / "a" / "pipe.png")
    assert len(data.image_folder(tmp_path, True, 8)) == 1


def test_broken_exif_is_ignored_as_viewers_do(tmp_path):
    image = sheet("RGB", (255, 0, 0))
    for number, exif in enumerate((b"Exif\0\0II*\0\x08\0", b"Exif\0\0junk and more", b"\xff" * 40)):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(saved(image, "jpg", exif=exif, quality=100))
        assert np.abs(shown(path)[0, 0] - RED).max() < 3


# --- what is data at all


def put(path: Path, color: tuple[int, int, int] = (9, 9, 9)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(saved(sheet("RGB", color), "png"))
    return path


#: Files and folders that programs leave: none is a class, an image or a reason to stop.
LITTER = (
    ".ipynb_checkpoints/x-checkpoint.png", "__MACOSX/ape/._x.png", ".DS_Store", "Thumbs.db",
    "ape/._x.png", "ape/.DS_Store", "ape/Thumbs.db", "ape/desktop.ini", "ape/.hidden/x.png",
    "ape/.ipynb_checkpoints/x-checkpoint.png", "@eaDir/x.png", "ape/@eaDir/x.png", ".git/x.png",
    "$RECYCLE.BIN/x.png", "System Volume Information/x.png", "#recycle/x.png",
    "ape/notes.txt", "ape/labels.json",
)  # fmt: skip


@pytest.mark.parametrize("litter", LITTER)
@pytest.mark.parametrize("split", [True, False])
def test_hidden_files_and_folders_are_no_data(litter, split, tmp_path):
    top = tmp_path / ".photos"  # the folder itself may be hidden
    tops = (top / "train", top / "val") if split else (top,)
    for part in tops:
        for name in ("ape", "bee"):
            for number in range(20):
                put(part / name / f"{number}.png")
        junk = part / litter
        junk.parent.mkdir(parents=True, exist_ok=True)
        junk.write_bytes(b"no image")
    if split:
        (top / ".git").mkdir()
    for train in (True, False):
        found = data.load(str(top), train=train, image_size=8)
        assert found.classes == ["ape", "bee"]
        assert all(litter not in str(path) for path, _ in found.files)
        assert {label for _, label in found.files} == {0, 1}


def test_images_in_folders_of_a_class_belong_to_it_and_links_are_followed(tmp_path):
    top, elsewhere = tmp_path / "top", tmp_path / "elsewhere"
    put(top / "train" / "ape" / "young" / "x.png")
    put(elsewhere / "y.png")
    os.symlink(elsewhere, top / "train" / "bee")
    os.symlink(elsewhere / "y.png", top / "train" / "ape" / "z.PNG")
    os.symlink(top / "train" / "ape", top / "train" / "ape" / "young" / "round")  # a circle
    found = data.image_folder(top, image_size=8) if put(top / "val/ape/v.png") and put(
        top / "val/bee/v.png") else None  # fmt: skip
    assert found is not None
    names = [(path.relative_to(top / "train").as_posix(), label) for path, label in found.files]
    assert names == [("ape/young/x.png", 0), ("ape/z.PNG", 0), ("bee/y.png", 1)]


def test_images_beside_the_folders_of_the_classes_are_told(tmp_path):
    put(tmp_path / "train" / "ape" / "x.png")
    put(tmp_path / "train" / "stray.png")
    with pytest.warns(UserWarning, match=r"'stray\.png'") as told:
        assert len(data.image_folder(tmp_path, image_size=8)) == 1
    assert len(told) == 1


def test_a_link_to_nothing_is_named(tmp_path):
    for part in ("train", "val"):
        put(tmp_path / part / "ape" / "x.png")
    lost = tmp_path / "train" / "ape" / "lost.png"
    os.symlink(tmp_path / "nowhere.png", lost)
    with pytest.raises(DataFormatError) as found:
        data.image_folder(tmp_path, image_size=8)
    assert found.value.path == str(lost)
