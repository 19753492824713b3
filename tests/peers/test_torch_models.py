"""Against torch: each function and its gradients, and training steps from the same weights."""

import itertools

import numpy as np
import pytest

from ooctrain import functional as F
from ooctrain import models, nn, optim
from ooctrain.engine.autograd import tensor
from ooctrain.errors import ShapeError

torch = pytest.importorskip("torch", reason="torch is not installed")
TF = torch.nn.functional
pytestmark = pytest.mark.peers


def values(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


X = (2, 6, 9, 7)
ROUNDING = 2e-5
FUNCTIONS = {
    "relu": (F.relu, TF.relu, [X]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), lambda x: TF.leaky_relu(x, 0.2), [X]),
    "tanh": (F.tanh, torch.tanh, [X]),
    "sigmoid": (F.sigmoid, torch.sigmoid, [X]),
    "linear": (F.linear, TF.linear, [(3, 5), (4, 5), (4,)]),
    "conv": (
        lambda *a: F.conv2d(*a, (2, 1), (1, 2), (1, 2), 2),
        lambda *a: TF.conv2d(*a, (2, 1), (1, 2), (1, 2), 2),
        [X, (4, 3, 3, 2), (4,)],
    ),
    "conv same": (
        lambda *a: F.conv2d(*a, padding="same", dilation=(1, 2)),
        lambda *a: TF.conv2d(*a, padding="same", dilation=(1, 2)),
        [X, (4, 6, 4, 2)],
    ),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: TF.max_pool2d(x, 3, 2, 1), [X]),
    "avg_pool": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, False, False),
        lambda x: TF.avg_pool2d(x, 3, 2, 1, False, False),
        [X],
    ),
    "avg_pool padded": (
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: TF.avg_pool2d(x, 3, 2, 1),
        [X],
    ),
    "adaptive": (
        lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
        lambda x: TF.adaptive_avg_pool2d(x, (4, 3)),
        [X],
    ),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0)), lambda x: TF.pad(x, (1, 2, 3, 0)), [X]),
    "cat": (
        lambda a, b: F.concat([a, b], 1),
        lambda a, b: torch.cat([a, b], 1),
        [X, (2, 3, 9, 7)],
    ),
    "batch_norm": (
        lambda x, g, b: F.batch_norm(x, None, None, g, b, True),
        lambda x, g, b: TF.batch_norm(x, None, None, g, b, True),
        [X, (6,), (6,)],
    ),
    "reflection": (
        lambda x: F.pad(x, (1, 6, 8, 0), mode="reflect"),
        lambda x: TF.pad(x, (1, 6, 8, 0), mode="reflect"),
        [X],
    ),
    "conv_transpose": (
        lambda *a: F.conv_transpose2d(*a, (2, 3), (1, 0), (1, 2), 2, (1, 2)),
        lambda *a: TF.conv_transpose2d(*a, (2, 3), (1, 0), (1, 2), 2, (1, 2)),
        [X, (6, 2, 3, 2), (4,)],
    ),
    "conv_transpose, output padding beyond the stride": (
        lambda *a: F.conv_transpose2d(*a, (2, 1), (1, 0), (3, 2), 2, (4, 3)),
        lambda *a: TF.conv_transpose2d(*a, (2, 1), (1, 0), (3, 2), 2, (4, 3)),
        [X, (6, 2, 3, 2), (4,)],
    ),
    "instance_norm": (F.instance_norm, TF.instance_norm, [X]),
    "instance_norm affine": (
        lambda x, g, b: F.instance_norm(x, None, None, g, b, eps=1e-3),
        lambda x, g, b: TF.instance_norm(x, None, None, g, b, eps=1e-3),
        [X, (6,), (6,)],
    ),
    "nearest": (
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: TF.interpolate(x, scale_factor=2),
        [X],
    ),
    "nearest size": (
        lambda x: F.interpolate(x, (5, 16)),
        lambda x: TF.interpolate(x, (5, 16)),
        [X],
    ),
    "bilinear": (
        lambda x: F.interpolate(x, scale_factor=4, mode="bilinear"),
        lambda x: TF.interpolate(x, scale_factor=4, mode="bilinear"),
        [X],
    ),
    "bilinear size": (
        lambda x: F.interpolate(x, (4, 17), mode="bilinear", align_corners=False),
        lambda x: TF.interpolate(x, (4, 17), mode="bilinear", align_corners=False),
        [X],
    ),
    "bilinear corners": (
        lambda x: F.interpolate(x, (12, 3), mode="bilinear", align_corners=True),
        lambda x: TF.interpolate(x, (12, 3), mode="bilinear", align_corners=True),
        [X],
    ),
    "mse": (F.mse_loss, TF.mse_loss, [X, X]),
    "l1": (F.l1_loss, TF.l1_loss, [(3, 4), (3, 4)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_their_gradients(name):
    ours, theirs, shapes = FUNCTIONS[name]
    arrays = [values(*shape, seed=i) for i, shape in enumerate(shapes)]
    mine = [tensor(a, requires_grad=True) for a in arrays]
    peer = [torch.tensor(a, requires_grad=True) for a in arrays]
    y, z = ours(*mine), theirs(*peer)
    assert error(y.numpy(), z) < ROUNDING
    cotangent = values(*y.shape, seed=9)
    y.backward(tensor(cotangent))
    z.backward(torch.tensor(cotangent))
    for i, (a, b) in enumerate(zip(mine, peer, strict=True)):
        assert error(a.grad.numpy(), b.grad) < ROUNDING, f"gradient of input {i}"


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 4])
def test_which_output_paddings_a_transposed_convolution_takes(stride, dilation):
    x, w, b = values(2, 3, 4, 5), values(3, 4, 2, 3, seed=1), values(4, seed=2)
    for padding, extra in itertools.product(range(3), range(-1, 5)):
        options = (stride, padding, extra, 1, dilation)
        try:
            theirs = TF.conv_transpose2d(*map(torch.tensor, (x, w, b)), *options)
        except RuntimeError:
            with pytest.raises(ShapeError):
                F.conv_transpose2d(tensor(x), tensor(w), tensor(b), *options)
        else:
            mine = F.conv_transpose2d(tensor(x), tensor(w), tensor(b), *options)
            assert error(mine.numpy(), theirs) < ROUNDING, options


@pytest.mark.parametrize("shape", [(5, 4), (2, 4, 3, 5)])
def test_cross_entropy(shape):
    labels = np.random.default_rng(0).integers(0, 4, (shape[0], *shape[2:]))
    labels.reshape(-1)[1] = -100
    x, p = (
        tensor(values(*shape), requires_grad=True),
        torch.tensor(values(*shape), requires_grad=True),
    )
    loss, peer = F.cross_entropy(x, tensor(labels)), TF.cross_entropy(p, torch.tensor(labels))
    assert error(loss.numpy(), peer) < ROUNDING
    loss.backward()
    peer.backward()
    assert error(x.grad.numpy(), p.grad) < ROUNDING


def test_batch_norm_running_statistics_and_evaluation():
    mine, peer = nn.BatchNorm2d(6, momentum=0.3), torch.nn.BatchNorm2d(6, momentum=0.3)
    for seed in range(2):
        mine(tensor(values(*X, seed=seed)))
        peer(torch.tensor(values(*X, seed=seed)))
    for key, value in mine.state_dict().items():
        assert error(value, peer.state_dict()[key]) < ROUNDING, key
    mine.eval()
    peer.eval()
    assert error(mine(tensor(values(*X))).numpy(), peer(torch.tensor(values(*X)))) < ROUNDING


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        ("Adam", {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
        ("AdamW", {"lr": 0.01}),
        ("RMSprop", {}),
        ("RMSprop", {"lr": 0.02, "alpha": 0.8, "eps": 1e-6, "weight_decay": 0.1}),
        ("RMSprop", {"momentum": 0.9, "centered": True, "eps": 1e-3}),
    ],
)
def test_optimizers(make, settings):
    mine, peer = nn.Parameter(values(4, 3)), torch.nn.Parameter(torch.tensor(values(4, 3)))
    ours, theirs = (
        getattr(optim, make)([mine], **settings),
        getattr(torch.optim, make)([peer], **settings),
    )
    for step in range(4):
        mine.grad = tensor(values(4, 3, seed=step))
        peer.grad = torch.tensor(values(4, 3, seed=step))
        ours.step()
        theirs.step()
    assert error(mine.numpy(), peer) < ROUNDING


class TorchBlock(torch.nn.Module):
    def __init__(self, planes_in, planes, stride):
        super().__init__()
        layers = torch.nn
        self.conv1 = layers.Conv2d(planes_in, planes, 3, stride, 1, bias=False)
        self.bn1 = layers.BatchNorm2d(planes)
        self.conv2 = layers.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = layers.BatchNorm2d(planes)
        self.downsample = layers.Sequential()
        if stride != 1:
            self.downsample = layers.Sequential(
                layers.Conv2d(planes_in, planes, 1, stride, bias=False), layers.BatchNorm2d(planes)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.downsample(x))


class TorchResNet18(torch.nn.Module):
    """torchvision's ResNet-18 with the CIFAR stem."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(64)
        widths = [64, 64, 128, 256, 512]
        for i in range(1, 5):
            blocks = (
                TorchBlock(widths[i - 1], widths[i], 1 + (i > 1)),
                TorchBlock(widths[i], widths[i], 1),
            )
            setattr(self, f"layer{i}", torch.nn.Sequential(*blocks))
        self.fc = torch.nn.Linear(512, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class TorchVGG11(torch.nn.Module):
    """torchvision's VGG-11 with the classifier for small images, without dropout."""

    def __init__(self):
        super().__init__()
        layers, channels = [], 3
        for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
            if width == 0:
                layers.append(torch.nn.MaxPool2d(2, 2))
            else:
                layers += [torch.nn.Conv2d(channels, width, 3, 1, 1), torch.nn.ReLU()]
                channels = width
        self.features = torch.nn.Sequential(*layers)
        head = (
            torch.nn.Linear(512, 512),
            torch.nn.ReLU(),
            torch.nn.Identity(),
            torch.nn.Linear(512, 10),
        )
        self.classifier = torch.nn.Sequential(*head)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


LEARNING_RATE = 1e-4


def torch_steps(net, images, labels, dtype):
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=0.9)
    for image in images:
        optimizer.zero_grad()
        loss = TF.cross_entropy(net(torch.tensor(image, dtype=dtype)), torch.tensor(labels))
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize(
    ("name", "make_peer"), [("resnet18", TorchResNet18), ("vgg11", TorchVGG11)]
)
def test_three_training_steps_from_the_same_weights(name, make_peer):
    """Against torch in float64: losses, gradients, and how far the weights have moved.

    A ReLU whose input is within rounding of zero may go the other way; in ResNet-18 one such pixel
    changes gradients by about 0.5 %, in torch's own float32 too. Hence the bound on gradients.
    """
    torch.manual_seed(0)
    labels = np.arange(8) % 10
    images = [values(8, 3, 32, 32, seed=step) for step in range(3)]
    mine, peer = models.build(name, stem="cifar"), make_peer().double()
    for parameter in peer.parameters():
        if parameter.ndim == 4:  # PyTorch's first weights let VGG's signal fade
            torch.nn.init.kaiming_normal_(parameter)
    if name == "vgg11":
        mine.classifier[2].p = 0.0
    before = {key: value.numpy().copy() for key, value in peer.state_dict().items()}
    mine.load_state_dict(before)
    optimizer = optim.SGD(mine.parameters(), lr=LEARNING_RATE, momentum=0.9)
    for image in images:
        optimizer.zero_grad()
        loss = F.cross_entropy(mine(tensor(image)), tensor(labels))
        loss.backward()
        optimizer.step()
    peer_loss = torch_steps(peer, images, labels, torch.float64)
    assert abs(loss.item() - peer_loss) < 1e-4 * peer_loss
    got, want = mine.state_dict(), peer.state_dict()
    assert list(got) == list(want)
    for key, parameter in peer.named_parameters():
        w, w0 = want[key].numpy(), before[key]
        bound = 0.05 * np.linalg.norm(w - w0) + 1e-7 * np.linalg.norm(w)
        assert np.linalg.norm(got[key] - w) < bound, f"{key} has moved elsewhere"
        gradient = dict(mine.named_parameters())[key].grad.numpy()
        assert distance(gradient, parameter.grad) < 0.05, f"gradient of {key}"
    for key in (key for key in want if "running" in key or "num_batches" in key):
        assert distance(got[key], want[key]) < 1e-5, key


def distance(a, b):
    a, b = (np.asarray(v.detach() if torch.is_tensor(v) else v, np.float64) for v in (a, b))
    return np.linalg.norm(a - b) / (np.linalg.norm(b) + 1e-12)


def error(mine, peer):
    """The largest difference, relative to the peer's largest number."""
    peer = peer.detach().numpy()
    assert mine.shape == peer.shape
    return float(np.abs(mine - peer).max()) / max(1e-6, float(np.abs(peer).max()))
