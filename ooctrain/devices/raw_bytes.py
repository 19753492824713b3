"""The bytes at an address as an array, which does not keep the memory alive.

An arena, a GPU's pinned memory and a fake's bytes are all addresses. NumPy accepts an address
through its array interface, so an address and a size, as plain ints, give a uint8 array over these
bytes. Read next: `driver_calls.py`, `cpu/host_vm.py`.
"""

from __future__ import annotations

import math

import numpy as np


class _Bytes:
    """Lets NumPy make an array over a raw address."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, size_bytes: int):
        self.__array_interface__ = {
            "shape": (size_bytes,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def bytes_at(address: int, size_bytes: int) -> np.ndarray:
    """The uint8 array over [address, address + size_bytes)."""
    return np.asarray(_Bytes(address, size_bytes))


def array_at(address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """The array at an address; one without elements lies nowhere."""
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if not size_bytes:
        return np.empty(shape, dtype)
    return bytes_at(address, size_bytes).view(dtype).reshape(shape)
