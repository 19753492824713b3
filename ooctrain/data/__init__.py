"""Data: sets of labelled images by name, and the loader that makes batches of them.

In: names, folders, seeds. Out: (images (N, C, H, W) float32, labels (N,) int64) batch by batch.
Read next: `dataset.py`, `loader.py`, `registry.py`.
"""

from ooctrain.data.cifar10 import cifar10
from ooctrain.data.dataset import Dataset, ImageDataset, Shape
from ooctrain.data.digits import digits
from ooctrain.data.folder import image_folder
from ooctrain.data.loader import DataLoader
from ooctrain.data.mnist import mnist
from ooctrain.data.registry import SOURCES, load, shape_of
from ooctrain.data.synthetic import synthetic

__all__ = [
    "SOURCES",
    "DataLoader",
    "Dataset",
    "ImageDataset",
    "Shape",
    "cifar10",
    "digits",
    "image_folder",
    "load",
    "mnist",
    "shape_of",
    "synthetic",
]
