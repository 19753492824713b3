"""Operations, one file per kind of layer: shape rule, definition in NumPy, kernel, gradient, cost.

Read `step/op.py` for what an operation is, then `relu.py`, the smallest, `conv2d.py` and
`batch_norm.py`. `engine/own_op.py` is for operations of your own. Kernels are in `kernels/`,
imported when an operation first runs, so that tracing and planning never wait for them.
"""
