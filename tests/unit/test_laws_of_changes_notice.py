"""Laws of rewrites, of splits and of bands notice each lie that they are there for.

A liar changes one thing that a law speaks of, and everything else is right. Where a law allows for
rounding, one lie is as large as what is allowed, and is let pass, and one is a little larger. Of
bands each number of an answer is replaced by each other one. `test_laws_notice.py` says why.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support import known
from support.known_numbers import numbers_in

import ooctrain as oc
from ooctrain import nn
from ooctrain.errors import ConfigError
from ooctrain.layers.reduction import Sum
from ooctrain.step.trace import Trace
from ooctrain.testing.check_rewrite import RewriteFailure, check_rewrite, random_step
from ooctrain.testing.check_split import SPLIT_LAWS, SplitFailure, check_split
from ooctrain.testing.tiled.bands_by_hand import (
    BANDS_LAWS,
    BandedChain,
    BandsFailure,
    check_bands,
    footprint_of,
    par_rows,
)

# Rewrites


def keeping(keeps):
    """A rewrite that says so."""

    def named(function):
        function.keeps = keeps
        return function

    return named


def of_calls(change):
    """A step whose calls are changed one by one."""
    return lambda step: replace(step, calls=tuple(change(call) for call in step.calls))


def of_names(kind):
    """A step in which the variables of a kind have other names."""

    def rewritten(step: Trace) -> Trace:
        return replace(step, variables=tuple(
            replace(v, name=f"other {v.name}") if v.kind == kind else v for v in step.variables
        ))  # fmt: skip

    return rewritten


def scaled(more: float, keeps: str):
    """A step whose sums over everything are larger by a part."""

    @keeping(keeps)
    @of_calls
    def larger(call):
        last = isinstance(call.op, Sum) and len(call.op.axes) > 1
        return replace(call, op=replace(call.op, factor=1.0 + more)) if last else call

    larger.keeps = keeps
    return larger


def other_outputs(step: Trace) -> Trace:
    return replace(step, outputs={f"other {name}": v for name, v in step.outputs.items()})


def loss_is_the_image(step: Trace) -> Trace:
    return replace(step, outputs=dict.fromkeys(step.outputs, step.initial[0]))


def one_carry_less(step: Trace) -> Trace:
    return replace(step, carries=dict(list(step.carries.items())[1:]))


def changes_what_it_is_given(step: Trace) -> Trace:
    object.__setattr__(step, "calls", step.calls[:-1])
    return step


class EverySecond:
    """Rewrites every second time it is asked."""

    def __init__(self):
        self.count = 0

    def __call__(self, step: Trace) -> Trace:
        self.count += 1
        return step if self.count % 2 else replace(step, calls=tuple(
            replace(call, workspace_bytes=call.workspace_bytes + 4) for call in step.calls
        ))  # fmt: skip


def refuses_all(step: Trace) -> Trace:
    raise ConfigError("not this one")


LEFT = "the trace is left as it was"
#: {lie: (rewrite, the law that it breaks, or None)}
REWRITES = {
    "inputs": (of_names("input"), "same interface"),
    "parameters": (of_names("param"), "same interface"),
    "activations": (of_names("activation"), None),
    "outputs": (other_outputs, "same interface"),
    "an output of another shape": (loss_is_the_image, "same interface"),
    "an update": (one_carry_less, "same interface"),
    "nothing": (lambda step: step, None),
    "what it is given": (changes_what_it_is_given, LEFT),
    "another answer": (EverySecond(), "rewriting is pure"),
    "half as much": (scaled(0.5, "bits"), "whole numbers"),
    "half as much, by a bound": (scaled(0.5, "bound"), "whole numbers"),
    "half as much, of another meaning": (scaled(0.5, "meaning changed"), None),
    "refused": (refuses_all, "it rewrites something"),
}  # fmt: skip


def named(rewrite):
    return getattr(rewrite, "__name__", type(rewrite).__name__)


@pytest.mark.parametrize("lie", REWRITES)
def test_a_lie_of_a_rewrite_breaks_its_law(lie):
    rewrite, law = REWRITES[lie]
    if law is None:
        assert check_rewrite(rewrite, examples=3) == 3
        return
    with pytest.raises(RewriteFailure) as caught:
        check_rewrite(rewrite, examples=3)
    assert f"the law {law!r}" in caught.value.what
    assert caught.value.code == "OOC-291"
    keeps = getattr(rewrite, "keeps", "bits")
    assert caught.value.numbers == f"it keeps {keeps!r}"


@pytest.mark.parametrize(("more", "keeps", "law", "kept"), [
    (1e-12, "bits", "other numbers", False), (1e-12, "bits", "whole numbers", False),
    (1e-12, "bound", "whole numbers", False), (0.9e-9, "bound", "other numbers", True),
    (1.1e-9, "bound", "other numbers", False), (1.0, "meaning changed", "other numbers", True),
])  # fmt: skip
def test_rounding_is_allowed_where_it_may_be(more, keeps, law, kept):
    rewrite = scaled(more, keeps)
    if kept:
        assert check_rewrite(rewrite, examples=2, laws=(law,)) == 2
        return
    with pytest.raises(RewriteFailure, match=f"{law!r}.* on {law}") as caught:
        check_rewrite(rewrite, examples=2, laws=(law,))
    assert "'loss' differs at ()" in caught.value.what
    assert "of example 0 with seed 0" in caught.value.what


def test_another_shape_is_seen_by_its_numbers_too():
    for law in ("whole numbers", "other numbers"):
        with pytest.raises(RewriteFailure, match=r"has shape \(2, 2, 14, 12\), not \(2, 2, 3, 3\)"):
            check_rewrite(loss_is_the_image, examples=1, laws=(law,))


def test_a_refusal_is_no_failure_while_something_is_rewritten():
    """Of ten steps those with a bias alone."""
    steps = [random_step(random.Random(f"4/{number}")) for number in range(10)]

    def picky(step: Trace) -> Trace:
        if not any(v.name.endswith("bias") for v in step.variables):
            raise ConfigError("no bias")
        return step

    wanted = sum(any(v.name.endswith("bias") for v in step.variables) for step in steps)
    assert 0 < wanted < 10
    assert check_rewrite(picky, examples=10, seed=4) == wanted
    with pytest.raises(ConfigError) as caught:
        check_rewrite(picky, laws=("gravity",))
    assert caught.value.code == "OOC-106"


# Splits


class Made(nn.Module):
    """Stands where a split network is expected.

    Args:
        model: it does what this one does.
        change: of its output.
    """

    def __init__(self, model, change=lambda y, training: y):
        super().__init__()
        self.inner, self.change = model, change

    def begin_step(self, number):
        getattr(self.inner, "begin_step", lambda number: None)(number)

    def forward(self, x):
        return self.change(self.inner(x), self.training)

    def state_dict(self, *args, **kwargs):
        return self.inner.state_dict(*args, **kwargs)

    def named_parameters(self, *args, **kwargs):
        return self.inner.named_parameters(*args, **kwargs)

    def named_buffers(self, *args, **kwargs):
        return self.inner.named_buffers(*args, **kwargs)


class Renamed(Made):
    """Its parameters have other names."""

    def state_dict(self, *args, **kwargs):
        return {f"more.{name}": value for name, value in super().state_dict().items()}


def whole(model, depth, grid, stochastic=False, *, omega=0.0, seed=0):
    """Splits nothing, and takes everything."""
    return Made(model)


def changed(change):
    """What `oc.split` gives, with another output."""
    return lambda *args, **kwargs: Made(oc.split(*args, **kwargs), change)


def given(change):
    """`oc.split`, given something else: (depth, grid, stochastic, omega, seed) -> the same."""

    def split(model, depth, grid, stochastic=False, *, omega=0.0, seed=0):
        depth, grid, stochastic, omega, seed = change(depth, grid, stochastic, omega, seed)
        return oc.split(model, depth, grid, stochastic, omega=omega, seed=seed)

    return split


def takes(what):
    """Takes one of the things that make no sense."""

    def split(model, depth, grid, stochastic=False, *, omega=0.0, seed=0):
        try:
            found = oc.split(model, depth, grid, stochastic, omega=omega, seed=seed)
        except ConfigError:
            if what(model, depth, grid, omega):
                return Made(model)
            raise
        return Made(model) if what(model, depth, grid, omega) else found

    return split


class OtherChance(Made):
    """Other boundaries whenever it is recorded, or always those of one step."""

    def __init__(self, model, number):
        super().__init__(model)
        self.number = number

    def begin_step(self, number):
        self.inner.begin_step(self.number(number))


def chance(number):
    return lambda *args, **kwargs: OtherChance(oc.split(*args, **kwargs), number)


COUNT = iter(range(10**6))
#: {law: {lie: splitter}}
SPLITS = {
    "sizes add up": {
        "smaller": changed(lambda y, training: oc.functional.max_pool2d(y, 2)),
    },
    "parts are independent": {
        "not split": whole,
        "rows are lost": changed(lambda y, training: y * 0.0),
    },
    "kernel is stride": {"twice as much": changed(lambda y, training: y * 2.0)},
    "statistics are of parts": {"not split": whole},
    "evaluation is whole": {
        "other names": lambda *args, **kwargs: Renamed(oc.split(*args, **kwargs)),
        "twice as much": changed(lambda y, training: y if training else y * 2.0),
    },
    "one patch is the model": {
        "depth 0 splits": given(lambda d, g, s, o, n: (d or 1.0, g, s, o, n)),
        "one patch is two": given(lambda d, g, s, o, n: (d, (2, 1) if g == (1, 1) else g, s, o, n)),
    },
    "chance is a function": {
        "no chance": given(lambda d, g, s, o, n: (d, g, False, o, n)),
        "of the clock": chance(lambda number: next(COUNT)),
        "no step": chance(lambda number: 0),
        "no seed": given(lambda d, g, s, o, n: (d, g, s, o, 5)),
        "wider": given(lambda d, g, s, o, n: (d, g, s, 0.49, n)),
    },
    "depth is a share": {
        "half": given(lambda d, g, s, o, n: (d / 2, g, s, o, n)),
        "not split": whole,
        "all": given(lambda d, g, s, o, n: (1.0, g, s, o, n)),
    },
    "bad numbers are refused": {
        "omega 0.5": takes(lambda model, depth, grid, omega: omega == 0.5),
        "omega -0.1": takes(lambda model, depth, grid, omega: omega < 0),
        "depth 1.1": takes(lambda model, depth, grid, omega: depth > 1),
        "no patches": takes(lambda model, depth, grid, omega: 0 in grid),
        "a model that is split": takes(lambda model, depth, grid, omega: hasattr(model, "how")),
        "more patches than rows": takes(lambda model, depth, grid, omega: grid[0] > 9),
    },
}  # fmt: skip


@pytest.mark.parametrize(("law", "lie"), [(law, lie) for law in SPLITS for lie in SPLITS[law]])
def test_a_lie_of_a_split_breaks_its_law(law, lie):
    with pytest.raises(SplitFailure, match=f"breaks the law {law!r}") as caught:
        check_split(SPLITS[law][lie], examples=25, laws=(law,))
    assert caught.value.code == "OOC-294"
    if law == "bad numbers are refused":
        assert f"{lie} is accepted" in caught.value.what
    assert numbers_in([caught.value.numbers])[0][1] == "0"


def test_laws_of_splits_ask_what_they_asked():
    """How a law splits its networks, and how often."""
    rows = []
    for law in SPLIT_LAWS:
        asked = []

        def noting(model, *given, seen=asked, **named):
            seen.append((numbers_in(repr(model).splitlines()), given, sorted(named.items())))
            made = oc.split(model, *given, **named)
            return OtherChance(made, lambda number: (seen.append(number), number)[1])

        check_split(noting, examples=2, seed=2, laws=(law,))
        rows.append((law, len(asked), known.digest(asked)))
    known.check_rows("questions", "splits", rows)


def test_each_law_of_splits_meets_a_liar():
    assert list(SPLITS) == list(SPLIT_LAWS)
    with pytest.raises(ConfigError) as caught:
        check_split(laws=("gravity",))
    assert caught.value.code == "OOC-106"
    assert check_split(examples=2, laws=("bad numbers are refused", "one patch is the model")) == 4


# Bands


CHAINS = {
    "a pooling": BandedChain(((3, 1, 1), (2, 2, 0)), (0, 4, 8), (1, 1, 1)),
    "a large kernel": BandedChain(((5, 2, 1), (3, 1, 1)), (0, 3, 6, 11), (3, 2, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_each_number_of_an_answer_is_looked_at(name):
    """Every number is replaced by every other one."""
    chain, rows = CHAINS[name], []
    right = par_rows(chain.layers, chain.cuts)
    for t, band in enumerate(right):
        for i in range(len(band)):
            for which in range(3):
                said = []
                for number in range(-1, max(chain.heights) + 2):
                    answer = [[list(one) for one in other] for other in right]
                    answer[t][i][which] = number
                    try:
                        found = footprint_of(chain, answer)
                        said.append((found.work, found.peak_bytes))
                    except ValueError as error:
                        said.append(numbers_in([str(error)]))
                passed = sum(isinstance(one, tuple) for one in said)
                rows.append((t, i, which, right[t][i][which], passed, known.digest(said)))
    known.check_rows("bands", name, rows)


@pytest.mark.parametrize("wrong", [
    None, 3, {}, [], [[]], [[[0, 4, 2]]], [[[0, 4, 2], [0, 3, 2], [0, 1, 1]]], [None, None],
    [[[0, 4, 2], [0, 3, 2], [0, 1, 1]], [[4, 8, 8], [3, 8, 8], (1, 4)]],
    [[[0, 4, 2], [0, 3, 2], [0, 1, 1]], [[4, 8, 8], [3, 8, 8], (1, True, 4)]],
    [[[0, 4, 2], [0, 3, 2], [0, 1, 1]], [[4, 8, 8], [3, 8, 8], (1, 4.0, 4)]],
])  # fmt: skip
def test_what_is_no_answer_is_refused(wrong):
    with pytest.raises(ValueError, match="not"):
        footprint_of(CHAINS["a pooling"], wrong)


class Bands:
    """The library's, or what a lie makes of them."""

    name = "bands"

    def __init__(self, lie=lambda rows, count: rows):
        self.lie, self.count, self.asked = lie, 0, []

    def rows(self, layers, cuts):
        self.count += 1
        self.asked.append((layers, cuts))
        return self.lie(par_rows(layers, cuts), self.count)


def again(rows, count):
    """The first row of the second band was computed in the first one, too."""
    for band in rows[1:2]:
        band[1][0] = max(0, band[1][0] - 1)
    return rows


def test_bands_are_asked_what_they_were():
    rows = []
    for law in BANDS_LAWS:
        bands = Bands()
        check_bands(bands, examples=5, laws=(law,), seed=2)
        rows.append((law, len(bands.asked), known.digest(bands.asked)))
    known.check_rows("bands", "asked", rows)
    for law, lie in (
        ("rows are computed once", again),
        ("asked twice", lambda rows, count: rows if count % 3 else [*rows, []]),
    ):
        with pytest.raises(BandsFailure) as caught:
            check_bands(Bands(lie), laws=(law,))
        assert caught.value.what.startswith(law)
        assert caught.value.code == "OOC-293"
