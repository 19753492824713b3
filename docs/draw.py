# ruff: noqa: E501 (rows of a table cannot be broken)
"""Writes `one_page.md` and the pictures of the documents that are drawn from real runs.

    python docs/draw.py            # writes them
    python docs/draw.py --check    # says which of them are not what the library computes

Every number of the page comes from a trace, a plan, a simulation or a placement made here; nothing
is typed. `tests/contracts/test_one_page.py` holds the files to it.
"""

from __future__ import annotations

import sys
from itertools import zip_longest
from pathlib import Path

import ooctrain as oc
from ooctrain.alloc.log import foresee
from ooctrain.alloc.static import pack
from ooctrain.report.moving_memory import arena_film, bands_film, mapping_film, window_film

DOCS = Path(__file__).parent
BUDGET_BYTES = 500
CHUNK = 64 << 10
#: Chunks in the values of a chain whose stages are not alike, for the two pictures of arenas.
UNEVEN = (3, 1, 4, 1, 2, 3, 1, 4, 2)


def page_plan() -> oc.Plan:
    """The eight-stage step of the page, within its budget."""
    machine = oc.toy_machine()
    return oc.plan(oc.equal_stages(8), BUDGET_BYTES, "window", machine)


def page_offsets(plan: oc.Plan) -> tuple[int, ...]:
    """The address of each value, packed before the step begins."""
    log = oc.allocation_log(plan.trace, plan.schedule, plan.peak_bytes, steps=1)
    forecast = foresee(log.requests, log.parameters)
    return pack(forecast, oc.Granule(1, ranges=False), "list", pools=1).offsets


def page_picture() -> str:
    """Streams, ledger and addresses over one time axis."""
    plan = page_plan()
    timeline = oc.simulate(plan.schedule, plan.trace, oc.toy_machine())
    return oc.pictures.step_svg(plan, timeline, page_offsets(plan))


def uneven_log() -> oc.alloc.AllocationLog:
    """What a step of unequal stages asks for when the window planner swaps."""
    sizes = [CHUNK * chunks for chunks in UNEVEN]
    times = [10.0] * (len(sizes) - 1)
    nothing = [0] * len(times)
    chain = oc.chain(sizes, sizes, times, [20.0] * len(times), nothing, nothing)
    machine = oc.toy_machine(20 * CHUNK / 100)
    whole = oc.Granule(1, ranges=False)
    plan = oc.plan(chain, "25%", "window", machine, whole)
    return oc.allocation_log(plan.trace, plan.schedule, plan.peak_bytes, steps=1)


def banded_trace() -> oc.Trace:
    """Four convolutions on 32 rows, forward in four bands."""
    oc.manual_seed(0)
    layers = [oc.nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(4)]
    step = oc.trace(
        oc.nn.Sequential(*layers), (1, 1, 32, 8), "mse", None, threads=1, conv_algorithm="direct"
    )
    return oc.tile(step, (4, 1), "0", "3", halo="keep", again=False)


def films() -> dict[str, oc.pictures.Film]:
    """{file: moving picture}."""
    plan, log = page_plan(), uneven_log()
    mapped = oc.alloc.block_lives(log, "va:chunk=64KiB", log.budget_bytes)
    placed = oc.alloc.block_lives(log, "best-fit")
    requests = max(life.end for life in mapped)
    highest = max(life.hi for life in placed)
    tensors = ["input", "0.out", "1.out", "2.out", "3.out"]
    return {
        "window.svg": window_film(
            plan.trace, plan.schedule, round(plan.notes["window"] * BUDGET_BYTES)
        ),
        "halo.svg": bands_film(banded_trace(), tensors, 32),
        "remapping.svg": mapping_film(mapped, CHUNK, log.budget_bytes // CHUNK, requests),
        "holes.svg": arena_film(placed, highest, requests, log.budget_bytes),
    }


def page() -> str:
    """The text of `one_page.md`."""
    trace, machine, plan = oc.equal_stages(8), oc.toy_machine(), page_plan()
    timeline = oc.simulate(plan.schedule, plan.trace, machine)
    in_core = oc.plan(trace, 1 << 20, "keep-all", machine)
    naive = oc.plan(trace, BUDGET_BYTES, "naive", machine)
    again_bytes = least_budget(trace, "rotor")
    again = oc.plan(trace, again_bytes, "rotor", machine)
    bound = oc.lower_bound(trace, BUDGET_BYTES, machine, recompute=False)
    first, last = trace.calls[0], trace.calls[-1]
    held = after_each_run(timeline, plan)
    return f"""# One page: a training step as a list

For everybody who wants to see the idea before reading about it.
The whole idea on one step of eight stages: **a training step is a straight-line list; its order alone decides what is
correct and how much memory it takes; the streams it runs on decide how fast it is.** Every value has
{trace.variables[0].nbytes} bytes. A stage runs {first.duration_ns // 1000} us forward and {last.duration_ns // 1000} us
backward; the link copies {machine.link_bytes_per_us:g} bytes per us each way. `python docs/draw.py` writes this page.

**1. Trace.** What the step computes: {len(trace.calls)} calls over {len(trace.variables)} values: the outputs `x` and their gradients `y`.

```
{trace_text(trace)}
```

If nothing leaves (*in-core*) the step takes {in_core.peak_bytes} bytes and {in_core.makespan_us:.0f} us. We have {BUDGET_BYTES} bytes.

**2. List.** What the planner `window` writes: `out` copies to the host, `free` gives memory back, `in` fetches
(read down the columns; the `end` of each `run` is left out).

```
{list_text(plan)}
```

**3. Ledger, 4. Streams, 5. Addresses.** The simulator gives each instruction a time. Three streams work at once:
computing, copying out, copying in. The ledger counts the bytes that are claimed and not yet given
back: `free` gives bytes back when their last reader and their last copy are done. The addresses say where each value lies.

![Streams, ledger and addresses of the step over time.](pictures/one_page.svg)

```
{ledger_text(trace, held)}
```

| in {BUDGET_BYTES} bytes | us | bytes out | bytes in | |
|---|---|---|---|---|
| `naive`, which waits for every copy | {naive.makespan_us:.0f} | {moved(naive)[0]} | {moved(naive)[1]} | {naive.makespan_us / in_core.makespan_us:.2f} x in-core |
| `window`, drawn above | {plan.makespan_us:.0f} | {timeline.bytes_out} | {timeline.bytes_in} | waits only for the first input |
| no list that swaps is faster than | {bound.makespan_us:.0f} | | | the lower bound |
| `rotor`, which computes again ({again_bytes} bytes) | {again.makespan_us:.0f} | {moved(again)[0]} | {moved(again)[1]} | {again.notes["runs_again"]} stages run again |

Try it: `oc.plan(oc.equal_stages(8), {BUDGET_BYTES}, "window", oc.toy_machine())`. Then read tutorials 02, 04, 06 and 11.
"""


def trace_text(trace: oc.Trace) -> str:
    """The calls in two columns: forward and loss, backward."""
    names = [v.name for v in trace.variables]

    def line(call: int) -> str:
        c = trace.calls[call]
        ins, outs = (" ".join(names[v] for v in vs) for vs in (c.ins, c.outs))
        return f"{c.name:<5}{ins} -> {outs}"

    forward = [line(c.id) for c in trace.calls if c.phase != "backward"]
    backward = [line(c.id) for c in trace.calls if c.phase == "backward"]
    rows = zip_longest(forward, backward, fillvalue="")
    return "\n".join(f"{left:<34}{right}".rstrip() for left, right in rows)


def list_text(plan: oc.Plan, columns: int = 7) -> str:
    """The list without its ends, read down the columns."""
    lines = [plan.schedule.describe(i, plan.trace) for i in range(len(plan.schedule))]
    lines = [line for line in lines if not line.startswith("end")]
    rows = -(-len(lines) // columns)
    table = [lines[row::rows] for row in range(rows)]
    return "\n".join("".join(f"{word:<12}" for word in row).rstrip() for row in table)


def after_each_run(timeline: oc.Timeline, plan: oc.Plan) -> dict[str, int]:
    """{call: bytes on the device while it runs}."""
    found = {}
    for event in timeline.events:
        if event.stream == "C":
            before = [size for time_us, size in timeline.ledger if time_us <= event.start_us]
            found[event.name] = before[-1]
    return found


def ledger_text(trace: oc.Trace, held: dict[str, int]) -> str:
    """Bytes on the device while each call runs."""
    names = "".join(f"{call.name:>5}" for call in trace.calls)
    sizes = "".join(f"{held[call.name]:>5}" for call in trace.calls)
    return f"while  {names}\nbytes  {sizes}"


def moved(plan: oc.Plan) -> tuple[int, int]:
    """Bytes out and in."""
    timeline = oc.simulate(plan.schedule, plan.trace, oc.toy_machine())
    return timeline.bytes_out, timeline.bytes_in


def least_budget(trace: oc.Trace, planner: str) -> int:
    """The least budget at which a planner finds a plan."""
    try:
        oc.plan(trace, 1, planner, oc.toy_machine())
    except oc.Infeasible as refusal:
        return refusal.minimum_bytes or 1
    return 1


def drawn() -> dict[Path, str]:
    """{file: what belongs into it}."""
    pictures = {f"pictures/{name}": oc.pictures.moving_svg(film) for name, film in films().items()}
    files = {"one_page.md": page(), "pictures/one_page.svg": page_picture(), **pictures}
    return {DOCS / name: text for name, text in files.items()}


def main(arguments: list[str]) -> int:
    """Writes the files, or with --check names those that differ."""
    wrong = 0
    for path, text in drawn().items():
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(DOCS.parent)} is not what the library computes")
            wrong = 1
    return wrong


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
