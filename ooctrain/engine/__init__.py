"""The engine: tensors, what is recorded of them, the backward pass, modules, and runs in core.

Operations of `layers/` are recorded as calls, and in eager mode computed at once. The backward pass
is a list of ordinary calls too, recorded on the same tape as the forward pass. Read next:
`../step/op.py`, `backward.py`, `eager.py`, then `tensor.py`, on which both of them build.
"""
