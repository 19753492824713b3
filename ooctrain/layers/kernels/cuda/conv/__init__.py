"""Convolution on a GPU: from the naive kernel to implicit GEMM and the tensor cores.

From device arrays in physical layout the kernels compute the correlation and its two gradients.
Read next: `conv_naive.py`, `conv_tiled.py`, `conv_gemm.py`, `conv_tf32.py`, in this order.
"""
