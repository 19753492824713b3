"""The doors between PyTorch and this library.

    net = torchvision.models.resnet18(num_classes=10)
    model = oc.from_torch(net, (32, 3, 224, 224))
    trainer = oc.Trainer(model, budget="25%")
    ...
    oc.to_torch(model, net)  # optimizers: `optimizer_from_torch`, `optimizer_to_torch`

    with oc.interop.torch.applied(plan, net):  # or a plan in PyTorch's own loop
        criterion(net(x), y).backward()

torch is the user's own, and is imported when one of these is called. Read next: `importing.py`,
`optimizers.py`, `applied.py`.
"""

from ooctrain.interop.applied import applied
from ooctrain.interop.importing import from_torch, imported, register, to_torch
from ooctrain.interop.optimizers import optimizer_from_torch, optimizer_to_torch

__all__ = ("applied", "from_torch", "imported", "optimizer_from_torch", "optimizer_to_torch",
           "register", "to_torch")  # fmt: skip
