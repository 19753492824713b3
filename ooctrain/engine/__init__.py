"""The engine: tensors, what is recorded of them, the backward pass, modules, and runs in core.

In: operations of `layers/`. Out: recorded calls, and in eager mode their results. The one idea: the
backward pass is a list of ordinary calls, recorded on the same tape as the forward pass. Read next:
`site.py`, `backward.py`, `eager.py`, then `tensor.py`, which both of them stand below.
"""
