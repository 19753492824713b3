"""Ranks give the bits of one: for every number of ranks, bucket, planner, budget and allocator.

The ranks are threads of one process (`ooctrain.testing.thread_ranks`), which notice in random order
what has come; `tests/unit/test_mpi.py` has processes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.quick import quick
from support.rank_runs import (
    BATCH,
    alone,
    batches,
    expect_close,
    expect_same,
    first_error,
    make_trainer,
    run_steps,
    together,
)

import ooctrain as oc
from ooctrain import nn
from ooctrain.distributed import ranks as ranks_of_all
from ooctrain.distributed.exchange import Exchange
from ooctrain.engine.finished import acting_thread
from ooctrain.errors import ConfigError, RanksDiffer, TrainingStopped
from ooctrain.execution.settings import DEFAULT_REWRITES
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.step.network import Message
from ooctrain.testing.thread_ranks import on_ranks

#: (ranks, bytes of a bucket, buckets under way, how they train)
CASES: list = [
    (4, 600, 1, {}),
    (2, 1, 0, {"budget": "30%", "planner": "belady"}),
    (2, 1 << 20, 2, {}),
    (8, 5000, 3, {}),
    *((2, 4000, 2, {"budget": "40%", "planner": planner})
      for planner in ("auto", "naive", "lru", "window", "window-cyclic")),
    *((2, 4000, 2, {"budget": "1MiB", "planner": planner}) for planner in ("dtr", "greedy")),
    *((4, 700, 5, {"budget": "60%", "allocator": allocator, "planner": "lru"})
      for allocator in ("va", "best-fit", "first-fit", "passthrough")),
]  # fmt: skip


def check_same_bits(count: int, bucket: int, ahead: int, how: dict) -> None:
    """Losses, parameters, momentum and statistics are those of one rank with as many parts."""
    found = together(count, seed=bucket, how=how, bucket=bucket, ahead=ahead)
    expect_same(found, alone(count))


@pytest.mark.parametrize(("count", "bucket", "ahead", "how"), quick(CASES, 0, 1, names=4))
def test_ranks_have_the_bits_of_one(count, bucket, ahead, how):
    check_same_bits(count, bucket, ahead, how)


def check_masks() -> None:
    """Dropout's masks are those of the whole batch, whoever takes which part."""
    expect_close(together(2, how={"norm": False}), alone(1, norm=False))


def test_masks_are_those_of_the_whole_batch():
    check_masks()


def check_synchronised() -> None:
    """Synchronised statistics are those of the whole batch, within rounding."""
    expect_close(together(4, sync_batch_norm=True), alone(1), tolerance=1e-5)


def test_synchronised_batch_norm_is_that_of_the_whole_batch():
    check_synchronised()


def check_drawn_boundaries(steps: int, how: dict) -> None:
    """Every rank draws the boundaries that one rank draws, so losses and values are the same."""
    found = together(2, how={"drawn": True, **how}, steps=steps)
    expect_same(found, alone(2, drawn=True, steps=steps))


def test_patches_with_drawn_boundaries_have_the_bits_of_one_rank():
    check_drawn_boundaries(2, {})


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"budget": "40%", "planner": "belady"}], ids=str)
def test_many_steps_with_drawn_boundaries_have_the_bits_of_one_rank(how):
    check_drawn_boundaries(12, how)


class Wide(nn.Sequential):
    """Values so large beside the parameters that bands need less than a single untiled call."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(6, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(4, 3),
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["banded", "auto"])
def test_ranks_in_bands_have_the_bits_of_ranks_in_core_in_these_bands(planner):
    """Each rank sends its own messages, whichever steps are kept from other ranks."""
    images = np.random.default_rng(0).standard_normal((4, 1, 48, 48)).astype(np.float32)
    labels = np.array([0, 1, 2, 1])
    # No untiled list needs less than the step's largest call, and narrow forms save little of it.
    untiled = apply_rewrites(oc.trace(Wide(), (2, 1, 48, 48)), DEFAULT_REWRITES)
    budget = trace_minimum_bytes(untiled) * 8 // 10

    def run(ranks):
        mine, results = ranks.part_of(4), []
        how = {"budget": budget, "planner": planner, "allocator": "best-fit"}
        for _ in range(2):
            oc.manual_seed(3)
            model = Wide()
            rate = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            with oc.Trainer(model, optimizer=rate, threads=1, ranks=ranks, **how) as trainer:
                losses = [trainer.step(images[mine], labels[mine]) for _ in range(2)]
                results.append((losses, trainer.state_arrays()))
                assert any(name.startswith("bands") for name in trainer.plan.rewrites)
                how = {"rewrites": trainer.plan.rewrites}
        return results

    for (losses, values), (expected, in_core) in on_ranks(2, run, bucket=300):
        assert losses == expected
        assert [name for name in values if (values[name] != in_core[name]).any()] == []


@pytest.mark.slow
@pytest.mark.parametrize("clip", [0.05, oc.utils.ClipEach(0.01)], ids=["norm", "each"])
def test_clipped_gradients_are_sums(clip):
    expect_same(together(4, how={"clip": clip}), alone(4, clip=clip))
    assert alone(4).losses != alone(4, clip=clip).losses


def check_resume(folder: Path) -> None:
    """What k ranks save, other numbers of ranks go on with, to the bit; rank 0 reads the file."""
    first, second = batches()
    path = str(folder / "first.safetensors")
    with make_trainer(accumulate=2) as trainer:
        run_steps(trainer, [first])
        expected = run_steps(trainer, [second])

    def save(ranks):
        with make_trainer(ranks) as trainer:
            run_steps(trainer, [first])
            trainer.save(path)

    def go_on(ranks):
        with make_trainer(ranks) as trainer:
            # On other machines another file lies there, or none.
            trainer.resume(path if ranks.is_first else str(folder / "old.safetensors"))
            return run_steps(trainer, [second])

    on_ranks(4, save)
    on_ranks(2, save)
    with make_trainer() as trainer:
        trainer.save(str(folder / "old.safetensors"))
    expect_same(on_ranks(2, go_on), expected)


def test_a_checkpoint_goes_on_on_other_numbers_of_ranks(tmp_path):
    check_resume(tmp_path)


def check_bad_loss() -> None:
    """A loss that is not a number on one rank stops all, and changes nothing on any."""
    data = batches(1)[0]

    def run(ranks):
        images = data[0].copy()
        images[BATCH - 1] = np.nan  # in the last rank's part alone
        mine = ranks.part_of(BATCH)
        with make_trainer(ranks) as trainer:
            before = trainer.state_arrays()
            with pytest.raises(TrainingStopped):
                trainer.step(images[mine], data[1][mine])
            return before, trainer.state_arrays()

    for before, after in on_ranks(2, run, bucket=1):
        differ = [name for name, value in before.items() if (value != after[name]).any()]
        assert not differ, differ


def test_a_bad_loss_on_one_rank_stops_all_and_changes_nothing():
    check_bad_loss()


def check_sums(count: int, seed: int) -> None:
    """Sums are in rank order to the bit, whoever notices what when."""
    draw = np.random.default_rng(seed)
    sizes = [int(n) for n in draw.integers(1, 40, 6)]
    given = [[draw.standard_normal(n).astype(np.float32) for n in sizes] for _ in range(count)]
    ahead = int(draw.integers(0, 4))

    def run(ranks):
        exchange, found = Exchange(ranks._communicator), []
        for number, array in enumerate(given[ranks.rank]):
            exchange.start(Message(number, array.nbytes, count, True), [array])
            if number >= ahead:
                found.append(exchange.finish(number - ahead).view(np.float32).copy())
        late = range(max(0, len(sizes) - ahead), len(sizes))
        return found + [exchange.finish(n).view(np.float32).copy() for n in late]

    for found in on_ranks(count, run, seed):
        for number, mine in enumerate(found):
            total = given[0][number].copy()
            for other in given[1:]:
                total += other[number]
            assert mine.tobytes() == total.tobytes(), number


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [2, 3, 5])
def test_sums_are_in_rank_order(count, seed):
    check_sums(count, seed)


def test_what_comes_in_is_a_copy_as_between_processes():
    def run(ranks):
        found = ranks.from_first(lambda: {"loss": np.zeros(3)})
        found["loss"] += ranks.rank + 1
        ranks.agree({})  # all have changed theirs
        return found["loss"].tolist()

    assert on_ranks(3, run) == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


# Ranks that cannot train together


def differing(change) -> BaseException:
    """What two ranks raise of which the second one is changed."""

    def run(ranks):
        with make_trainer(ranks) as trainer:
            data = batches(1)
            if ranks.rank == 1:
                data = change(trainer, data) or data
            return run_steps(trainer, data)

    return first_error(lambda: on_ranks(2, run))


def _rate(trainer, data):
    trainer.optimizer.param_groups[0]["lr"] = 0.2


def _shape(trainer, data):
    return [(x[:, :, :7], y) for x, y in data]


def _network(trainer, data):
    trainer.model.drop = oc.nn.Flatten()


class _Package:
    """The package as a rank sees it that another version of the library was installed for."""

    def __init__(self, versions: dict[int, str]):
        self._versions = versions

    @property
    def __version__(self) -> str:
        return self._versions.get(acting_thread(), oc.__version__)


def check_named(change, word) -> None:
    """The first step ends on all ranks with an error that says who has what."""
    error = differing(change)
    assert isinstance(error, RanksDiffer)
    assert "rank 1" in str(error)
    assert word in str(error)


@pytest.mark.parametrize(
    ("change", "word"),
    [(_rate, "optimizer"), (_network, "model"), (_shape, "batch")],
)
def test_ranks_that_differ_are_named(change, word):
    check_named(change, word)


def check_versions(monkeypatch) -> None:
    """A rank of another version is found before anything is computed, and named with both."""
    versions: dict[int, str] = {}
    monkeypatch.setattr(ranks_of_all, "ooctrain", _Package(versions))

    def older(trainer, data):
        versions[acting_thread()] = "0.0.9"

    check_named(older, f"rank 1: version 0.0.9, rank 0: {oc.__version__}")


def test_ranks_of_another_version_are_named(monkeypatch):
    check_versions(monkeypatch)


def test_other_weights_are_found():
    def run(ranks):
        with make_trainer(ranks) as trainer:
            if ranks.rank:
                trainer.model.head.bias.copy_(np.ones(5, np.float32))
            return run_steps(trainer, batches(1))

    error = first_error(lambda: on_ranks(2, run))
    assert isinstance(error, RanksDiffer)
    assert "values" in str(error)


def test_a_batch_that_cannot_be_cut_is_refused():
    with pytest.raises(ConfigError, match=r"a batch of 8 cannot be cut.*3 ranks"):
        on_ranks(3, lambda ranks: ranks.part_of(8))


def test_parts_on_ranks_are_not_accumulated_besides():
    def run(ranks):
        with make_trainer(ranks, accumulate=2) as trainer:
            return run_steps(trainer, batches(1))

    with pytest.raises(ConfigError, match="accumulate 2"):
        on_ranks(2, run)


def test_one_rank_sends_nothing():
    def run(ranks):
        with make_trainer(ranks) as trainer:
            done = run_steps(trainer, batches())
            assert not [e for e in trainer.timeline.events if e.stream == "N"]
            return done

    expect_same(on_ranks(1, run), alone(1))


def test_ranks_end_alike_or_not():
    assert on_ranks(2, lambda ranks: ranks.ends_alike("full")) == [True, True]
    assert on_ranks(2, lambda ranks: ranks.ends_alike(str(ranks.rank))) == [False, False]
    alone_here = on_ranks(2, lambda ranks: ranks.rank == 0 or ranks.ends_alike("x", 0.05))
    assert alone_here == [True, False]
