"""Paper 001, figures 3 to 6 and tables 1 and 2: images too large, swapped, computed again, or both.

Two networks train at a fixed batch on growing images. For each image and method this computes the
megapixels per second and the number of swap-outs, and what the paper's printed parameters do here.
TensorFlow's steps take about twice the memory of ours, so the 32 GB that are too little in the
paper are enough here. A second memory is therefore fitted to one printed figure, the largest image
without any method. Nor does our swapping get slower where the paper's does, so beside that memory a
link is fitted to another: the knee, up to which swapping loses nothing. All other printed values
are then predictions.

Source: paper 001, section 4. Departures: docs/papers.md. Read next: `hybrid_printed.py`, the
tables; `sched/planners/tflms_hybrid.py`; `hybrid_shown.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ooctrain.api import step_trace
from ooctrain.errors import Infeasible
from ooctrain.experiments.bisected import bisected
from ooctrain.experiments.paper_001.hybrid_printed import NETWORKS, Tuned, TunedNetwork
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.lms import LevelGraph, Lms, LmsAuto
from ooctrain.sched.planners.tflms_hybrid import TflmsHybrid
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.unroll import plan_runs
from ooctrain.sched.schedule import BYTES, Plan, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine
from ooctrain.step.presets import v100_32gb_nvlink
from ooctrain.step.trace import Trace

DEVICE, FITTED, FITTED_LINK = "32 GiB", "fitted", "fitted, and link"
VANILLA, RECOMPUTE, SWAP, HYBRID = "vanilla", "recompute", "swap", "hybrid"
PRINTED_LIST, OURS = "printed list", "auto"
METHODS = (VANILLA, RECOMPUTE, SWAP, HYBRID, PRINTED_LIST, OURS)
MACHINE = v100_32gb_nvlink()
#: Swapping is flat where it keeps this share of its speed on the stated link.
FLAT = 0.99
QUICK_SIZES = MappingProxyType({"resnet50": (3000, 6500)})


@dataclass(frozen=True, slots=True)
class ImageCell:
    """What a method makes of an image size; what cannot be trained has no speed.

    Args:
        model, image_size, method: which.
        memory: "32 GiB", "fitted", or "fitted, and link" where the link is fitted, too;
            budget_bytes: the same in bytes; link_bytes_per_us: of each way.
        megapixels_per_s: simulated.
        minimum_bytes: what the method needs where it does not fit.
        swap_outs: how many copies to the host the list has; bytes_out: theirs.
        parameters: what the tuner chose, in words.
    """

    model: str
    image_size: int
    method: str
    memory: str
    budget_bytes: int
    link_bytes_per_us: float
    megapixels_per_s: float | None
    minimum_bytes: int | None
    swap_outs: int | None
    bytes_out: int | None
    parameters: str


@dataclass(frozen=True, slots=True)
class TunedReplay:
    """The paper's parameters, used here.

    Args:
        kind: "swap" or "hybrid"; scaled: whether levels are scaled to the height of our graph.
        printed: the parameters; used: those that were set.
        rest: as in `ImageCell`.
    """

    model: str
    image_size: int
    kind: str
    scaled: bool
    printed: Tuned
    used: Tuned
    memory: str
    budget_bytes: int
    megapixels_per_s: float | None
    minimum_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A step, a memory and a machine: what all methods are asked for."""

    network: TunedNetwork
    image_size: int
    step: Trace
    memory: str
    budget_bytes: int
    machine: Machine


def memories(network: TunedNetwork) -> dict[str, int]:
    """{name: bytes}: the device's, and what the step takes halfway between the paper's largest
    image without any method and the next that it tried."""
    size = (network.sizes_of_fit[0] + network.sizes_of_fit[1]) // 2
    return {DEVICE: MACHINE.device_bytes, FITTED: trace_peak_bytes(_step(network, size), BYTES)}


def fitted_link(network: TunedNetwork) -> float:
    """Bytes per us each way, with which swapping just begins to lose halfway between the largest
    image at which the paper's does not and the next that it tried.

    The plan depends on memory alone, so it is made once.
    """
    flat, slower = network.sizes_of_knee
    plan = LmsAuto().plan(_step(network, (flat + slower) // 2), memories(network)[FITTED], MACHINE)

    def time_us(link: float) -> float:
        where = replace(MACHINE, link_bytes_per_us=link)
        return simulate(plan.schedule, plan.trace, where).makespan_us

    stated = MACHINE.link_bytes_per_us
    most_us = time_us(stated) / FLAT
    return bisected(stated / 1000, stated, lambda link: time_us(link) > most_us)


def cells(case: tuple[TunedNetwork, int, float | None]) -> list[ImageCell]:
    """All methods and memories of (network, image size, fitted link; None: without that)."""
    return [
        _cell(asked, method, plan)
        for asked in _asked_in_all_memories(*case)
        for method, plan in _methods(asked)
    ]


def replays(case: tuple[TunedNetwork, int, float | None]) -> list[TunedReplay]:
    """The printed parameters of (network, image size, fitted link), as given and scaled."""
    network, size, _ = case
    return [
        _replay(asked, kind, table[size], scaled)
        for asked in _asked_in_all_memories(*case)
        for kind, table in (("swap", network.swap), ("hybrid", network.hybrid))
        if size in table
        for scaled in (False, True)
    ]


def largest(found: Iterable[ImageCell], model: str, method: str, memory: str) -> int | None:
    """The largest of the image sizes that a method trains."""
    sizes = [
        cell.image_size
        for cell in found
        if (cell.model, cell.method, cell.memory) == (model, method, memory)
        and cell.megapixels_per_s is not None
    ]
    return max(sizes, default=None)


def speed(
    found: Iterable[ImageCell], model: str, method: str, memory: str, size: int
) -> float | None:
    """The speed of one cell."""
    key = (model, method, memory, size)
    return next(
        (
            cell.megapixels_per_s
            for cell in found
            if (cell.model, cell.method, cell.memory, cell.image_size) == key
        ),
        None,
    )


def recompute_overhead(
    found: Sequence[ImageCell], network: TunedNetwork, memory: str
) -> float | None:
    """What computing everything again costs where nothing has to be, of the speed without it."""
    size = network.sizes_of_fit[0]
    plain = speed(found, network.model, VANILLA, memory, size)
    again = speed(found, network.model, RECOMPUTE, memory, size)
    return None if plain is None or again is None else 1 - again / plain


def hybrid_gain(
    found: Sequence[ImageCell], network: TunedNetwork, memory: str, method: str = HYBRID
) -> tuple[int, float] | None:
    """(image size, gain) where a method gains most over swapping alone; None: nowhere compared."""
    gains = []
    for size in sorted({cell.image_size for cell in found if cell.model == network.model}):
        swapped = speed(found, network.model, SWAP, memory, size)
        both = speed(found, network.model, method, memory, size)
        if swapped is not None and both is not None:
            gains.append((both / swapped - 1, size))
    if not gains:
        return None
    gain, size = max(gains, key=lambda pair: pair[0])
    return size, gain


def network_of(model: str) -> TunedNetwork:
    """The network of a cell."""
    return next(network for network in NETWORKS if network.model == model)


def _asked_in_all_memories(
    network: TunedNetwork, size: int, link: float | None
) -> Iterator[_Asked]:
    step, found = _step(network, size), memories(network)
    for memory, budget_bytes in found.items():
        yield _Asked(network, size, step, memory, budget_bytes, MACHINE)
    if link is not None:
        where = replace(MACHINE, link_bytes_per_us=link)
        yield _Asked(network, size, step, FITTED_LINK, found[FITTED], where)


def _methods(asked: _Asked) -> Iterator[tuple[str, Callable[[], Plan]]]:
    """(name, what plans), in the order of `METHODS`; auto, which takes longest, on the stated link
    alone."""
    step, budget, printed = asked.step, asked.budget_bytes, asked.network.hybrid
    every = tuple(checkpoint.id for checkpoint in TflmsHybrid().checkpoints(step))
    yield VANILLA, lambda: _plan(asked, (), KeepAll())
    yield RECOMPUTE, lambda: _plan(asked, every, KeepAll())
    yield SWAP, lambda: _plan(asked, (), LmsAuto())
    yield HYBRID, lambda: TflmsHybrid().plan(step, budget, asked.machine)
    listed = printed[asked.image_size].checkpoints if asked.image_size in printed else ()
    if listed:
        yield PRINTED_LIST, lambda: _plan(asked, listed, LmsAuto())
    if asked.memory != FITTED_LINK:
        yield OURS, lambda: Auto().plan(step, budget, asked.machine)


def _cell(asked: _Asked, method: str, plan: Callable[[], Plan]) -> ImageCell:
    head = (
        asked.network.model, asked.image_size, method, asked.memory, asked.budget_bytes,
        asked.machine.link_bytes_per_us,
    )  # fmt: skip
    try:
        found = plan()
    except Infeasible as refusal:
        return ImageCell(*head, None, refusal.minimum_bytes, None, None, "")
    verify(found, asked.step, asked.budget_bytes, asked.machine)
    outs = [i for i in found.schedule.instructions if isinstance(i, SwapOut)]
    bytes_out = sum(out.hi - out.lo for out in outs)
    speed = _megapixels_per_s(asked, found)
    notes = ", ".join(f"{name}={value}" for name, value in found.notes.items())
    return ImageCell(*head, speed, None, len(outs), bytes_out, notes)


def _replay(asked: _Asked, kind: str, printed: Tuned, scaled: bool) -> TunedReplay:
    used = _scaled(printed, asked) if scaled else printed
    lms = Lms(used.swapout_threshold, used.swapin_ahead, used.swapin_groupby)
    reached, minimum = None, None
    try:
        reached = _megapixels_per_s(asked, _plan(asked, used.checkpoints, lms))
    except Infeasible as refusal:
        minimum = refusal.minimum_bytes
    return TunedReplay(
        asked.network.model, asked.image_size, kind, scaled, printed, used, asked.memory,
        asked.budget_bytes, reached, minimum,
    )  # fmt: skip


def _plan(asked: _Asked, checkpoints: Sequence[int], swapper: Planner) -> Plan:
    """Paper 001's order of edits: compute again, then swap."""
    runs = TflmsHybrid().runs(asked.step, checkpoints)
    question = Question(asked.step, asked.budget_bytes, asked.machine)
    return plan_runs("hybrid", question, runs, swapper, {})


def _step(network: TunedNetwork, size: int) -> Trace:
    return step_trace(network.model, network.batch, size)


def _megapixels_per_s(asked: _Asked, plan: Plan) -> float:
    return asked.network.batch * asked.image_size**2 / plan.makespan_us


def _scaled(tuned: Tuned, asked: _Asked) -> Tuned:
    """Levels of the paper's graph as levels of ours."""
    height = LevelGraph(asked.step).height
    threshold, ahead, groupby = (
        round(number * height / asked.network.levels)
        for number in (tuned.swapout_threshold, tuned.swapin_ahead, tuned.swapin_groupby)
    )
    return Tuned(threshold, ahead, groupby, tuned.checkpoints)
