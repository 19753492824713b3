"""What chance does to an image depends on (seed, epoch, number of the sample) alone: the same
images come whatever the batches, the threads that read them, and wherever a run is taken up again.
"""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ooctrain import data
from ooctrain.data import transforms
from ooctrain.data.dataset import permutation

COUNT, SIDE = 11, 6
IMAGES = np.arange(COUNT * 2 * SIDE * SIDE, dtype=np.float32).reshape(COUNT, 2, SIDE, SIDE)
DATA = data.TensorDataset(IMAGES, np.arange(COUNT))
CHANGE = transforms.Compose([
    transforms.RandomCrop(5, padding=2, fill=-1), transforms.RandomHorizontalFlip(),
    transforms.RandomVerticalFlip(0.3), transforms.Normalize((1.0, 2.0), (3.0, 4.0)),
    lambda image, draws: image + np.float32(draws.uniform()),
])  # fmt: skip


def expected(seed, epoch, number):
    return CHANGE(IMAGES[number], transforms.Draws(seed, epoch, number))


def check(seed, batch, workers, prefetch, stops):
    """Three epochs, taken up again by a new loader at each of `stops` (batches from the start)."""

    def fresh():
        return data.DataLoader(
            DATA, batch, True, seed=seed, prefetch=prefetch, num_workers=workers, transform=CHANGE
        )

    loader, seen, position = fresh(), [], 0
    while len(seen) < 3 * COUNT:
        epoch = loader.state_dict()["epoch"]
        for images, labels in loader:
            seen += [(epoch, int(label)) for label in labels]
            for image, number in zip(images, labels, strict=True):
                assert np.array_equal(image, expected(seed, epoch, int(number)))
            position += 1
            if position in stops:
                state = loader.state_dict()
                loader = fresh()
                loader.load_state_dict(state)
                break
    assert seen == [(e, int(n)) for e in range(3) for n in permutation(COUNT, seed, e)]


@settings(max_examples=10)
@given(
    seed=st.integers(0, 3), batch=st.integers(1, COUNT), workers=st.integers(0, 4),
    prefetch=st.integers(0, 3), stops=st.sets(st.integers(1, 20), max_size=3),
)  # fmt: skip
@example(seed=1, batch=4, workers=3, prefetch=2, stops={2, 5})
def test_the_same_images_whoever_reads_them(seed, batch, workers, prefetch, stops):
    check(seed, batch, workers, prefetch, stops)


def test_an_image_looks_different_in_each_epoch():
    looks = {expected(0, epoch, 3).tobytes() for epoch in range(20)}
    assert len(looks) == 20
