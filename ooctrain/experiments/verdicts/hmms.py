"""What figures 1, 8 and 9 show here, beside what paper 004 prints.

In: the shares and speeds of `experiments/paper_004/hmms.py`, on the preset machine and the fitted
one. Out: `SENTENCES`, and the `facts` that fill them. Read next: `sentences.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.experiments.paper_004.hmms import HMMS, LAYER_WISE, Share, Speed
from ooctrain.experiments.verdicts.sentences import Facts, Verdict, more, number, percent
from ooctrain.step.machine import Machine

VGG, RESNET, FITTED_NETWORK = "vgg19", "resnet50", "resnet18"
#: A loss below this is none.
NOTHING = 0.005

AGREES = (
    "VGG-19 can offload all it generates ({vgg_share}; the paper: 100 %) and loses nothing by "
    "HMMS ({vgg_hmms}); ResNet-50 cannot ({resnet_share}), and loses {resnet_hmms}.",
    "Layer by layer the loss of VGG-19 is {vgg_layers} on the fitted machine (the paper: 13.0 %).",
    "With arithmetic fitted to ResNet-18's 55 %, ResNet-50 can offload {resnet_share} (the paper: "
    "40 %), and ResNet-18 with batch norm recomputed {norms_share} (70 %); nothing else was "
    "fitted.",
    "Calls that memory bounds (ReLU, pooling, batch norm) make more than the link carries while "
    "they run, in VGG-19 too: what a call cannot do alone, several together can.",
)
DIFFERS = (
    "Nothing is measured: calls take their roofline times. The preset P100 reaches {preset_rate} "
    "TFLOP/s; the fit says {fitted_rate}, more than its peak in float32, counted as direct "
    "convolution: cuDNN's Winograd kernels save multiplications. On the preset ResNet-50 can "
    "offload {resnet_share_preset}, and HMMS is still the better of the two.",
    "HMMS loses {vgg_hmms} and {resnet_hmms} here (the paper: 1.3 and 5.1 %): issuing copies and "
    "waiting for them costs nothing in the simulator, and copies do not slow calls down.",
    "Layer by layer ResNet-50 loses {resnet_layers} (the paper: 12.9 %). Here a layer is a call, "
    "each of which waits for its copies; and the share is offered in the order of the calls, so "
    "the first, largest values leave during the shortest calls. The paper does not say how it "
    "chose.",
    "At the share itself HMMS hardly lowers the peak of ResNet-50: its balance stays below zero to "
    "the last forward call, and only there is memory released. Its sweep over ratios under a "
    "budget (`--planner hmms`) finds smaller ratios that save more.",
    "Batch norm and ReLU are one call and storage is shared, as in the rest of this library.",
)
SENTENCES = Verdict(AGREES, DIFFERS)


def facts(
    preset: Machine, fitted: Machine, shares: Sequence[Share], speeds: Sequence[Speed]
) -> Facts:
    """The figures that the sentences want, by the names of their holes."""
    share_of = {(row.machine, row.model, row.recomputed): row.share for row in shares}
    loss_of = {(row.machine, row.model, row.method): row.loss for row in speeds}
    hmms = {model: loss_of[fitted.name, model, HMMS] for model in (VGG, RESNET)}
    layers = {model: loss_of[fitted.name, model, LAYER_WISE] for model in (VGG, RESNET)}
    vgg_share = share_of[fitted.name, VGG, False]
    resnet_share = share_of[fitted.name, RESNET, False]
    better_on_preset = all(
        loss_of[preset.name, model, HMMS] <= loss_of[preset.name, model, LAYER_WISE]
        for model in (VGG, RESNET)
    )
    on_preset = share_of[preset.name, RESNET, False] if better_on_preset else None
    return {
        "vgg_share": percent(vgg_share if vgg_share >= 1 else None),
        "resnet_share": percent(resnet_share if resnet_share < 1 else None),
        "norms_share": percent(
            more(share_of[fitted.name, FITTED_NETWORK, True],
                 share_of[fitted.name, FITTED_NETWORK, False])
        ),
        "resnet_share_preset": percent(on_preset),
        "vgg_hmms": percent(hmms[VGG] if hmms[VGG] < NOTHING else None, 1),
        "resnet_hmms": percent(hmms[RESNET], 1),
        "vgg_layers": percent(layers[VGG], 1),
        "resnet_layers": percent(layers[RESNET], 1),
        "preset_rate": number(preset.flops_per_us / 1e6, ".1f"),
        "fitted_rate": number(fitted.flops_per_us / 1e6, ".1f"),
    }  # fmt: skip
