"""Networks of others: from PyTorch and back.

`from_torch` makes an ordinary module of a torch network, `to_torch` brings its weights back. torch
is the user's own; it is imported when one of these functions is called. Read next: `graph.py`, what
an imported network is; `torch.py`, how one is read; `aten.py`, what is known of its operations.
"""
