"""One image file as the pixels that a viewer shows: colours from 0 to 255, upright, one frame.

Files hold more than three bytes a pixel. What is done with each kind:

- grey of 9 to 16 bits, and whole numbers of 32 bits with values of 16: scaled by the range of the
  type, so 65535 (4095 for 12 bits) is white; floats from 0 to 1 as such; other values are refused,
  as the file does not say what is white;
- what is transparent (alpha, or a colour that is declared clear) is laid on white;
- palettes, CMYK, YCbCr and 1 bit are converted as Pillow does, without colour profiles;
- EXIF's orientation is applied; of an animation, or a file of several pages, the first is taken.

Needs the extra `data`. Read next: `folder.py`, which says which files are data.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ooctrain.data.extras import extra
from ooctrain.errors import DataFormatError

#: Of an image, before and after it is scaled: 8192 x 8192, about half a GiB while it is decoded. A
#: small file may announce far more.
MOST_PIXELS = 1 << 26
#: Pillow's modes (how the pixels of an opened file are held) of 8 bits and less a channel.
BYTE_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV"})
#: And of grey images with more.
DEEP_MODES = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I", "F"})
#: TIFF's numbers of what is used here, and of EXIF's orientation.
BITS_PER_SAMPLE, PHOTOMETRIC, SAMPLE_FORMAT, ORIENTATION = 258, 262, 339, 274
SIGNED, WHITE_IS_ZERO = 2, 0
#: {orientation: what turns the image upright, as Pillow calls it}
UPRIGHT = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE",
           6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"}  # fmt: skip


def pillow() -> ModuleType:
    """Pillow's module of images. Raises ConfigError: it is not installed."""
    return extra("PIL.Image", "Pillow", "image folders")


def check_header(path: Path, side: int) -> None:
    """Opens a file without decoding it.

    Raises:
        DataFormatError: what `pixels` raises for reasons that a header holds.
    """
    try:
        with pillow().open(path) as image:
            _check(path, image, side)
    except _unreadable() as error:
        raise _not_readable(path, error) from error


def pixels(path: Path, side: int) -> np.ndarray:
    """One image as (side, side, 3) float32 from 0 to 255, its shorter side scaled to `side` and its
    middle cut out.

    Raises:
        DataFormatError: Pillow cannot read it; it has more than `MOST_PIXELS` pixels, before it is
            scaled or afterwards (then it is not decoded); or values that are not shades of grey.
    """
    try:
        with pillow().open(path) as image:
            _check(path, image, side)
            image.load()  # a TIFF is turned upright by this, and forgets its orientation
            shown = _grey(path, image) if image.mode in DEEP_MODES else _colour(image)
            shown = _upright(shown, image)
    except _unreadable() as error:
        raise _not_readable(path, error) from error
    width, height = _scaled_size(path, shown.size, side)
    left, top = (width - side) // 2, (height - side) // 2
    resized = shown.resize((width, height), pillow().Resampling.BILINEAR)
    found = np.asarray(resized.crop((left, top, left + side, top + side)), np.float32)
    return found if found.ndim == 3 else np.repeat(found[..., None], 3, axis=2)


def _check(path: Path, image: Any, side: int) -> None:
    """Raises DataFormatError: the header says that the pixels cannot be used."""
    _scaled_size(path, image.size, side)
    tags = getattr(image, "tag_v2", {})
    format_ = tags.get(SAMPLE_FORMAT, 1)
    signed = SIGNED in (format_ if isinstance(format_, tuple) else (format_,))
    if signed and _bits(image) < 32:
        raise _no_picture(path, f"signed numbers of {_bits(image)} bits")
    deep = any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
    if deep and image.mode == "RGB" and "transparency" in image.info:
        # Pillow keeps 8 of the 16 bits, and compares these with 16.
        raise _no_picture(path, "16-bit colours of which one is clear")
    if image.mode not in BYTE_MODES | DEEP_MODES:
        raise _no_picture(path, f"{image.mode} pixels")


def _bits(image: Any) -> int:
    """Of a channel, where a TIFF says it; else those of the type."""
    bits = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE)
    if bits is None:
        return 8 if image.mode in BYTE_MODES else 16 if image.mode.startswith("I;16") else 32
    return int(bits[0] if isinstance(bits, tuple) else bits)


def _grey(path: Path, image: Any) -> Any:
    """A grey image of more than 8 bits, from 0 to 255 in floats.

    Raises:
        DataFormatError: values outside the range of 16 bits, or of floats outside 0 to 1.
    """
    values = np.asarray(image)
    floats = image.mode == "F"
    most = 1.0 if floats else (1 << min(_bits(image), 16)) - 1
    low, high = values.min(), values.max()  # NaN if there is one
    if not (low >= 0 and high <= most):
        kind = "floats" if floats else f"numbers of {_bits(image)} bits"
        raise DataFormatError(
            f"{path} holds {kind}, and they are not shades of grey", path=str(path),
            numbers=f"from {low:g} to {high:g}; black is 0 and white {most:g}",
            fix="scale it, and write it again with 8 or 16 bits",
        )  # fmt: skip
    shades = values.astype(np.float32) * np.float32(255 / most)
    if getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == WHITE_IS_ZERO:
        shades = 255 - shades  # Pillow does so with 8 bits alone
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        shades[values == clear] = 255
    return pillow().fromarray(shades)


def _colour(image: Any) -> Any:
    """An image of 8 bits as RGB, what is transparent laid on white."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    white = pillow().new("RGBA", layer.size, "white")
    return pillow().alpha_composite(white, layer).convert("RGB")


def _upright(shown: Any, image: Any) -> Any:
    """Turned as EXIF says; where its data is broken not at all, as viewers do."""
    try:
        orientation = image.getexif().get(ORIENTATION)
    except Exception:  # whatever its parser trips over
        return shown
    turn = UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return shown if turn is None else shown.transpose(pillow().Transpose[turn])


def _scaled_size(path: Path, size: tuple[int, int], side: int) -> tuple[int, int]:
    """Width and height with the shorter side scaled to `side`. Raises DataFormatError: too many
    pixels."""
    scale = side / max(1, min(size))
    width, height = (max(side, round(extent * scale)) for extent in size)
    if max(size[0] * size[1], width * height) > MOST_PIXELS:
        raise DataFormatError(
            f"{path} has too many pixels", path=str(path),
            numbers=f"{size[0]} x {size[1]}, scaled {width} x {height}; at most {MOST_PIXELS}",
            fix="make it smaller, or remove it",
        )  # fmt: skip
    return width, height


def _unreadable() -> tuple[type[Exception], ...]:
    """What Pillow raises of broken files: its parsers of headers raise what they trip over."""
    broken = (OSError, ValueError, SyntaxError, TypeError, KeyError, IndexError, EOFError)
    return (*broken, OverflowError, pillow().DecompressionBombError)


def _not_readable(path: Path, error: Exception) -> DataFormatError:
    return DataFormatError(
        f"{path} is not a readable image: {error}",
        path=str(path),
        fix="remove the file, or write it again",
    )


def _no_picture(path: Path, what: str) -> DataFormatError:
    return DataFormatError(
        f"{path} holds {what}, which are shown in no one way", path=str(path),
        fix="convert it to RGB, or to grey of 8 or 16 bits; or remove it",
    )  # fmt: skip
