"""Convolution on a GPU: from the naive kernel to implicit GEMM and the tensor cores.

In: device arrays in physical layout. Out: the correlation and its two gradients. Read next:
`conv_naive.py`, `conv_tiled.py`, `conv_gemm.py`, `conv_tf32.py`, in this order.
"""
