"""Images in folders: one folder for each class, any format that Pillow reads.

The files are root/train/<class>/*.png and root/val/<class>/*.png, or root/<class>/*.png, of which
every fifth, by a fixed random order, is for testing. Images are in colour; their shorter side is
scaled and the middle cut out. Needs the extra `data`. Read next: `synthetic.py`.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import numpy as np

from ooctrain.data.dataset import Batch, Shape, permutation, stack
from ooctrain.data.extras import extra
from ooctrain.errors import DataFormatError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
TEST_FOLDERS = ("val", "test")
TEST_SHARE = 5
SPLIT_KEY = 20260102
#: Of an image, before and after it is scaled: 8192 x 8192, about half a GiB while it is decoded. A
#: small file may announce far more.
MOST_PIXELS = 1 << 26
#: ImageNet's mean and standard deviation, pixels 0 to 255.
MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


class ImageFolder:
    """Decodes an image when it is asked for.

    Args:
        files: paths with the number of their class.
        class_names: names of the classes, in order.
        image_size: height and width.
    """

    def __init__(self, files: list[tuple[Path, int]], class_names: list[str], image_size: int):
        self.files, self.class_names = files, class_names
        self.shape = Shape(3, image_size, image_size, len(class_names))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path, label = self.files[index]
        return decode(path, self.shape.height), label

    def take(self, indices: np.ndarray) -> Batch:
        """The samples `indices` as (images (n, 3, H, W) float32, labels (n,) int64)."""
        return stack(self, indices)


def image_folder(root: str | Path, train: bool = True, image_size: int = 224) -> ImageFolder:
    """Images in one folder for each class, decoded when they are asked for.

    Args:
        root: the folder above those of the classes, or above "train" and "val".
        train: which of the two parts.
        image_size: height and width; the shorter side is scaled to it, the middle cut out.

    Raises:
        ConfigError: Pillow is not installed.
        DataFormatError: no folder, no class, or a class without an image.
    """
    _pillow()
    top = Path(root)
    names, files = _split_by_folder(top, train) if (top / "train").is_dir() else _split(top, train)
    return ImageFolder(files, names, image_size)


def decode(path: Path, side: int) -> np.ndarray:
    """One image as (3, side, side) float32, scaled and cut to its middle.

    Raises:
        DataFormatError: Pillow cannot read it, or it has more than `MOST_PIXELS` pixels, before it
            is scaled or afterwards; then it is not decoded.
    """
    pillow = _pillow()
    try:
        with pillow.open(path) as image:
            width, height = _scaled_size(path, image.size, side)
            colour = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise DataFormatError(
            f"{path} is not a readable image: {error}",
            path=str(path),
            fix="remove the file, or write it again",
        ) from error
    left, top = (width - side) // 2, (height - side) // 2
    resized = colour.resize((width, height), pillow.Resampling.BILINEAR)
    pixels = np.asarray(resized.crop((left, top, left + side, top + side)), np.float32)
    scaled = (pixels - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


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


def _split_by_folder(top: Path, train: bool) -> tuple[list[str], list[tuple[Path, int]]]:
    names, files = _list_classes(top / "train")
    if train:
        return names, files
    tests = [top / name for name in TEST_FOLDERS if (top / name).is_dir()]
    if not tests:
        raise DataFormatError(
            f"{top} has a folder train but neither val nor test",
            path=str(top),
            fix=f"a folder {top}/val with the same classes",
        )
    test_names, test_files = _list_classes(tests[0])
    if test_names != names:
        raise DataFormatError(
            f"{tests[0]} has other classes than train",
            path=str(tests[0]),
            numbers=f"only in one of them: {', '.join(sorted(set(names) ^ set(test_names)))}",
            fix="the same folders in both, one for each class",
        )
    return test_names, test_files


def _split(top: Path, train: bool) -> tuple[list[str], list[tuple[Path, int]]]:
    names, files = _list_classes(top)
    tests = set(permutation(len(files), SPLIT_KEY)[: len(files) // TEST_SHARE].tolist())
    return names, [file for i, file in enumerate(files) if (i in tests) != train]


def _list_classes(folder: Path) -> tuple[list[str], list[tuple[Path, int]]]:
    if not folder.is_dir():
        raise DataFormatError(
            f"{folder} is not a folder",
            path=str(folder),
            fix="DATA/train/CLASS/*.png and DATA/val/CLASS/*.png",
        )
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    files = [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in ENDINGS and path.is_file()
    ]
    if not files:
        raise DataFormatError(
            f"{folder} holds no image in a folder of its class",
            path=str(folder),
            fix=f"{folder}/<class>/<name>.png and so on; endings {', '.join(ENDINGS)}",
        )
    empty = [name for label, name in enumerate(names) if label not in {k for _, k in files}]
    if empty:
        raise DataFormatError(
            f"{folder} has classes without an image",
            path=str(folder),
            numbers=", ".join(empty),
            fix="remove these folders, or fetch their images again",
        )
    return names, files


def _pillow() -> ModuleType:
    return extra("PIL.Image", "Pillow", "image folders")
