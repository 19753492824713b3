"""A network of one's own, as the checkpoint beside it has it."""

from ooctrain import nn


def tiny(num_classes=10):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(4 * 8 * 8, num_classes),
    )
