"""How operations are computed, by device: `cpu/` (Numba range kernels) and `cuda/`.

Read next: `kernel_table.py`, then `cpu/table.py`.
"""
