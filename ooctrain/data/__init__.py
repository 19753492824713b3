"""Data: sets of labelled images by name, and the loader that makes batches of them.

Data sets and loaders are made from names, folders and seeds. A batch is a pair (images, targets).
Images are (N, C, H, W) float32, or are read from their files by rows (`row_image.py`). Targets are
class numbers (N,) int64, class numbers of each pixel (N, H, W) int64, or images (N, C, H, W)
float32. Read next: `dataset.py`, `loader.py`, `data_sets.py`, `transforms.py`.
"""

from typing import NoReturn

from ooctrain.data import transforms
from ooctrain.data.cifar10 import cifar10
from ooctrain.data.data_sets import SOURCES, load, shape_of
from ooctrain.data.dataset import DataIdentity, Dataset, ImageDataset, Shape, Target, identity_of
from ooctrain.data.digits import digits
from ooctrain.data.folder import image_folder
from ooctrain.data.loader import DataLoader
from ooctrain.data.mnist import mnist
from ooctrain.data.row_image import RowImage
from ooctrain.data.synthetic import synthetic, synthetic_images, synthetic_pixels
from ooctrain.data.tensors import Subset, TensorDataset, random_split
from ooctrain.data.transforms import Augmentation

__all__ = [
    "SOURCES",
    "Augmentation",
    "DataIdentity",
    "DataLoader",
    "Dataset",
    "ImageDataset",
    "RowImage",
    "Shape",
    "Subset",
    "Target",
    "TensorDataset",
    "cifar10",
    "digits",
    "identity_of",
    "image_folder",
    "load",
    "mnist",
    "random_split",
    "shape_of",
    "synthetic",
    "synthetic_images",
    "synthetic_pixels",
    "transforms",
]


def __getattr__(name: str) -> NoReturn:
    # Not at the top: a table of words, read when a name is missing.
    from ooctrain.engine.torch_names import refusal

    raise refusal(__name__, name, "data", __all__)
