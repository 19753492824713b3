"""Kernels for NVIDIA GPUs, in Numba. Read next: `runtime/shim.py`, `elementwise.py`,
`runtime/launcher.py`.
"""
