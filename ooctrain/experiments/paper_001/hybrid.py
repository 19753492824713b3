"""Paper 001, figures 3 to 6 and tables 1 and 2: images too large, swapped, computed again, or both.

In: two networks at a fixed batch, growing images, a device. Out: for each image and method the
megapixels per second and the number of swap-outs; and what the paper's printed parameters do here.
The one idea: TensorFlow's steps take about twice the memory of ours, so in the same 32 GB nothing
is short where the paper was; so beside the device stands a memory fitted to one printed figure, the
largest image without any method, and everything else that is printed is then a prediction.

Source: paper 001, section 4. Departures: `experiments/verdicts/hybrid.py`. Read next:
`hybrid_printed.py`, the tables; `sched/planners/tflms_hybrid.py`; `hybrid_shown.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ooctrain.errors import Infeasible
from ooctrain.experiments.compare import step_trace
from ooctrain.experiments.paper_001.hybrid_printed import NETWORKS, Network, Tuned
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.lms.lms import LevelGraph, Lms
from ooctrain.sched.planners.lms.lms_auto import LmsAuto
from ooctrain.sched.planners.tflms_hybrid import TflmsHybrid
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.unroll import plan_runs
from ooctrain.sched.schedule import BYTES, Plan, SwapOut
from ooctrain.sched.verify import verify
from ooctrain.step.presets import v100_32gb_nvlink
from ooctrain.step.trace import Trace

DEVICE, FITTED = "32 GiB", "fitted"
VANILLA, RECOMPUTE, SWAP, HYBRID = "vanilla", "recompute", "swap", "hybrid"
PRINTED_LIST, OURS = "printed list", "auto"
METHODS = (VANILLA, RECOMPUTE, SWAP, HYBRID, PRINTED_LIST, OURS)
MACHINE = v100_32gb_nvlink()
QUICK_SIZES = MappingProxyType({"resnet50": (3000, 6500)})


@dataclass(frozen=True, slots=True)
class Cell:
    """What a method makes of an image size; what cannot be trained has no speed.

    Args:
        model, image_size, method: which.
        memory: "32 GiB" or "fitted"; budget_bytes: the same in bytes.
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
    megapixels_per_s: float | None
    minimum_bytes: int | None
    swap_outs: int | None
    bytes_out: int | None
    parameters: str


@dataclass(frozen=True, slots=True)
class Replay:
    """The paper's parameters, used here.

    Args:
        kind: "swap" or "hybrid"; scaled: whether levels are scaled to the height of our graph.
        printed: the parameters; used: those that were set.
        rest: as in `Cell`.
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


def memories(network: Network) -> dict[str, int]:
    """{name: bytes}: the device's, and what the step takes halfway between the paper's largest
    image without any method and the next that it tried."""
    size = (network.sizes_of_fit[0] + network.sizes_of_fit[1]) // 2
    return {DEVICE: MACHINE.device_bytes, FITTED: trace_peak_bytes(_step(network, size), BYTES)}


def cells(case: tuple[Network, int]) -> list[Cell]:
    """All methods and memories of (network, image size)."""
    network, size = case
    step = _step(network, size)
    found = []
    for memory, budget in memories(network).items():
        for method, plan in _methods(network, size, step, budget):
            found.append(_cell(network, size, method, memory, budget, plan))
    return found


def replays(case: tuple[Network, int]) -> list[Replay]:
    """The printed parameters of (network, image size), as given and scaled."""
    network, size = case
    step = _step(network, size)
    height = LevelGraph(step).height
    rows = []
    for memory, budget in memories(network).items():
        for kind, table in (("swap", network.swap), ("hybrid", network.hybrid)):
            if size in table:
                for scaled in (False, True):
                    used = _scaled(table[size], height, network.levels) if scaled else table[size]
                    rows.append(_replay(network, size, kind, scaled, used, memory, budget, step))
    return rows


def largest(found: Iterable[Cell], model: str, method: str, memory: str) -> int | None:
    """The largest of the image sizes that a method trains."""
    sizes = [
        cell.image_size
        for cell in found
        if (cell.model, cell.method, cell.memory) == (model, method, memory)
        and cell.megapixels_per_s is not None
    ]
    return max(sizes, default=None)


def speed(
    found: Iterable[Cell], model: str, method: str, memory: str, size: int
) -> float | None:  # fmt: skip
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


def recompute_overhead(found: Sequence[Cell], network: Network, memory: str) -> float | None:
    """What computing everything again costs where nothing has to be, of the speed without it."""
    size = network.sizes_of_fit[0]
    plain = speed(found, network.model, VANILLA, memory, size)
    again = speed(found, network.model, RECOMPUTE, memory, size)
    return None if plain is None or again is None else 1 - again / plain


def hybrid_gain(
    found: Sequence[Cell], network: Network, memory: str, method: str = HYBRID
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


def network_of(model: str) -> Network:
    """The network of a cell."""
    return next(network for network in NETWORKS if network.model == model)


def _methods(
    network: Network, size: int, step: Trace, budget: int
) -> Iterator[tuple[str, Callable[[], Plan]]]:
    """(name, what plans), in the order of `METHODS`."""
    every = tuple(checkpoint.id for checkpoint in TflmsHybrid().checkpoints(step))
    yield VANILLA, lambda: _plan(step, (), KeepAll(), budget)
    yield RECOMPUTE, lambda: _plan(step, every, KeepAll(), budget)
    yield SWAP, lambda: _plan(step, (), LmsAuto(), budget)
    yield HYBRID, lambda: TflmsHybrid().plan(step, budget, MACHINE)
    listed = network.hybrid[size].checkpoints if size in network.hybrid else ()
    if listed:
        yield PRINTED_LIST, lambda: _plan(step, listed, LmsAuto(), budget)
    yield OURS, lambda: Auto().plan(step, budget, MACHINE)


def _cell(
    network: Network, size: int, method: str, memory: str, budget: int, plan: Callable[[], Plan]
) -> Cell:
    step = _step(network, size)
    try:
        found = plan()
    except Infeasible as refusal:
        return Cell(
            network.model, size, method, memory, budget, None, refusal.minimum_bytes, None, None, ""
        )
    verify(found, step, budget, MACHINE)
    outs = [i for i in found.schedule.instructions if isinstance(i, SwapOut)]
    return Cell(
        network.model, size, method, memory, budget, _megapixels_per_s(network, size, found), None,
        len(outs), sum(out.hi - out.lo for out in outs), _in_words(found),
    )  # fmt: skip


def _replay(
    network: Network, size: int, kind: str, scaled: bool, used: Tuned, memory: str, budget: int,
    step: Trace,
) -> Replay:  # fmt: skip
    printed = (network.swap if kind == "swap" else network.hybrid)[size]
    lms = Lms(used.swapout_threshold, used.swapin_ahead, used.swapin_groupby)
    reached, minimum = None, None
    try:
        reached = _megapixels_per_s(network, size, _plan(step, used.checkpoints, lms, budget))
    except Infeasible as refusal:
        minimum = refusal.minimum_bytes
    return Replay(
        network.model, size, kind, scaled, printed, used, memory, budget, reached, minimum
    )


def _plan(step: Trace, checkpoints: Sequence[int], swapper: Planner, budget: int) -> Plan:
    """Paper 001's order of edits: compute again, then swap."""
    runs = TflmsHybrid().runs(step, checkpoints)
    return plan_runs("hybrid", Question(step, budget, MACHINE), runs, swapper, {})


def _step(network: Network, size: int) -> Trace:
    return step_trace(network.model, network.batch, size)


def _megapixels_per_s(network: Network, size: int, plan: Plan) -> float:
    return network.batch * size * size / plan.makespan_us


def _scaled(tuned: Tuned, height: int, levels: int) -> Tuned:
    """Levels of the paper's graph as levels of ours."""
    threshold, ahead, groupby = (
        round(number * height / levels)
        for number in (tuned.swapout_threshold, tuned.swapin_ahead, tuned.swapin_groupby)
    )
    return Tuned(threshold, ahead, groupby, tuned.checkpoints)


def _in_words(plan: Plan) -> str:
    return ", ".join(f"{name}={value}" for name, value in plan.notes.items())
