"""CPU kernels. Nothing is imported here: a module compiles its kernels when first imported.

Planning needs only `conv/conv_workspace.py`, which is pure Python. Read next:
`runtime/kernel_jit.py`, `runtime/pool.py`, `simd/simd.py`, `conv/brgemm.py`, `conv/conv_direct.py`.
"""
