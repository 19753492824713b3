"""Kernels for NVIDIA GPUs, in Numba. Read next: `shim.py`, `elementwise.py`, `launcher.py`."""
