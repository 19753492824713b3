"""Data sets by name, as `--data` takes them: "digits", "cifar10:path=DIR", "synthetic:samples=512".

A file or folder may be given short: "mnist:DIR". A text that names no data set, but a folder, is
that folder of images: "photos" is "folder:photos". Read next: `loader.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ooctrain.data.cifar10 import cifar10
from ooctrain.data.dataset import Dataset, Samples, Shape, Target, pair_of
from ooctrain.data.digits import digits
from ooctrain.data.download import data_folder, fetch_cifar10
from ooctrain.data.folder import image_folder
from ooctrain.data.mnist import mnist
from ooctrain.data.synthetic import synthetic, synthetic_images, synthetic_pixels
from ooctrain.errors import ConfigError, unknown_name
from ooctrain.plugins import is_path
from ooctrain.step.arguments import checked
from ooctrain.step.user_values import as_path


@dataclass(frozen=True, slots=True)
class DataSource:
    """A data set that can be named.

    Args:
        load: makes it from keyword arguments, of which `train` and `image_size` are always given.
        image_size: the usual one.
        numbers: names of its whole-number parameters.
        needs_path: whether it reads a folder (passed as `root`).
        fetch: brings it into a folder; None: it must not be fetched.
        scales: whether images of any size are scaled to the size that is requested.
    """

    load: Callable[..., Dataset]
    image_size: int
    numbers: tuple[str, ...] = ()
    needs_path: bool = False
    fetch: Callable[[Path], None] | None = None
    scales: bool = False


SOURCES: Mapping[str, DataSource] = MappingProxyType(
    {
        "digits": DataSource(digits, 32, ("channels",)),
        "cifar10": DataSource(cifar10, 32, needs_path=True, fetch=fetch_cifar10),
        "mnist": DataSource(mnist, 28, ("channels",), needs_path=True),
        "folder": DataSource(image_folder, 224, needs_path=True, scales=True),
        "synthetic": DataSource(synthetic, 32, ("channels", "classes", "samples", "seed")),
        "synthetic-pixels": DataSource(
            synthetic_pixels, 64, ("channels", "classes", "samples", "seed")
        ),
        "synthetic-images": DataSource(synthetic_images, 64, ("channels", "samples", "seed")),
    }
)
#: Images are scaled to this multiple of the size that is cut out of them: 256 for 224, as usual.
CROP_MARGIN = 8 / 7


@checked
def load(
    text: str | PathLike[str], *, train: bool = True, image_size: int | None = None,
    download: bool = False, crop: int | None = None,
) -> Dataset:  # fmt: skip
    """The data set that a text names.

    Args:
        text: name, then after a colon its parameters: "synthetic:classes=4,samples=256",
            "cifar10:DIR"; or a folder of images, also as a path.
        train: the training or the test part.
        image_size: height and width; None: the usual one of this data set, or with room for
            `crop`.
        download: fetches the files first, if they are not there. Without a path they are kept in
            the cache's folder, and found there later.
        crop: what a transform will cut out of each image: a folder's images then have 8/7 of it.

    Raises:
        ConfigError: an unknown name or parameter, no path (or two) where one is needed, a data set
            that cannot be fetched, or images without pixels.
        DataFormatError: the files are broken.
    """
    text = text if isinstance(text, str) else f"folder:{fspath(text)}"
    name, _, rest = text.partition(":")
    if text and name not in SOURCES:
        name, rest = _as_folder(text, name, rest)
    source = _find(name)
    options = _parse_options(name, source, rest)
    if source.needs_path and "root" not in options:
        options["root"] = _folder_of(name, source, download)
    if download:
        _fetch(name, source, Path(str(options.get("root", ""))))
    usual = round(crop * CROP_MARGIN) if crop and source.scales else source.image_size
    size = usual if image_size is None else image_size
    if size < 1:
        raise ConfigError(
            f"the image size {size} is not 1 or more",
            code="OOC-106",
            fix="--image-size 1 or more",
        )
    return source.load(train=train, image_size=size, **options)


def same_source(one: str, other: str) -> bool:
    """Whether two texts name the same data set: "pics", "folder:./pics/" and "~/pics" may."""
    try:
        return _meant(one) == _meant(other)
    except ConfigError:
        return one == other


def _meant(text: str) -> tuple[str, dict[str, str | int]]:
    name, _, rest = text.partition(":")
    if name not in SOURCES:
        name, rest = _as_folder(text, name, rest)
    options = _parse_options(name, _find(name), rest)
    if "root" in options:
        options["root"] = str(Path(str(options["root"])).resolve())
    return name, options


@checked
def shape_of(dataset: Samples) -> Shape:
    """Channels, extents, classes and kind of target; looks at the samples of a foreign data set."""
    shape = getattr(dataset, "shape", None)
    if isinstance(shape, Shape):
        return shape
    if not len(dataset):
        raise ConfigError("a data set without samples has no shape", code="OOC-106", fix="data")
    image, target = pair_of(dataset[0], "sample 0")
    channels, height, width = image.shape
    if np.ndim(target) == 3:
        return Shape(channels, height, width, len(target), "image")
    classes = 1 + max(int(np.max(dataset[i][1])) for i in range(len(dataset)))
    kind: Target = "class" if np.ndim(target) == 0 else "pixels"
    return Shape(channels, height, width, classes, kind)


def _find(name: str) -> DataSource:
    if name not in SOURCES:
        otherwise = "one of these, or a folder with a folder of images for each class"
        raise unknown_name("no data set is called", name, SOURCES, otherwise)
    return SOURCES[name]


def _as_folder(text: str, name: str, rest: str) -> tuple[str, str]:
    """A text that names no data set, as "folder" and its path where there is such a folder. Raises
    ConfigError: it is a path, and there is no folder."""
    path = as_path(text)
    if path.is_dir():
        return "folder", f"path={text}"
    if ("/" in text or is_path(name)) and name not in SOURCES:
        raise ConfigError(
            f"{path} is a file, not a folder" if path.exists() else f"there is no folder {path}",
            code="OOC-106",
            fix="the path of a folder with a folder of images for each class",
        )  # fmt: skip
    return name, rest


def _parse_options(name: str, source: DataSource, rest: str) -> dict[str, str | int]:
    options: dict[str, str | int] = {}
    items = rest.split(",") if rest else []
    if source.needs_path:
        path, items = _path_and_rest(name, source, items)
        if path:
            options["root"] = str(as_path(path))
    for item in items:
        key, _, value = item.partition("=")
        if key in source.numbers and value.isdecimal():
            options[key] = int(value)
        else:
            raise ConfigError(
                f"data set {name!r} does not know {item!r}",
                code="OOC-106",
                numbers=f"whole numbers: {', '.join(source.numbers) or 'none'}",
                fix=f"for example --data {_example(name, source)}",
            )
    return options


def _path_and_rest(name: str, source: DataSource, items: list[str]) -> tuple[str, list[str]]:
    """The folder among the options, whose name may hold commas, and the others.

    Raises:
        ConfigError: there are two.
    """

    def is_other(item: str) -> bool:
        key, equals, value = item.partition("=")
        return bool(equals) and key in source.numbers and value.isdecimal()

    places = [place for place, item in enumerate(items) if not is_other(item)]
    if not places:
        return "", items
    first, end = places[0], places[-1] + 1
    found = ",".join(items[first:end])
    path = found if as_path(found).is_dir() else found.removeprefix("path=")
    if end - first > 1 and not as_path(path).is_dir():
        raise ConfigError(
            f"data set {name!r} takes one folder, and {items[first + 1]!r} is a second",
            code="OOC-106", fix=f"one folder; there is none called {path!r}",
        )  # fmt: skip
    key, equals, _ = path.partition("=")
    if equals and "/" not in key and not as_path(path).is_dir():
        return "", items  # an option that it does not know
    return path, items[:first] + items[end:]


def _folder_of(name: str, source: DataSource, download: bool) -> str:
    """Where a data set lies, or will lie, whose folder is not named."""
    folder = data_folder(name)
    if source.fetch is None or not (download or folder.is_dir()):
        raise ConfigError(
            f"data set {name!r} needs the folder of its files",
            code="OOC-106",
            fix=f"for example --data {_example(name, source)}"
            + (f", or --data {name} --download" if source.fetch else ""),
        )
    return str(folder)


def _fetch(name: str, source: DataSource, folder: Path) -> None:
    if source.fetch is None:
        fetched = ", ".join(other for other, each in SOURCES.items() if each.fetch)
        raise ConfigError(
            f"data set {name!r} is not fetched by --download", code="OOC-106",
            fix=f"leave --download out; it fetches {fetched}",
        )  # fmt: skip
    source.fetch(folder)


def _example(name: str, source: DataSource) -> str:
    if source.needs_path:
        return f"{name}:path=DIR"
    return f"{name}:{source.numbers[-1]}=3"
