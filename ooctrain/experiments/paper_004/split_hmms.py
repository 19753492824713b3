"""Paper 004, figure 10: how much larger a batch becomes, at what cost.

For networks and the memory of the device this finds the largest batch of each method and its speed;
and the calls that alone need more than half of the memory, before the split and after. A split
network is another network, so "split + HMMS" is compared with methods on the same machine that
change no result: HMMS and `belady` on the whole network, exact bands and `auto`. The comparison
shows when Split-CNN is needed.

Everything is simulated, on the P100 whose arithmetic is fitted to one printed figure
(`hmms_speeds.py`). The paper's workspace is cuDNN's; here calls run one after the other, so parts
share theirs anyway.

Source: paper 004, section 6.3. Departures: docs/papers.md. Read next: `hmms_speeds.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from ooctrain.api import step_trace
from ooctrain.errors import Infeasible
from ooctrain.execution.planners import get_planner
from ooctrain.experiments.bisected import largest
from ooctrain.experiments.paper_004.hmms_speeds import IMAGE_SIZE, QUICK_BATCH, machines
from ooctrain.experiments.reproducing import Wanted, print_title, write_figure
from ooctrain.experiments.spread import spread
from ooctrain.report.charts import Piece, strips_svg
from ooctrain.report.text import plain_table
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine
from ooctrain.units import format_bytes, per_second

#: "number of splits = 4, depth about 75 %".
SPLIT, WHOLE = "depth=0.75,grid=2x2", ""
BASELINE = "baseline"
#: Batches are tried in steps of this, up to a largest one: a step in bands needs hardly more memory
#: for more images, so its batch has no end; --quick: of QUICK_STEP up to QUICK_MOST.
STEP, MOST = 32, 2048
QUICK_STEP, QUICK_MOST = 128, 512
EVALUATIONS = 5000


@dataclass(frozen=True, slots=True)
class SplitMethod:
    """A way to train: a planner, on the split network or on the whole one.

    Args:
        name: as shown; planner: by name; split: in the words of --split.
    """

    name: str
    planner: str
    split: str = WHOLE

    @property
    def exact(self) -> bool:
        """Whether it computes what the baseline does."""
        return not self.split

    @property
    def may_tile(self) -> bool:
        """Whether it may cut the step into bands."""
        return self.planner in ("banded", "auto")


METHODS: Mapping[str, tuple[SplitMethod, ...]] = MappingProxyType(
    {
        "vgg19": (
            SplitMethod(BASELINE, "keep-all"), SplitMethod("HMMS", "hmms"),
            SplitMethod("split", "keep-all", SPLIT), SplitMethod("split + HMMS", "hmms", SPLIT),
            SplitMethod("belady", "belady"), SplitMethod("exact bands", "banded"),
            SplitMethod("auto", "auto"),
        ),
        "resnet18": (
            SplitMethod(BASELINE, "keep-all"), SplitMethod("HMMS", "hmms"),
            SplitMethod("split", "keep-all", SPLIT), SplitMethod("split + HMMS", "hmms", SPLIT),
            SplitMethod("bn-recompute + HMMS", "bn-recompute:swap=hmms"),
            SplitMethod("split + bn-recompute + HMMS", "bn-recompute:swap=hmms", SPLIT),
            SplitMethod("belady", "belady"), SplitMethod("exact bands", "banded"),
            SplitMethod("auto", "auto"),
        ),
    }
)  # fmt: skip
QUICK_METHODS = ("baseline", "HMMS", "split + HMMS", "belady")
#: {network: (times the baseline's batch, loss of speed)}: figure 10, section 6.3; ResNet-18 with
#: batch norm recomputed.
PRINTED: Mapping[tuple[str, str], tuple[float, float]] = MappingProxyType(
    {
        ("vgg19", "split + HMMS"): (6.0, 0.015),
        ("resnet18", "split + bn-recompute + HMMS"): (2.0, 0.049),
    }
)


@dataclass(frozen=True, slots=True)
class SplitCase:
    """A question: the largest batch of a method.

    Args:
        model, method: which; where: the machine.
        step, most: batches are multiples of `step`, `most` at most.
    """

    model: str
    method: SplitMethod
    where: Machine
    step: int
    most: int


@dataclass(frozen=True, slots=True)
class LargestOfMethod:
    """The answer: the largest batch, 0 for none; simulated speed and peak of its plan."""

    batch: int
    images_per_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """What a method reaches.

    Args:
        model, method, planner: which; exact: whether it computes what the baseline does.
        batch: the largest tried that fits; 0: none; ends: whether no larger one was tried.
        times: as a multiple of the baseline's.
        images_per_s: simulated, at that batch; loss: of the baseline's speed at its own.
        peak_bytes: peak of the plan.
        printed_times, printed_loss: the paper's, where it has them.
    """

    model: str
    method: str
    planner: str
    exact: bool
    batch: int
    ends: bool
    times: float
    images_per_s: float
    loss: float
    peak_bytes: int
    printed_times: float | None
    printed_loss: float | None


@dataclass(frozen=True, slots=True)
class LargeCalls:
    """The calls of a step that need more than half of the memory by themselves.

    Args:
        model, batch, split: describe the step; calls: in all.
        large: how many need more than half of the memory; largest: the largest need's call.
        largest_bytes, workspace_bytes: the largest need of a call, and the largest workspace.
        minimum_bytes: what every schedule of the step needs.
    """

    model: str
    batch: int
    split: str
    calls: int
    large: int
    largest: str
    largest_bytes: int
    workspace_bytes: int
    minimum_bytes: int


def cases_of(
    model: str, where: Machine, step: int, most: int, names: Sequence[str] = ()
) -> list[SplitCase]:
    """The questions of a network, the baseline's first.

    Args:
        step, most: as in `SplitCase`.
        names: names of the methods; none: all.
    """
    methods = [each for each in METHODS[model] if not names or each.name in names]
    return [SplitCase(model, method, where, step, most) for method in methods]


def reached(case: SplitCase) -> list[LargestOfMethod]:
    """The answer to a question, for `spread`."""
    batch, plan = _largest(case)
    if plan is None:
        return [LargestOfMethod(0, 0.0, 0)]
    return [LargestOfMethod(batch, per_second(batch, plan.makespan_us), plan.peak_bytes)]


def largest_batches(
    cases: Sequence[SplitCase], found: Iterable[Sequence[LargestOfMethod]]
) -> Iterator[SplitBatch]:
    """The rows of some networks: each answer next to that of its network's baseline."""
    base = LargestOfMethod(0, 0.0, 0)
    for case, (answer,) in zip(cases, found, strict=True):
        method = case.method
        if method.name == BASELINE:
            base = answer
        times, loss = PRINTED.get((case.model, method.name), (None, None))
        speed = base.images_per_s
        yield SplitBatch(
            case.model, method.name, method.planner, method.exact, answer.batch,
            answer.batch == case.most, answer.batch / base.batch if base.batch else 0.0,
            answer.images_per_s, 1 - answer.images_per_s / speed if speed else 0.0,
            answer.peak_bytes, times, loss,
        )  # fmt: skip


def _largest(case: SplitCase) -> tuple[int, Plan | None]:
    """The largest batch with a plan, by doubling, then bisection: a method that trains a batch
    trains a smaller one. A method that may cut the step into bands tries the largest batch first:
    it most likely fits, and its plan takes longest to find.
    """
    most, plans = case.most // case.step, dict[int, Plan]()

    def does(steps: int) -> bool:
        plan = _plan(case.model, case.method, case.where, steps * case.step)
        if plan is not None:
            plans[steps] = plan
        return plan is not None

    tiles = case.method.may_tile
    found = most if tiles and does(most) else largest(does, most if tiles else most + 1)
    return found * case.step, plans.get(found)


def _plan(model: str, method: SplitMethod, where: Machine, batch: int) -> Plan | None:
    step = step_trace(model, batch, IMAGE_SIZE, split=method.split)
    if trace_minimum_bytes(step) > where.device_bytes and method.planner in ("keep-all", "hmms"):
        return None
    try:
        question = Question(step, where.device_bytes, where, effort=Effort(EVALUATIONS))
        plan = get_planner(method.planner).plan(question)
    except Infeasible:
        return None
    if plan.rewrites == ():
        verify(plan, step, where.device_bytes, where)
    return plan


def large_calls(model: str, batch: int, split: str, where: Machine) -> LargeCalls:
    """What single calls of a step need."""
    step = step_trace(model, batch, IMAGE_SIZE, split=split)
    needs: dict[str, int] = {}
    for call in step.calls:
        held = {step.storage[v] for v in call.touched()}
        needs[call.name] = call.workspace_bytes + sum(step.variables[v].nbytes for v in held)
    largest = max(needs, key=lambda name: needs[name])
    return LargeCalls(
        model, batch, split, len(step.calls),
        sum(need > where.device_bytes / 2 for need in needs.values()), largest, needs[largest],
        max(call.workspace_bytes for call in step.calls), trace_minimum_bytes(step),
    )  # fmt: skip


# `ooctrain reproduce split-hmms`: a table of largest batches and speeds, one of calls that need
# more than half of the memory, a picture, numbers.

HERE, PAPER, EXACT = 0, 1, 2


def split_hmms(wanted: Wanted, console: Console) -> Mapping[str, Any]:
    """Paper 004, figure 10."""
    _, where = machines(QUICK_BATCH)
    step, most, names = STEP, MOST, tuple[str, ...]()
    if wanted.quick:
        step, most = QUICK_STEP, QUICK_MOST
        names = QUICK_METHODS
    models = ("vgg19",) if wanted.quick else tuple(METHODS)
    cases = [c for model in models for c in cases_of(model, where, step, most, names)]
    rows: list[SplitBatch] = []
    with console.status("") as status:
        found = spread(reached, cases, 1 if wanted.quick else None, wanted.keep)
        for row in largest_batches(cases, found):
            rows.append(row)
            status.update(f"{row.model}, {row.method}: {row.batch}")
    calls: list[LargeCalls] = []
    for model in models:
        # Where the split is compared with itself unsplit: at the largest batch that it reaches.
        split = [row.batch for row in rows if row.model == model and not row.exact]
        batch = max(split, default=0) or step
        calls += [large_calls(model, batch, words, where) for words in (WHOLE, SPLIT)]
    memory = format_bytes(where.device_bytes)
    about = f"  {most}+: no larger one was tried"
    print_title(
        console, f"Largest batches in {memory}, simulated on {where.name} (paper 004)", about
    )
    console.print(batch_table(rows))
    print_title(console, f"\nCalls that need more than half of {memory} by themselves")
    console.print(call_table(calls))
    write_figure(wanted, console, figure(rows))
    return {
        "machine": asdict(where) | {"profile": {}}, "split": SPLIT, "batch_step": step,
        "batches": [asdict(row) for row in rows], "calls": [asdict(row) for row in calls],
    }  # fmt: skip


def batch_table(rows: Sequence[SplitBatch]) -> Table:
    """The largest batch of each method; the paper's figures in brackets."""
    table = plain_table(
        "network", "method", "results", "batch", "times", "images/s", "loss", "peak",
        left=("network", "method", "results"),
    )  # fmt: skip
    for row in rows:
        times = "" if row.printed_times is None else f" ({row.printed_times:.0f})"
        loss = "" if row.printed_loss is None else f" ({row.printed_loss:.1%})"
        table.add_row(
            row.model, row.method, "the same" if row.exact else "another network",
            f"{row.batch}{'+' if row.ends else ''}",
            f"{row.times:.1f}{times}", f"{row.images_per_s:.0f}", f"{row.loss:.1%}{loss}",
            format_bytes(row.peak_bytes),
        )  # fmt: skip
    return table


def call_table(rows: Sequence[LargeCalls]) -> Table:
    """Large calls before the split and after."""
    table = plain_table(
        "network", "batch", "split", "calls", "large", "largest", "needs", "workspace", "least",
        left=("network", "split", "largest"),
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.model, str(row.batch), row.split or "no", str(row.calls), str(row.large),
            row.largest, format_bytes(row.largest_bytes), format_bytes(row.workspace_bytes),
            format_bytes(row.minimum_bytes),
        )  # fmt: skip
    return table


def figure(rows: Sequence[SplitBatch]) -> str:
    """SVG: the largest batches, as multiples of the baseline's."""
    most = max((row.times for row in rows), default=1.0) + 1
    strips = []
    for row in rows:
        colour = EXACT if row.exact else HERE
        text = f"{row.batch}: {row.times:.1f} times, {-row.loss:+.1%}"
        strips.append((f"{row.model}, {row.method}", [Piece(0, row.times, text, colour)]))
        if row.printed_times is not None:
            text = f"paper {row.printed_times:.0f} times, {-(row.printed_loss or 0):+.1%}"
            strips.append(("", [Piece(0, row.printed_times, text, PAPER)]))
    return strips_svg(
        "Figure 10: largest batch and change of speed", strips, extent=max(most, 7.0),
        axis="times the baseline's batch",
        legend=("split, simulated", "paper 004, measured", "same results, simulated"),
    )  # fmt: skip
