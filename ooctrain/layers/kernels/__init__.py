"""Kernels by device: `cpu/` (Numba range kernels) and `cuda/`."""
