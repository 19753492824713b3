"""A short list as a drawing in text: where each value is after each instruction, up to the mistake.

`ooctrain explain R203` draws with it the smallest list that breaks a rule. A row is an instruction,
a column a variable. The rows are read off the ledger, and the mistake is the verifier's own answer,
so a drawing says what these two say. Read next: `verify.py`; `ooctrain/explain/R203.md`,
one of the examples.
"""

from __future__ import annotations

from ooctrain.errors import ScheduleError
from ooctrain.sched.ledger import Ledger
from ooctrain.sched.rules import AFTER, AT_START
from ooctrain.sched.schedule import Schedule, describe_instruction
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.trace import Trace

#: The step of all examples; every variable has 64 bytes, x is an input and W a parameter.
EXAMPLE_STEP = (
    "f(x W) -> y; relu(y) -> z in place of y; b(x z) -> gW; update(W gW) -> W' in place of W"
)
KEY = "# on the device, h a copy on the host, . in neither place"
#: (device, host) bytes that the examples of R3 have.
_BUDGETS = {"R301": (128, None), "R302": (None, 64)}
#: Examples of another step, or of what a plan claims.
_NO_LIST = ("R108", "R5", "R6")
_SIZE = 64


def example_step() -> Trace:
    """The step that the examples of the rules are lists of; `EXAMPLE_STEP` says it in words."""
    step = TraceBuilder()
    x = step.variable("x", (_SIZE,), "uint8", "input")
    weight = step.variable("W", (_SIZE,), "uint8", "param")
    y = step.variable("y", (_SIZE,), "uint8")
    step.call("f", None, (x, weight), (y,))
    z = step.variable("z", (_SIZE,), "uint8")
    step.call("relu", None, (y,), (z,), reuse={z: y})
    gradient = step.variable("gW", (_SIZE,), "uint8", "wgrad")
    step.call("b", None, (x, z), (gradient,))
    after = step.variable("W'", (_SIZE,), "uint8", "param")
    step.call(
        "update", None, (weight, gradient), (after,), reuse={after: weight}, pure=False,
        phase="update",
    )  # fmt: skip
    step.carries[after] = weight
    return step.build()


def drawn_example(code: str, example: str) -> str:
    """The smallest list that breaks a rule, drawn; "" where it is not a list of `example_step`.

    Args:
        example: the list as text, from the rule's page.
    """
    if code.startswith(_NO_LIST):
        return ""
    trace = example_step()
    schedule = Schedule.parse(example, trace)
    budget, host_budget = _BUDGETS.get(code, (None, None))
    try:
        verify(schedule, trace, budget, host_budget_bytes=host_budget)
    except ScheduleError as error:
        return drawn_list(schedule, trace, error)
    return ""


def drawn_list(schedule: Schedule, trace: Trace, error: ScheduleError) -> str:
    """A list up to the place where it breaks a rule, and what the verifier says there.

    Args:
        schedule, trace: a list of a few instructions and variables, and what it is for.
        error: what `verify` raised for them.
    """
    names = [describe_instruction(item, trace) for item in schedule.instructions]
    width = max(map(len, ["at the start", *names])) + 3
    ledger = Ledger(trace, schedule)

    def row(name: str) -> str:
        cells = "".join(
            f"{'#' * bool(on.items) + 'h' * bool(copy.items) or '.':4}"
            for on, copy in zip(ledger.device, ledger.host, strict=True)
        )
        return f"{name:{width}}{cells}{ledger.ledger_bytes:5}"

    titles = "".join(f"{variable.name:4}" for variable in trace.variables)
    lines = [f"{'':{width}}{titles}bytes on the device", row("at the start")]
    for index in range(_issued(error, len(names))):
        ledger.issue(index, schedule.instructions[index])
        lines.append(row(names[index]))
    if error.index is not None and error.rule not in AFTER:
        lines.append(f"{names[error.index]:{width}}<- not allowed here")
    said = ((f"{error.rule}: ", error.what), ("numbers: ", error.numbers), ("fix: ", error.fix))
    return "\n".join([*lines, "", *(f"{title}{text}" for title, text in said if text)])


def _issued(error: ScheduleError, length: int) -> int:
    """How many instructions took place: a rule of R3 looks at the state after one, a rule of the
    end at the state after all."""
    if error.index is not None:
        return error.index + (error.rule in AFTER)
    return 0 if error.rule in (*AT_START, *AFTER) else length
