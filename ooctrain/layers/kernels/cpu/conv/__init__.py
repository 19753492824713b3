"""Convolution on the cpu: what is chosen, what it needs, how it is computed.

In: arrays in physical layout. Out: the correlation and its two gradients. Each algorithm has a
plan (pure Python: sizes of blocks, bytes of workspace) and a kernel. Read next: `conv2d.py`, the
door; `brgemm.py`, the inner loop; `conv_direct.py`, the algorithm that runs most.
"""
