"""Vectors of the cpu in Numba: loads, stores, arithmetic on whole registers, by LLVM intrinsics.

Importing anything from this folder defines `+ - * /` of vectors. A kernel that only adds imports no
name of `simd.py`, and would not compile otherwise. Read next: `simd.py` for the type and
its arithmetic, `simd_memory.py` for loads and stores.
"""

from ooctrain.layers.kernels.cpu.simd import simd

__all__ = ["simd"]
