"""Networks of others: from PyTorch and from ONNX files, and back.

`from_torch` makes an ordinary module of a PyTorch network, `to_torch` brings its weights back;
`from_onnx` and `to_onnx` do so with files. PyTorch is the user's own, onnx an extra: each is
imported when one of these functions is called. Read next: `torch.py` and `onnx.py`, the doors;
`importing.py`; `exported.py`, how PyTorch's list is read; `graph.py`, what it becomes; `aten.py`
and `onnx_ops.py`, what is known of their operations.
"""

from ooctrain.interop import onnx as onnx
from ooctrain.interop import torch as torch
