"""Kernels for NVIDIA GPUs, in Numba. Read next: `table.py`, `runtime/shim.py`, `elementwise.py`,
`runtime/launcher.py`.
"""
