"""Images in folders: one folder for each class, in the formats of `ENDINGS`.

The files are root/train/<class>/*.png and root/val/<class>/*.png, or root/<class>/*.png. Of the
latter about every fifth is for testing: which ones follows from a hash of each file's path below
the folder of the classes, and from nothing else. So a file stays on its side, whatever is added or
removed. Hidden files and folders are left out. Images are in colour; their shorter side is scaled
and the middle cut out. Needs the extra `data`. Read next: `picture.py`, then `synthetic.py`.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ooctrain.data.dataset import Batch, Shape, stack, wants_bytes
from ooctrain.data.picture import check_header, pillow, pixels
from ooctrain.errors import DataFormatError, warn
from ooctrain.step.arguments import checked
from ooctrain.step.user_values import as_path

ENDINGS = (".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".avif",
           ".pbm", ".pgm", ".ppm", ".pnm", ".tif", ".tiff")  # fmt: skip
#: Images, too, but in formats that are not read: they are refused, not left out in silence.
UNREAD_ENDINGS = (".heic", ".heif", ".jp2", ".jxl", ".svg", ".psd", ".exr", ".hdr", ".dcm",
                  ".dng", ".raw", ".cr2", ".cr3", ".nef", ".arw", ".ico", ".tga",
                  ".svs", ".pfm", ".pcx", ".xcf", ".eps", ".fits", ".nii", ".mha")  # fmt: skip
#: Folders that programs leave without hiding them: archives of macOS, Synology, Windows, Python.
LITTER = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found",
          "#recycle", "__pycache__")  # fmt: skip
#: How folders of parts are called, in capitals or not; the first that is there is taken.
TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("val", "valid", "validation", "test", "testing")
TEST_SHARE = 5
_NAMED_AT_MOST = 5
#: ImageNet's mean and standard deviation, pixels 0 to 255.
MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


class ImageFolder:
    """Decodes an image when it is requested.

    Args:
        files: paths with the number of their class.
        classes: names of the classes, in order.
        image_size: height and width.
        top: the folder above those of the classes.
    """

    def __init__(
        self, files: list[tuple[Path, int]], classes: list[str], image_size: int, top: Path
    ):
        self.files, self.classes, self.top = files, classes, top
        self.shape = Shape(3, image_size, image_size, len(classes))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path, label = self.files[index]
        if wants_bytes():
            return ImageFolder.take_bytes(self, np.array([index]))[0][0], label
        return decode(path, self.shape.height), label

    def take(self, indices: np.ndarray) -> Batch:
        """The samples `indices` as (images (n, 3, H, W) float32, labels (n,) int64)."""
        return stack(self, indices)

    def take_bytes(self, indices: np.ndarray) -> Batch:
        """The same with images as uint8, from 0 to 255, for a model that normalises them itself."""
        chosen = [self.files[int(i)] for i in indices]
        shown = [np.rint(pixels(path, self.shape.height)).astype(np.uint8) for path, _ in chosen]
        labels = np.array([label for _, label in chosen], np.int64)
        return np.ascontiguousarray(np.stack(shown).transpose(0, 3, 1, 2)), labels

    def fingerprint(self) -> str:
        """Of the files: their paths below `top`, and their sizes in bytes. Their content is not
        read, which would take as long as an epoch."""
        found = hashlib.sha256()
        for path, label in self.files:
            below = _plain(path.relative_to(self.top).as_posix())
            size = path.stat().st_size
            found.update(f"{below}\0{label}\0{size}\0".encode("utf-8", "surrogateescape"))
        return found.hexdigest()


@checked
def image_folder(root: str | Path, train: bool = True, image_size: int = 224) -> ImageFolder:
    """Images in one folder for each class, decoded when they are requested.

    The header of each file is read at once, so what it says is found before training.

    Args:
        root: the folder above those of the classes, or above "train" and "val".
        train: which of the two parts. A class that has no image in it is named in a warning.
        image_size: height and width; the shorter side is scaled to it, the middle cut out.

    Raises:
        ConfigError: Pillow is not installed.
        DataFormatError: no folder, no class, a class without an image, no image to train on, or a
            file that is not one image of shades or colours (`picture.py`).
    """
    pillow()
    top = as_path(root)
    training = _part(top, TRAIN_FOLDERS)
    if training is None or _is_a_class(training, top):
        above, names, files = top, *_split(top, train)
    elif train:
        above, names, files = training, *_list_classes(training)
    else:
        above, names, files = _test_part(top, training)
    for path, _ in files:
        check_header(path, image_size)
    return ImageFolder(files, names, image_size, above)


def decode(path: Path, side: int) -> np.ndarray:
    """One image as (3, side, side) float32, scaled, cut to its middle, and normalised.

    Raises:
        DataFormatError: it cannot be read or shown, see `picture.pixels`.
    """
    scaled = (pixels(path, side) - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def is_for_testing(below: str) -> bool:
    """Whether an image is for testing, by its path below the folder of the classes.

    Args:
        below: such as "cat/1.png"; accents count alike in either of Unicode's spellings, as disks
            differ in them.
    """
    spelled = _plain(below).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.sha256(spelled).digest()[:8], "big") % TEST_SHARE == 0


def _part(top: Path, names: Sequence[str]) -> Path | None:
    """The folder of one of these names; None: there is none."""
    folders = _folders_in(top) if top.is_dir() else []
    found = [f for name in names for f in folders if f.name.lower() == name]
    return found[0] if found else None


def _is_a_class(training: Path, top: Path) -> bool:
    """Whether a folder called train is a class beside others, such as bus, and not a part: then
    there is none to test, and none of a class in it."""
    alone = len(_folders_in(top)) == 1 or _part(top, TEST_FOLDERS) is not None
    return not alone and not _folders_in(training)


def _test_part(top: Path, training: Path) -> tuple[Path, list[str], list[tuple[Path, int]]]:
    """The folder of the classes, their names, and the files. No files, with a warning, where there
    is no folder of them."""
    names, _ = _list_classes(training)
    test = _part(top, TEST_FOLDERS)
    if test is None:
        warn(f"{top} has no folder val or test beside {training.name}: no image is tested")
        return training, names, []
    test_names, files = _list_classes(test)
    if test_names != names:
        raise DataFormatError(
            f"{test} has other classes than {training.name}",
            path=str(test),
            numbers=f"only in one of them: {', '.join(sorted(set(names) ^ set(test_names)))}",
            fix="the same folders in both, one for each class",
        )
    return test, names, files


def _split(top: Path, train: bool) -> tuple[list[str], list[tuple[Path, int]]]:
    names, files = _list_classes(top)
    part = [
        (path, label)
        for path, label in files
        if is_for_testing(path.relative_to(top).as_posix()) != train
    ]
    side, there = "train on" if train else "test", {label for _, label in part}
    if train and not part:
        raise DataFormatError(
            f"{top} has no image to train on", path=str(top),
            numbers=f"all {len(files)} images are for testing", fix="add images",
        )  # fmt: skip
    lacking = [name for label, name in enumerate(names) if label not in there]
    if lacking:
        warn(
            f"{top} has no image to {side} of {_listed(lacking)}: a hash of its path deals each "
            "image; folders train and val deal them as you like"
        )
    return names, part


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence, the first ones of many."""
    more = len(names) - _NAMED_AT_MOST
    shown = ", ".join(map(repr, names[:_NAMED_AT_MOST])) + (f" and {more} more" if more > 0 else "")
    return f"class{'es' if len(names) > 1 else ''} {shown}"


def _list_classes(folder: Path) -> tuple[list[str], list[tuple[Path, int]]]:
    if not folder.is_dir():
        raise DataFormatError(
            f"{folder} is not a folder",
            path=str(folder),
            fix="DATA/train/CLASS/*.png and DATA/val/CLASS/*.png",
        )
    folders = _folders_in(folder)
    names = [_plain(path.name) for path in folders]
    files = [(path, label) for label, one in enumerate(folders) for path in _images_in(one)]
    if not files:
        raise DataFormatError(
            f"{folder} holds no image in a folder of its class",
            path=str(folder),
            fix=f"{folder}/<class>/<name>.png and so on; endings {', '.join(ENDINGS)}",
        )
    stray = [path for path in _visible(folder) if path.suffix.lower() in ENDINGS]
    stray = [path for path in stray if path not in folders]
    if stray:
        warn(
            f"{len(stray)} images of {folder} lie beside the folders of the classes, such as "
            f"{stray[0].name!r}, and are left out"
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


def _images_in(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """The images of a class, those in folders of its folder included; links are followed, circles
    of them once.

    Raises:
        DataFormatError: an image in a format that is not read.
    """
    here = folder.resolve()
    for path in _visible(folder) if here not in above else ():
        ending = path.suffix.lower()
        if path.is_dir():
            yield from _images_in(path, (*above, here))
        elif ending in UNREAD_ENDINGS:
            raise DataFormatError(
                f"{path} is an image of a format that is not read here", path=str(path),
                fix=f"convert it, or move it away; read are {', '.join(ENDINGS)}",
            )  # fmt: skip
        elif ending in ENDINGS and (path.is_file() or not path.exists()):  # a link to nothing
            yield path


def _folders_in(folder: Path) -> list[Path]:
    return [path for path in _visible(folder) if path.is_dir()]


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, in order, but what is hidden or left by programs."""
    names = [n for n in os.listdir(folder) if not n.startswith(".") and n not in LITTER]
    return [folder / name for name in sorted(names, key=lambda name: (_plain(name), name))]


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name)
