"""Convolution on the cpu: the choice of an algorithm, its workspace, its kernels.

Arrays are in physical layout; the results are the correlation and its two gradients. Each algorithm
has a blocking (pure Python: sizes of blocks, bytes of workspace) and a kernel. Read next:
`conv2d.py`, the entry point; `brgemm.py`, the inner loop; `conv_direct.py`, the algorithm that runs
most.
"""
