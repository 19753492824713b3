"""The doors between ONNX files and this library.

    model = oc.from_onnx("resnet18.onnx")
    trainer = oc.Trainer(model, budget="25%")
    ...
    oc.to_onnx(model, (1, 3, 224, 224), "trained.onnx")

The package onnx (extra `onnx`) is imported when one of these is called. Read next: `onnx_graph.py`,
how a file becomes a module; `onnx_ops.py`, the table of operators; `onnx_export.py`.
"""

from ooctrain.interop.onnx_export import to_onnx
from ooctrain.interop.onnx_graph import Images, from_onnx, images_of, register

__all__ = ("Images", "from_onnx", "images_of", "register", "to_onnx")
