"""Networks of others: from PyTorch and back.

`from_torch` makes an ordinary module of a PyTorch network, `to_torch` brings its weights back.
PyTorch is the user's own: it is imported when one of these functions is called. Read next:
`torch.py`, the doors; `importing.py`; `exported.py`, how PyTorch's list is read; `graph.py`, what
it becomes; `aten.py`, what is known of its operations.
"""

from ooctrain.interop import onnx as onnx
from ooctrain.interop import torch as torch
