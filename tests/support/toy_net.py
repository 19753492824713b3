"""Networks of a few layers that a command can name: "toy_net.py:toy"."""

from ooctrain import nn


def toy(classes: int = 10) -> nn.Module:
    """Three convolutions with norms, of few channels, on images of any size."""
    width = 16
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes),
    )  # fmt: skip


def deep(classes: int = 10) -> nn.Module:
    """Twenty convolutions of few channels, half of them at half the size."""
    layers: list[nn.Module] = []
    for number in range(20):
        layers += [nn.Conv2d(4 if number else 3, 4, 3, padding=1), nn.ReLU()]
        if number == 9:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))
