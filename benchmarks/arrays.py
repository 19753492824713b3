"""The memory in which kernels are timed: the same kind for ooctrain and for torch.

Whether an array lies in pages of 2 MiB or of 4 KiB changes a kernel's time by a third, and with
`malloc` this is left to chance. So here large arrays, aligned as variables are in the arena, are
shared memory, as the cpu device's arena is, and ask for large pages (where `shmem_enabled` is
`never` all get small ones); torch's outputs are views of such arrays too. Read next:
`bench_ops.py`.
"""

from __future__ import annotations

import mmap

import numpy as np
import torch

HUGE_PAGE_BYTES = 2 << 20
LINE_BYTES = 64


def scratch(size_bytes: int) -> np.ndarray:
    """Zeroed bytes at a multiple of 64, in large pages where the system has them."""
    align = HUGE_PAGE_BYTES if size_bytes >= HUGE_PAGE_BYTES else LINE_BYTES
    space = mmap.mmap(-1, size_bytes + align) if align == HUGE_PAGE_BYTES else None
    if space is not None and hasattr(mmap, "MADV_HUGEPAGE"):
        space.madvise(mmap.MADV_HUGEPAGE)
    whole = (
        np.zeros(size_bytes + align, np.uint8) if space is None else np.frombuffer(space, np.uint8)
    )
    start = -whole.ctypes.data % align
    array = whole[start : start + size_bytes]
    array[...] = 0  # every page is there before the clock runs
    return array


def empty(shape: int | tuple[int, ...]) -> np.ndarray:
    """An aligned float32 array."""
    return scratch(4 * int(np.prod(shape))).view(np.float32).reshape(shape)


def empty_like(array: np.ndarray) -> np.ndarray:
    """Another one of the same shape."""
    return empty(array.shape)


def tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    """The same memory as torch sees it."""
    return tuple(torch.from_numpy(a) for a in arrays)


def tensor_like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of the same shape and layout in memory of its own."""
    dtype = dtype or tensor.dtype
    space = torch.from_numpy(scratch(tensor.numel() * dtype.itemsize)).view(dtype)
    return space.as_strided(tensor.size(), tensor.stride())


def both_layouts(nhwc: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """The same data as a contiguous NCHW tensor and as a channels_last one."""
    last = torch.from_numpy(nhwc).permute(0, 3, 1, 2)
    n, c, h, w = last.shape
    first = tensor_like(torch.empty((n, c, h, w), device="meta", dtype=last.dtype))
    return first.copy_(last), last
