"""The laws of splits bite: each planted bug is a plausible mistake, and a law kills it.

The laws are `oc.testing.check_split` and tests/properties/test_split.py.
"""

from __future__ import annotations

from importlib import import_module

import pytest
from properties import test_split as LAWS
from zoo.planting import plant, plant_everywhere

from ooctrain.testing.check_split import SPLIT_LAWS, SplitFailure

boundaries, cuts, model, patches, settings = (
    import_module(f"ooctrain.split.{name}")
    for name in ("boundaries", "cuts", "model", "patches", "split_settings")
)

#: {name: (owner, function, the piece as it is, the piece with the bug)}
BUGS = {
    "the printed equation for p_{i,b}": (
        boundaries, "paddings", "- output * window.stride", "- (output - 1) * window.stride",
    ),
    "an inner part is padded on the right as the image is": (
        boundaries, "paddings", "end - (inputs[i + 1] + window.pad_lo)", "window.pad_hi",
    ),
    "boundaries are drawn again in backward": (
        boundaries, "drawn", "default_rng(tuple(key))", "default_rng()",
    ),
    "a shortcut is cut elsewhere than the branch beside it": (
        boundaries, "allowed", "low, max(low, upper_bound(window, output))",
        "(low, high) if low <= (high := upper_bound(window, output)) else (low + 1, low + 1)",
    ),
    "evaluation with the split": (
        model.SplitModel, "forward",
        "self.how.splits and (self.training or self.tested_in_patches)", "self.how.splits",
    ),
    "omega = 0.5 is accepted": (
        settings.Splitting, "__post_init__", "self.omega < OMEGA_LIMIT",
        "self.omega <= OMEGA_LIMIT",
    ),
    "the last part loses a row": (boundaries, "sizes", "(*cuts, extent)", "(*cuts, extent - 1)"),
    "two patches share a cut": (
        boundaries, "wiggle", "(place - omega) * extent", "(1 - omega) * extent",
    ),
    "equation 1 is one row too low": (
        boundaries, "lower_bound", "- window.pad_lo", "- window.pad_lo - 1",
    ),
    "equation 2 with the next output": (
        boundaries, "upper_bound", "(output - 1) * window.stride", "output * window.stride",
    ),
    "the last part keeps the padding of an inner one": (
        boundaries, "paddings", "found.append((begin, window.pad_hi))", "found.append((begin, 0))",
    ),
    "masks of dropout begin anew in each patch": (
        patches, "_place", "starts.append(cuts[source.variable][number] + first)",
        "starts.append(first)",
    ),
    "running statistics count the pixels of the whole image": (
        patches, "_patch", "rows=rows[each.ins[0].variable]", "rows=each.op.rows",
    ),
    "parts of a row are laid one above the other": (
        patches, "record", "_beside(strip, COLUMNS)", "_beside(strip, ROWS)",
    ),
    "depth is what stays whole": (
        model.SplitModel, "_joint", "total - self.how.depth", "total - (1 - self.how.depth)",
    ),
    "the seed is forgotten": (cuts, "cuts_of", "key = how.seed, step", "key = 0, step"),
    "the step is forgotten": (cuts, "cuts_of", "how.seed, step, axis", "how.seed, 0, axis"),
    "joined inside a block": (cuts, "joints", "{out.variable} == alive", "out.variable in alive"),
    "a model may be split twice": (
        model, "_require_splittable", "isinstance(part, SplitModel)", "False",
    ),
    "max pooling pads each part as it pads the image": (
        patches, "_place", "sides += [max(0, begin), max(0, end)]",
        "sides += [window.pad_lo, window.pad_hi] if 'MaxPool' in type(each.op).__name__ else "
        "[max(0, begin), max(0, end)]",
    ),
    "depth 0 splits": (
        model.SplitModel, "forward", "self.how.splits and", "self.how.parts > 1 and",
    ),
    "never deeper than asked": (
        model.SplitModel, "_joint", "abs(joint.convolutions / total - self.how.depth)",
        "(self.how.depth - joint.convolutions / total) % 2",
    ),
}  # fmt: skip
#: {law: a bug that this law of `check_split` alone reports}: no law is there for nothing.
ALONE = {
    "sizes add up": "max pooling pads each part as it pads the image",
    "parts are independent": "a shortcut is cut elsewhere than the branch beside it",
    "kernel is stride": "masks of dropout begin anew in each patch",
    "statistics are of parts": "running statistics count the pixels of the whole image",
    "evaluation is whole": "evaluation with the split",
    "one patch is the model": "depth 0 splits",
    "chance is a function": "the step is forgotten",
    "depth is a share": "never deeper than asked",
    "bad numbers are refused": "omega = 0.5 is accepted",
}


def the_laws() -> None:
    LAWS.check_split(examples=12)
    LAWS.check_paddings(1, 40)
    LAWS.test_it_is_the_network_that_is_split_by_hand()


@pytest.mark.slow
def test_the_laws_hold_without_bugs():
    assert the_laws() is None


def planted(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    owner, *rest = BUGS[bug]
    (plant if isinstance(owner, type) else plant_everywhere)(monkeypatch, owner, *rest)


def test_every_law_has_a_bug_of_its_own():
    assert list(ALONE) == list(SPLIT_LAWS)
    assert len(set(ALONE.values())) == len(ALONE)


@pytest.mark.slow
@pytest.mark.parametrize("law", SPLIT_LAWS)
def test_a_law_reports_what_no_other_law_does(law, monkeypatch):
    planted(monkeypatch, ALONE[law])
    with pytest.raises(SplitFailure, match=f"breaks the law '{law}'"):
        LAWS.check_split(examples=12, laws=(law,))
    assert LAWS.check_split(examples=12, laws=[other for other in SPLIT_LAWS if other != law])


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    planted(monkeypatch, bug)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        the_laws()
    assert not isinstance(caught.value, SyntaxError | NameError), "the bug itself is broken"
