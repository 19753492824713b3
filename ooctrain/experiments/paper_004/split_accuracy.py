"""Paper 004, figures 4 to 6 and table 1: what a split costs in accuracy.

A split network is another network, so its accuracy must be measured. By a given recipe, networks
are trained whole, in patches, and in patches with drawn boundaries, with several seeds each. A
difference in test accuracy means something only if it is compared with the spread of the seeds.

The paper trains VGG-19 and ResNet-18 on CIFAR-10 for 350 epochs. By default two small networks of
the same two families (8 convolutions with batch norm; 4 residual blocks) learn the digits that come
with the package; with data=cifar10:DIR the paper's own networks learn CIFAR-10.

Source: paper 004, sections 5.1 to 5.3. Departures: docs/papers.md. Read next: `split_hmms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean, stdev
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain import nn
from ooctrain.data import DataLoader, Dataset, Subset, load
from ooctrain.engine.autograd import manual_seed
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.models import build
from ooctrain.models.resnet import BasicBlock
from ooctrain.optim import SGD, MultiStepLR
from ooctrain.report.charts import Curve, curves_svg, stacked_svg
from ooctrain.report.text import plain_table
from ooctrain.split.model import split
from ooctrain.train import Trainer

DIGITS, SIDE = "digits", 16
#: Figure 4's depths, in 2 x 2 patches; figure 5's numbers of patches, of a quarter of the network.
DEPTHS = (0.0, 0.125, 0.25, 0.375, 0.5)
GRIDS: Mapping[int, tuple[int, int]] = MappingProxyType(
    {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2), 6: (3, 2), 9: (3, 3)}
)
QUARTER, HALF = 0.25, 0.5
#: Where the learning rate falls to a tenth: epochs 150 and 250 of 350.
FALLS = (150 / 350, 250 / 350)
BASELINE, SPLIT, STOCHASTIC = "whole", "split", "stochastic"
#: {(network of the paper, kind): accuracy in percent}: table 1, CIFAR-10 and ImageNet.
PRINTED: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        ("vgg19", BASELINE): 94.14, ("vgg19", SPLIT): 93.02, ("vgg19", STOCHASTIC): 94.58,
        ("resnet18", BASELINE): 95.3, ("resnet18", SPLIT): 94.8, ("resnet18", STOCHASTIC): 95.5,
    }
)  # fmt: skip
#: {network: (depth, whole, split, stochastic)}: not run here.
PRINTED_IMAGENET: Mapping[str, tuple[float, float, float, float]] = MappingProxyType(
    {"alexnet": (0.60, 55.2, 55.0, 55.9), "resnet50": (0.812, 75.9, 74.7, 74.9)}
)


@dataclass(frozen=True, slots=True)
class Recipe004:
    """How the networks are trained.

    Args:
        data: "digits", or as for --data; epochs, batch, lr, seeds: of the training.
        images: images of the training part that are used; None: all.
    """

    data: str = DIGITS
    epochs: int = 5
    batch: int = 32
    lr: float = 0.05
    seeds: int = 3
    images: int | None = 640


QUICK = Recipe004(epochs=1, seeds=2, images=128)


@dataclass(frozen=True, slots=True)
class Trained:
    """A configuration and how well it did.

    Args:
        model: trained; paper: the network of the paper that it stands for.
        kind: "whole", "split" or "stochastic"; depth: as asked; patches: in all.
        share: share of the convolutions that are split.
        accuracies: accuracies of the test images, by the whole network, a seed each.
        in_patches: by the network in even patches, as the paper tests what is split and not drawn.
        printed: the paper's, in percent, where it has one.
    """

    model: str
    paper: str
    kind: str
    depth: float
    patches: int
    share: float
    accuracies: tuple[float, ...]
    in_patches: tuple[float, ...]
    printed: float | None

    @property
    def mean(self) -> float:
        """Of the seeds."""
        return mean(self.accuracies)

    @property
    def mean_in_patches(self) -> float:
        """Of the seeds, tested in patches."""
        return mean(self.in_patches)

    @property
    def spread(self) -> float:
        """Standard deviation of the seeds."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


class SmallVGG(nn.Module):
    """Eight 3 x 3 convolutions with batch norm, halving the image after each two."""

    def __init__(self) -> None:
        super().__init__()
        layers, channels = list[nn.Module](), 3
        for width in (8, 16, 24, 32):
            for _ in range(2):
                conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
                layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class SmallResNet(nn.Module):
    """A stem and four residual blocks, each half of them halving the image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(8), nn.ReLU()
        blocks = [BasicBlock(8, 8, 1, None)]
        for channels in (8, 16):
            shortcut = nn.Sequential(
                nn.Conv2d(channels, 2 * channels, 1, 2, bias=False),
                nn.BatchNorm2d(2 * channels),
            )
            blocks.append(BasicBlock(channels, 2 * channels, 2, shortcut))
        blocks.append(BasicBlock(32, 32, 1, None))
        self.blocks = nn.Sequential(*blocks)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.avgpool(x).flatten(1))


#: {network of the paper: (name here, what makes it)}, on the digits.
SMALL: Mapping[str, tuple[str, Callable[[], nn.Module]]] = MappingProxyType(
    {"vgg19": ("small vgg", SmallVGG), "resnet18": ("small resnet", SmallResNet)}
)


def configurations(quick: bool) -> list[tuple[str, float, int, str]]:
    """(network of the paper, depth, patches, kind) of figures 4, 5, 6 and table 1, each once."""
    found = []
    for model in ("vgg19",) if quick else tuple(SMALL):
        depths = (0.0, HALF) if quick else DEPTHS
        found += [(model, depth, 4, SPLIT if depth else BASELINE) for depth in depths]
        grids = () if quick else (2, 3, 6, 9)  # 1 and 4 patches are among the depths
        found += [(model, QUARTER, patches, SPLIT) for patches in grids]
        found.append((model, HALF, 4, STOCHASTIC))
    return found


def trained_case(case: tuple[Recipe004, str, float, int, str]) -> list[Trained]:
    """One configuration, for `spread`."""
    return [trained(*case)]


def trained(
    recipe: Recipe004, model: str, depth: float, patches: int, kind: str
) -> Trained:  # fmt: skip
    """Trains a configuration with each seed, and evaluates the whole network."""
    grid, splits = GRIDS[patches], depth > 0 and patches > 1
    accuracies, share, name = list[tuple[float, float]](), 0.0, model
    for seed in range(recipe.seeds):
        name, network = _network(recipe, model, seed)
        made = split(network, depth, grid, kind == STOCHASTIC, seed=seed)
        train, test = _images(recipe, True), _images(recipe, False)
        if splits:
            share = made.shape_of((1, *train[0][0].shape)).share
        accuracies.append(_accuracy(recipe, made, train, test, seed))
    printed = PRINTED.get((model, kind)) if depth in (0.0, HALF) else None
    count = patches if splits else 1
    by_whole, in_patches = zip(*accuracies, strict=True)
    return Trained(model=name, paper=model, kind=kind, depth=depth, patches=count, share=share,
                   accuracies=by_whole, in_patches=in_patches, printed=printed)  # fmt: skip


def _network(recipe: Recipe004, model: str, seed: int) -> tuple[str, nn.Module]:
    manual_seed(seed)
    if recipe.data == DIGITS:
        name, make = SMALL[model]
        return name, make()
    name = "vgg19_bn" if model == "vgg19" else model
    return name, build(name, 10, "cifar")


def _images(recipe: Recipe004, train: bool) -> Dataset:
    return load(recipe.data, train=train, image_size=SIDE if recipe.data == DIGITS else None)


def _accuracy(
    recipe: Recipe004, model: Any, train: Dataset, test: Dataset, seed: int
) -> tuple[float, float]:  # fmt: skip
    """(by the whole network, in patches), in percent."""
    optimizer = SGD(model.parameters(), lr=recipe.lr, momentum=0.9, weight_decay=1e-4)
    falls = [max(1, round(recipe.epochs * share)) for share in FALLS]
    schedule = MultiStepLR(optimizer, falls, gamma=0.1)
    part = train
    if recipe.images is not None:
        part = Subset(train, range(min(recipe.images, len(train))))
    loader = DataLoader(part, recipe.batch, shuffle=True, drop_last=True, seed=seed)
    with Trainer(model, optimizer=optimizer, threads=1, seed=seed) as trainer:
        trainer.fit(loader, recipe.epochs, schedule=schedule)
        whole = trainer.evaluate(DataLoader(test, 120)).accuracy
        model.tested_in_patches = model.how.splits
        in_patches = trainer.evaluate(DataLoader(test, 120)).accuracy
    assert whole is not None, "the labels are classes"
    assert in_patches is not None, "as above"
    return 100 * whole, 100 * in_patches


# `ooctrain reproduce split-accuracy`: a table of accuracies, with mean and spread over seeds and
# the paper's values; curves; numbers. The settings are "epochs=350", "seeds=5", "data=cifar10:DIR"
# and "images=1437".


def split_accuracy(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 004, figures 4 to 6 and table 1."""
    recipe = recipe_of(wanted.settings, QUICK if wanted.quick else Recipe004())
    about = f"  {recipe.data}, {recipe.epochs} epochs, {recipe.seeds} seeds"
    cases = [(recipe, *each) for each in configurations(wanted.quick)]
    processes, rows = 1 if wanted.quick else None, list[Trained]()
    with console.status("") as status:
        for found in spread(trained_case, cases, processes, wanted.keep):
            rows += found
            status.update(f"{len(rows)} of {len(cases)} configurations")
    print_title(
        console,
        "Test accuracy after training in patches, of the whole network and in patches",
        about,
    )
    console.print(accuracy_table(rows))
    print_title(console, "\nImageNet, top-1 in % (paper 004, table 1): not run here")
    console.print(imagenet_table())
    write_figure(wanted, console, figure(rows))
    return {
        "recipe": asdict(recipe),
        "rows": [asdict(row) | {"mean": row.mean, "spread": row.spread} for row in rows],
    }


def recipe_of(settings: Sequence[str], base: Recipe004) -> Recipe004:
    """The recipe with what was set. Raises ConfigError: no such setting, or no number."""
    found: dict[str, Any] = {}
    for word in filter(None, ",".join(settings).split(",")):
        name, _, value = word.partition("=")
        if name == "data" and value:
            found["data"] = value
        elif name in ("epochs", "seeds", "batch", "images") and value.isdecimal() and int(value):
            found[name] = int(value)
        else:
            raise ConfigError(
                f"--set {word!r} is not a known setting", code="OOC-106",
                fix="epochs=350, seeds=5, batch=128, images=1437 or data=cifar10:DIR",
            )  # fmt: skip
    if "data" in found and "images" not in found:
        found["images"] = None
    return replace(base, **found)


def accuracy_table(rows: Sequence[Trained]) -> Table:
    """Mean and spread of each configuration, tested whole and in patches, next to the paper's."""
    table = plain_table(
        "network", "for", "trained", "depth", "patches", "tested whole", "spread", "seeds",
        "in patches", "paper", left=("network", "for", "trained"),
    )  # fmt: skip
    for row in rows:
        paper = "" if row.printed is None else f"{row.printed:.2f} %"
        table.add_row(
            row.model, row.paper, row.kind, f"{row.share:.0%}", str(row.patches),
            f"{row.mean:.2f} %", f"{row.spread:.2f}", str(len(row.accuracies)),
            f"{row.mean_in_patches:.2f} %", paper,
        )  # fmt: skip
    return table


def imagenet_table() -> Table:
    """The columns of table 1 that are not computed here."""
    table = plain_table("network", "depth", "whole", "split", "stochastic", left=("network",))
    for model, (depth, *accuracies) in PRINTED_IMAGENET.items():
        table.add_row(model, f"{depth:.1%}", *map(str, accuracies))
    return table


def figure(rows: Sequence[Trained]) -> str:
    """SVG: error over depth (figure 4), over patches (figure 5)."""
    deep, many = list[Curve](), list[Curve]()
    for name in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == name and row.kind != STOCHASTIC]
        four = sorted((row for row in own if row.patches in (1, 4)), key=lambda row: row.share)
        deep.append(Curve(name, [(100 * row.share, 100 - row.mean_in_patches) for row in four]))
        at = sorted(
            (row for row in own if row.depth == QUARTER or row.kind == BASELINE),
            key=lambda row: row.patches,
        )
        many.append(Curve(name, [(row.patches, 100 - row.mean_in_patches) for row in at]))
        drawn = [row for row in rows if row.model == name and row.kind == STOCHASTIC]
        if drawn:
            points = [(0.0, 100 - drawn[0].mean), (100 * HALF, 100 - drawn[0].mean)]
            deep.append(Curve(f"{name}, stochastic at 50 %", points))
    return stacked_svg(
        [
            curves_svg("Figure 4: test error over depth, 2 x 2 patches", deep,
                       axes=("% of the convolutions in patches", "test error, %")),
            curves_svg("Figure 5: test error over patches, a quarter of the convolutions", many,
                       axes=("patches", "test error, %")),
        ]
    )  # fmt: skip
