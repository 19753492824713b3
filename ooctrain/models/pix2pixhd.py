"""Pix2PixHD: a generator and discriminators at several scales, trained together in one step.

The input is a label map (N, C, H, W) (for Cityscapes 35 one-hot classes and one channel of object
borders), the target is the photograph (N, 3, H, W), and the output is a generated photograph.
Generator and discriminators are one module with one loss. The discriminators' loss takes the
generated image as a constant; the generator's loss takes the discriminators' weights as constants
(`module.frozen`). So in the gradient of the sum each network has the gradient of its own loss, and
one backward pass, one optimizer and one plan serve both. Source: Wang et al. 2018: the global
generator (512 x 1024), multi-scale discriminators, least-squares losses and feature matching
(section 3.2); two scales and the names as in the published code. Its perceptual loss is optional:
it is meaningful only with VGG-19's trained weights, which are not part of this library, and costs
the same with any. Read next: `../tracing.py`.
"""

from __future__ import annotations

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.autograd import no_grad
from ooctrain.engine.module import frozen, inside
from ooctrain.engine.tensor import Tensor, call
from ooctrain.layers.combine import Constant
from ooctrain.models.vgg import VGG
from ooctrain.step.arguments import checked
from ooctrain.step.op import Spec

WEIGHT_STD = 0.02
SLOPE = 0.2
MATCHING_WEIGHT = 10.0
#: of VGG-19's features after which a difference is taken: position of the ReLU, weight
PERCEPTUAL_WEIGHTS = {1: 1 / 32, 6: 1 / 16, 11: 1 / 8, 20: 1 / 4, 29: 1.0}
Features = list[Tensor]


class ResnetBlock(nn.Module):
    """Two mirrored 3 x 3 convolutions with instance norm, added to the input."""

    def __init__(self, planes: int):
        super().__init__()
        self.conv_block = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(planes, planes, 3), nn.InstanceNorm2d(planes),
            nn.ReLU(True),
            nn.ReflectionPad2d(1), nn.Conv2d(planes, planes, 3), nn.InstanceNorm2d(planes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv_block(x)


class GlobalGenerator(nn.Module):
    """Down by strides, residual blocks, up by transposed convolutions.

    Args:
        base: channels at full size; doubled at each step down.
        steps: down, and up again.
        blocks: between.
    """

    def __init__(
        self, in_channels: int, out_channels: int = 3, base: int = 64, steps: int = 4,
        blocks: int = 9,
    ):  # fmt: skip
        super().__init__()
        parts: list[nn.Module] = [
            nn.ReflectionPad2d(3), nn.Conv2d(in_channels, base, 7), *_norm_relu(base)
        ]  # fmt: skip
        planes = base
        for _ in range(steps):
            parts += [nn.Conv2d(planes, 2 * planes, 3, 2, padding=1), *_norm_relu(2 * planes)]
            planes *= 2
        parts += [ResnetBlock(planes) for _ in range(blocks)]
        for _ in range(steps):
            up = nn.ConvTranspose2d(planes, planes // 2, 3, 2, padding=1, output_padding=1)
            parts += [up, *_norm_relu(planes // 2)]
            planes //= 2
        parts += [nn.ReflectionPad2d(3), nn.Conv2d(base, out_channels, 7), nn.Tanh()]
        self.model = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class MultiscaleDiscriminator(nn.Module):
    """Tells real patches of an image from generated ones, with a network for each scale.

    Args:
        in_channels: channels of label map and image together.
        base: filters of the first convolution.
        layers: convolutions of stride 2.
        scales: each half the size of the one before.
    """

    def __init__(self, in_channels: int, base: int = 64, layers: int = 3, scales: int = 2):
        super().__init__()
        self.layers, self.scales = layers, scales
        for scale in range(scales):
            for i, part in enumerate(_discriminator_layers(in_channels, base, layers)):
                self.add_module(f"scale{scale}_layer{i}", part)
        self.downsample = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)

    def forward(self, x: Tensor) -> list[Features]:
        """For each scale, the largest first, the outputs of all its layers; the last is the score
        of each patch, 1 for real and 0 for generated.
        """
        parts, results = dict(self.named_children()), []
        for scale in reversed(range(self.scales)):
            features: Features = []
            for i in range(self.layers + 2):
                features.append(parts[f"scale{scale}_layer{i}"](features[-1] if features else x))
            results.append(features)
            x = self.downsample(x) if scale else x
        return results


class VGGFeatures(nn.Module):
    """VGG-19 up to its thirteenth convolution, never trained; its weights are for you to load."""

    def __init__(self) -> None:
        super().__init__()
        self.features = VGG("E", False).features[: max(PERCEPTUAL_WEIGHTS) + 1]
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Features:
        features = []
        for i, layer in enumerate(self.features.children()):
            x = layer(x)
            if i in PERCEPTUAL_WEIGHTS:
                features.append(x)
        return features


class Pix2PixHD(nn.Module):
    """The generator `netG` and the discriminators `netD`.

    Args:
        in_channels: channels of the label map.
        base: channels of generator and discriminators at full size.
        steps, blocks: steps and blocks of the generator.
        layers, scales: layers and scales of the discriminators.
        perceptual: adds the difference of VGG-19's features to the generator's loss.
    """

    def __init__(
        self, in_channels: int = 36, base: int = 64, steps: int = 4, blocks: int = 9,
        layers: int = 3, scales: int = 2, out_channels: int = 3, perceptual: bool = False,
    ):  # fmt: skip
        super().__init__()
        self.netG = GlobalGenerator(in_channels, out_channels, base, steps, blocks)
        self.netD = MultiscaleDiscriminator(in_channels + out_channels, base, layers, scales)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init_normal(module.weight, WEIGHT_STD)
        self.vgg = VGGFeatures() if perceptual else None

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The generated image; in training after the label map, which the discriminators read."""
        generated = self.netG(x)
        return (x, generated) if self.training else generated

    def loss(self, output: Tensor | tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        """The generator's loss plus the discriminators'; in evaluation the mean absolute error."""
        if isinstance(output, Tensor):
            return F.l1_loss(output, target)
        with inside(self):  # the discriminators' calls are named after them
            return self._both_losses(*output, target)

    def target_spec(self, output: Tensor | tuple[Tensor, Tensor]) -> Spec:
        """An image of the generated one's shape."""
        return (output if isinstance(output, Tensor) else output[1]).spec

    def _both_losses(self, labels: Tensor, generated: Tensor, target: Tensor) -> Tensor:
        real = self.netD(F.concat([labels, target], 1))
        fake = self.netD(F.concat([labels, generated.detach()], 1))
        discriminators = 0.5 * (_least_squares(real, 1.0) + _least_squares(fake, 0.0))
        # Recorded last, so that backward comes here first and the discriminators' update follows.
        with frozen(self.netD):
            judged = self.netD(F.concat([labels, generated], 1))
        generator = _least_squares(judged, 1.0)
        generator = generator + MATCHING_WEIGHT * self._feature_matching(judged, real)
        if self.vgg is not None:
            generator = generator + MATCHING_WEIGHT * self._perceptual(generated, target)
        return discriminators + generator

    def _feature_matching(self, generated: list[Features], real: list[Features]) -> Tensor:
        """Mean absolute difference of the features of all inner layers; the real image's are
        constants.
        """
        terms = [
            F.l1_loss(a, b.detach())
            for of_generated, of_real in zip(generated, real, strict=True)
            for a, b in zip(of_generated[:-1], of_real[:-1], strict=True)
        ]
        weight = 4.0 / (self.netD.layers + 1) / self.netD.scales
        return weight * _total(terms)

    def _perceptual(self, generated: Tensor, target: Tensor) -> Tensor:
        """Weighted mean absolute differences of VGG-19's features; the target's are constants."""
        assert self.vgg is not None, "used only where there is one"
        with no_grad():
            wanted = self.vgg(target)
        pairs = zip(PERCEPTUAL_WEIGHTS.values(), self.vgg(generated), wanted, strict=True)
        return _total([weight * F.l1_loss(a, b) for weight, a, b in pairs])


def _norm_relu(planes: int) -> tuple[nn.Module, ...]:
    return nn.InstanceNorm2d(planes), nn.ReLU(True)


def _discriminator_layers(in_channels: int, base: int, layers: int) -> list[nn.Sequential]:
    """4 x 4 convolutions, the last two of stride 1; with three layers each score is of a patch of
    70 x 70 pixels.
    """
    parts = [nn.Sequential(nn.Conv2d(in_channels, base, 4, 2, padding=2), nn.LeakyReLU(SLOPE))]
    planes = base
    for i in range(layers):
        wider, stride = min(2 * planes, 8 * base), 2 if i < layers - 1 else 1
        conv = nn.Conv2d(planes, wider, 4, stride, padding=2)
        parts.append(nn.Sequential(conv, nn.InstanceNorm2d(wider), nn.LeakyReLU(SLOPE)))
        planes = wider
    return [*parts, nn.Sequential(nn.Conv2d(planes, 1, 4, padding=2))]


def _least_squares(results: list[Features], wanted: float) -> Tensor:
    """Sum over the scales of the mean squared difference between the scores and `wanted`."""
    scores = [features[-1] for features in results]
    return _total([F.mse_loss(s, call(Constant(wanted, s.shape))) for s in scores])


def _total(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@checked
def pix2pixhd(num_classes: int = 3, stem: str = "imagenet", in_channels: int = 36) -> Pix2PixHD:
    """The published sizes; with stem "cifar", for small images, a small network of the same form.

    Args:
        num_classes: not used: the target is an image of three channels.
    """
    if stem == "imagenet":
        return Pix2PixHD(in_channels)
    return Pix2PixHD(in_channels, base=8, steps=2, blocks=2, layers=2)


@checked
def pix2pixhd_perceptual(
    num_classes: int = 3, stem: str = "imagenet", in_channels: int = 36
) -> Pix2PixHD:
    """The same with the perceptual loss, as the published code trains by default."""
    if stem == "imagenet":
        return Pix2PixHD(in_channels, perceptual=True)
    return Pix2PixHD(in_channels, base=8, steps=2, blocks=2, layers=2, perceptual=True)
