"""A warning stands at the user's own line, as Python prints it and as filters by module need it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn

X, Y = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)


def trainer():
    model = nn.Linear(3, 2)
    return oc.Trainer(model, optimizer=oc.optim.SGD(model.parameters(), lr=0.1), threads=1)


def in_evaluation(fitted):
    made = trainer()
    made.model.eval()
    made.fit([(X, Y)]) if fitted else made.step(X, Y)


def all_ignored(_):
    trainer().evaluate([(X, Y - 100)])


def without_parts(tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason="Pillow (the extra data) is not installed")
    (tmp_path / "train" / "a").mkdir(parents=True)
    pillow.new("RGB", (4, 4)).save(tmp_path / "train" / "a" / "0.png")
    oc.data.load(str(tmp_path), train=False, image_size=4)


def added_twice(_):
    model = nn.Linear(3, 2)
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        F.cross_entropy(model(oc.tensor(X)), oc.tensor(Y)).backward()
        optimizer.step()


WARNED = {
    "a cast": lambda _: oc.tensor(np.zeros(3)),
    "a step": lambda _: in_evaluation(fitted=False),
    "a step of fit": lambda _: in_evaluation(fitted=True),
    "labels": all_ignored,
    "a folder": without_parts,
    "gradients": added_twice,
    "probabilities": lambda _: F.cross_entropy(oc.tensor(np.full((2, 2), 0.5)), oc.tensor(Y)),
}


@pytest.mark.parametrize("what", WARNED)
def test_a_warning_is_at_the_users_line(what, tmp_path):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        WARNED[what](tmp_path)
    assert {warning.filename for warning in found} == {__file__}
