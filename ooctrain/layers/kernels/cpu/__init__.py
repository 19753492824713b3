"""CPU kernels. Nothing is imported here: a module compiles its kernels when first imported.

Planning needs only `conv_plan.py`, which is pure Python. Read next: `jit.py`, `pool.py`,
`vector.py`, `brgemm.py`, `conv_direct.py`.
"""
