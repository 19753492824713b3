"""Operations, one file per kind of layer: shape rule, definition in NumPy, gradient, cost.

Read `step/op.py` for what an operation is, then `relu.py`, the smallest, `conv2d.py` and
`batch_norm.py`. `engine/own_op.py` is for operations of your own. Kernels are in `kernels/`: each
device's table names the function that computes an operation, and imports it when the operation
first runs, so that tracing and planning never wait for it. No file here imports `kernels/`.
"""
