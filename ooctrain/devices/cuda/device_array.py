"""A device array for launches of our own: its address and shape, without bytes or Numba.

The contents of an array cannot be read before its kernel runs, so an address, a shape and an
element type are all that a launch may know of it. They give the same bytes in other forms, and the
words that a kernel gets. The fake GPU uses the same class. Read next: `launches.py`,
`testing/fake_gpu.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


class DeviceArray:
    """A device array: where it is, and its shape. What a kernel gets of it is `words`."""

    __slots__ = ("address", "dtype", "shape", "size", "words")

    def __init__(self, address: int, shape: tuple[int, ...], dtype: Any):
        self.address, self.shape, self.dtype = address, shape, np.dtype(dtype)
        self.size = math.prod(shape)
        width = self.dtype.itemsize
        self.words = (0, 0, self.size, width, address, self.size, width)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False),
            "strides": None, "version": 3, "stream": None,
        }  # fmt: skip

    def reshape(self, *shape: Any) -> DeviceArray:
        """The same bytes in another shape."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        # NumPy knows how to resolve -1, and what does not fit.
        found = np.broadcast_to(np.zeros((), np.uint8), self.shape).reshape(wanted).shape
        return DeviceArray(self.address, found, self.dtype)

    def ravel(self) -> DeviceArray:
        """The same bytes along one axis."""
        return DeviceArray(self.address, (self.size,), self.dtype)

    def __getitem__(self, keys: slice | tuple[slice, ...]) -> DeviceArray:
        """A part that lies in one piece."""
        # NumPy knows where it begins and how its axes lie; nothing of this array is looked at.
        whole = np.broadcast_to(np.zeros((), self.dtype), self.shape)
        strides = np.cumprod([self.dtype.itemsize, *self.shape[:0:-1]])[::-1]
        laid = np.lib.stride_tricks.as_strided(whole, strides=strides, writeable=False)
        part = laid[keys]
        assert part.flags.c_contiguous, f"{keys} of {self.shape} does not lie in one piece"
        start = part.__array_interface__["data"][0] - laid.__array_interface__["data"][0]
        return DeviceArray(self.address + start, part.shape, self.dtype)

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes as elements of another type, along one axis."""
        return DeviceArray(self.address, (self.nbytes // np.dtype(dtype).itemsize,), dtype)
