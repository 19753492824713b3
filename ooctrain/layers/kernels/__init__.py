"""Kernels by device: `cpu/` (Numba range kernels) and `cuda/`; `conv_shape.py` is for both."""
