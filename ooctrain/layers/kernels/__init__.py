"""Kernels by device: `cpu/` (Numba range kernels) and `cuda/`. What all devices share: `conv_shape.py`."""
