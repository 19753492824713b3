"""Downloads public data sets from their authors' pages, once.

pooch fetches a file, compares it with the checksum given here, and keeps it. A file that is there
already is not fetched again, and one that arrives altered is refused. Nothing is fetched unless the
user requests it (`--download`). Source: https://www.fatiando.org/pooch. Read next: `cifar10.py`.
"""

from __future__ import annotations

from pathlib import Path

from ooctrain.data.extras import extra
from ooctrain.errors import DataFormatError
from ooctrain.step.presets import cache_base

CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_HASH = "md5:c32a1d4ab5d03f1284b67883e8d87530"  # as the authors' page gives it


def data_folder(name: str) -> Path:
    """Where a data set lies that was fetched without a folder of its own."""
    return cache_base() / "data" / name


def fetch_cifar10(folder: Path) -> None:
    """Puts the binary version of CIFAR-10 (162 MiB, 170 MiB unpacked) into a folder, if it is not
    there.

    Raises:
        ConfigError: pooch is not installed.
        DataFormatError: it cannot be fetched, or is not what its authors published.
    """
    if (folder / "cifar-10-batches-bin" / "test_batch.bin").is_file():
        return
    pooch = extra("pooch", "pooch", "data sets to be fetched", "fetch the files by hand")
    try:
        pooch.retrieve(
            CIFAR10_URL, CIFAR10_HASH, fname="cifar-10-binary.tar.gz", path=folder,
            processor=pooch.Untar(extract_dir="."),
        )  # fmt: skip
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; ValueError: the hash
        raise DataFormatError(
            f"CIFAR-10 cannot be fetched: {str(error).splitlines()[0]}",
            path=CIFAR10_URL,
            fix=f"fetch and unpack it by hand, then --data cifar10:DIR; or free {folder}",
        ) from error
