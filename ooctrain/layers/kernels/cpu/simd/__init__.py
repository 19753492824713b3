"""Vectors of the cpu in Numba: loads, stores, arithmetic on whole registers, by LLVM intrinsics.

Read next: `simd.py` for the type, `vector.py` for how wide it is, `simd_memory.py` for loads and
stores.
"""
