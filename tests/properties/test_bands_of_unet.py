"""A whole U-Net in bands has the untiled bits: skips, batch norm in training mode, loss per pixel.

Loss, all gradients but those of convolutions' weights (sums over bands, within their bound) and
running statistics are equal to the bit on any data; enlarged by transposed convolution or
bilinearly. No image is whole in between. Source: docs/tiling.md.
"""

from __future__ import annotations

import numpy as np
import pytest
from properties.test_bands_of_class_losses import values_of
from properties.test_bands_of_norms import check_norms

import ooctrain as oc
from ooctrain import nn
from ooctrain.models.unet import UNet
from ooctrain.step.trace import Trace


def unet(bilinear: bool, loss: object = "cross_entropy", side: int = 24) -> Trace:
    """Two sizes down and up again, from 4 channels."""
    oc.manual_seed(0)
    model = UNet(num_classes=3, base=4, depth=2)
    if bilinear:
        for i, planes in enumerate((16, 8), 1):
            enlarged = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            up = nn.Sequential(enlarged, nn.Conv2d(planes, planes // 2, 1))
            getattr(model, f"up{i}").up = up
    shape = 1, 3, side, side - 8
    return oc.trace(model, shape, loss, None, threads=2, conv_algorithm="direct")


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("bilinear", [False, True])
def test_bits_of_the_untiled_step(bilinear: bool, again: bool) -> None:
    trace = unet(bilinear)
    banded = oc.tile(trace, (5, 1), "inc", "cross_entropy", halo="keep", again=again)
    check_norms(trace, banded, values_of(trace, 0, ignored=0, classes=3))


@pytest.mark.slow
def test_weighted_pixels_that_do_not_all_count() -> None:
    loss = nn.CrossEntropyLoss(np.array([0.5, 2.0, 1.0]), ignore_index=255)
    trace = unet(True, loss)
    banded = oc.tile(trace, (5, 1), "inc", "weighted_cross_entropy", halo="keep", again=False)
    check_norms(trace, banded, values_of(trace, 0, classes=3))


@pytest.mark.slow
def test_no_image_is_whole() -> None:
    """Of an image that is higher than the skew of all layers together."""
    trace = unet(True, side=128)
    banded = oc.tile(trace, (4, 1), "inc", "cross_entropy", halo="keep", again=False)
    assert [v.name for v in banded.variables if v.shape[-2:] == (128, 120)] == []
