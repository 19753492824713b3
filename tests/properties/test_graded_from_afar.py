"""What is graded through a pipe is what the submission does: same answers, errors, calls of memory.

Each law takes a submission twice, once directly and once as the proxy that graders ask, and gives
both the same questions. No cage is needed for it (`../support/one_process.py`); what a cage keeps
out is tested in `unit/test_cage.py`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.one_process import in_one_process

from ooctrain import errors
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.buddy import Buddy
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.passthrough import Passthrough
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.course.cage import wire
from ooctrain.course.cage.step_data import machine_data, machine_of, trace_data, trace_of
from ooctrain.course.remote import (
    AllocatorsOf,
    RemoteBands,
    RemoteLaw,
    RemotePlanner,
    name_in_answer,
)
from ooctrain.errors import ConfigError, DriverError, Infeasible, OoctrainError
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Granule
from ooctrain.testing.law_by_hand import HoleArena, random_arena
from ooctrain.testing.random_traces import random_machine, random_trace

PAGE, PAGES = 4096, 24

# Errors


def errors_of_ours() -> Iterator[OoctrainError]:
    """One of each kind that a submission may raise, with all that it can say."""
    said = {"code": "OOC-104", "where": "there", "numbers": "7 of 3", "fix": "less"}
    yield errors.OoctrainError("no", **said)
    yield errors.ConfigError("no", **said)
    yield errors.InvalidFree("no", **said)
    yield errors.PlanMismatch("no", **said)
    yield errors.ShapeError("no", **said)
    yield errors.Infeasible("no", minimum_bytes=5, witness_call="f", **said)
    yield errors.Infeasible("no", minimum_bytes=None, needs="host", **said)
    yield errors.Infeasible("no", minimum_bytes=5, needs="host", **said)
    yield errors.OutOfDeviceMemory(
        "no", granted_bytes=1, free_bytes=2, largest_bytes=3, budget_bytes=4, enough_bytes=5,
        arena="x", **said,
    )  # fmt: skip
    yield errors.ScheduleError("no", rule="R1", where="there", numbers="7", fix="less")


def there_and_back(error: BaseException, submission: str = "own.py:Mine") -> tuple[Any, str]:
    return wire.error_of(json.loads(json.dumps(wire.error_data(error, submission))))


@pytest.mark.parametrize("error", [*errors_of_ours()], ids=lambda error: type(error).__name__)
def test_an_error_of_ours_arrives_with_its_code_words_and_numbers(error):
    again, line = there_and_back(error)
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert line == str(error).splitlines()[0]


@pytest.mark.parametrize("error", [
    ValueError("x\ny"), KeyError("x"), AssertionError("x"), MemoryError("x"), ZeroDivisionError(),
    UnicodeError("of a kind of ValueError"), json.JSONDecodeError("so is this", "", 0),
], ids=lambda error: type(error).__name__)  # fmt: skip
def test_an_error_of_python_arrives_as_the_nearest_known_kind(error):
    again, line = there_and_back(error)
    unknown = (UnicodeError, json.JSONDecodeError)
    assert type(again) is (ValueError if isinstance(error, unknown) else type(error))
    assert again.args == (str(error),)
    assert line == (str(error) or type(error).__name__).splitlines()[0]


class OwnKind(Exception):
    """Of the submission's own."""


@pytest.mark.parametrize("error", [OwnKind("x"), SystemExit(3), StopIteration("x")])
def test_an_error_of_another_kind_is_the_submissions_own_and_names_its_kind(error):
    again, _ = there_and_back(error)
    assert type(again) is wire.OwnError
    assert str(again) == f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("told", [
    None, 3, [], "x", {"kind": "Infeasible", "what": "no", "minimum_bytes": None},
    *({"kind": "Infeasible", "what": "no", "minimum_bytes": None, "needs": needs}
      for needs in ("device", "process", "hosts", "", None, True, ["host"])),
    {"kind": "Infeasible", "what": "no", "needs": "device"},
    {"kind": "Infeasible", "what": "no", "minimum_bytes": "None", "needs": "host"},
    {"kind": "Infeasible", "what": "no", "minimum_bytes": True},
    {"kind": "Infeasible", "what": "no", "minimum_bytes": 2**63},
    {"kind": "Infeasible", "what": "no", "minimum_bytes": -(2**63)},
])  # fmt: skip
def test_what_is_no_error_becomes_an_error_of_type(told):
    again, line = wire.error_of(told)
    assert type(again) is TypeError
    assert line == str(again)


def test_numbers_of_an_error_may_be_as_large_as_a_word():
    told = {"kind": "Infeasible", "what": "no", "minimum_bytes": 2**63 - 1}
    assert wire.error_of(told)[0].minimum_bytes == 2**63 - 1


@settings(max_examples=30)
@given(st.text(max_size=30))
def test_nothing_in_words_is_obeyed(what):
    again, _ = there_and_back(ValueError(what))
    for had, has in zip(what, str(again), strict=True):
        assert has == (had if had == "\n" or had.isprintable() else "?")


def test_a_long_word_is_cut_at_the_limit():
    again, line = there_and_back(ValueError("a" * (wire.MOST_LETTERS + 5)))
    assert len(str(again)) == len(line) == wire.MOST_LETTERS


# Allocators


class Refusing(DryMemory):
    """Memory that writes down what is asked of it, and refuses some of what it is to give.

    Attributes:
        calls: all so far, with what else is noted between them.
        refused: places among them.
    """

    def __init__(self, size_bytes: int):
        super().__init__(size_bytes, PAGE)
        self.calls: list[Any] = []
        self.refused: frozenset[int] = frozenset()

    def _noted(self, *call: Any) -> None:
        self.calls.append(call)
        if len(self.calls) in self.refused and call[0] in ("reserve", "map"):
            raise DriverError("no", call=call[0], status=2, numbers=f"{call[1:]}", fix="wait")

    def reserve(self, size_bytes: int) -> int:
        self._noted("reserve", size_bytes)
        return super().reserve(size_bytes)

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        self._noted("map", address, offset, size_bytes)

    def unmap(self, address: int, size_bytes: int) -> None:
        self._noted("unmap", address, size_bytes)

    def release(self, address: int) -> None:
        self._noted("release", address)


class Waited:
    """An event that says when it is waited for."""

    def __init__(self, name: str, notes: list[Any]):
        self._name, self._notes = name, notes

    def wait(self) -> None:
        self._notes.append(("wait", self._name))


KINDS: dict[str, Any] = {
    "best-fit": BestFit, "buddy": Buddy, "passthrough": Passthrough, "va": VirtualAddressing,
}  # fmt: skip


def submitted(folder: Path, text: str, name: str = "Mine") -> str:
    path = folder / "own.py"
    path.write_text(text, encoding="utf-8")
    return f"{path}:{name}"


def kind_file(folder: Path, kind: str) -> str:
    made = KINDS[kind]
    return submitted(folder, f"from {made.__module__} import {made.__qualname__} as Mine\n")


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    """(an allocator's class, what makes the same through a pipe, the pipe)."""
    folder = tmp_path_factory.mktemp("own")
    with in_one_process("allocator", kind_file(folder, request.param)) as interview:
        yield KINDS[request.param], AllocatorsOf(interview), interview


def seen(block: Any) -> Any:
    return [block.id, block.address, block.requested_bytes, block.granted_bytes, block.tag]


class Program:
    """Random requests to one allocator, drawn from a seed, with all that they gave."""

    def __init__(self, make: Any, seed: int, refused: frozenset[int]):
        self.memory = Refusing(PAGES * PAGE)
        self.notes: list[Any] = self.memory.calls
        self.rng, self.blocks = random.Random(seed), []
        self.arena = make(self.memory)
        self.memory.refused = frozenset(len(self.notes) + place for place in refused)
        self.notes.append((self.arena.name, self.arena.granule, self.arena.budget_bytes))
        self.notes.append(bool(getattr(self.arena, "needs_virtual_memory", False)))

    def run(self, requests: int) -> list[Any]:
        names = ["allocate", "free", "free", "stats", "snapshot", "check", "foreign"]
        if self.arena.granule.ranges:
            names += ["reserve", "map_range", "unmap_range"]
        for number in range(requests):
            name = self.rng.choice(names) if self.blocks else "allocate"
            try:
                self.notes.append((name, getattr(self, name)(number)))
            except OoctrainError as error:
                known = {**vars(error)} | {"line": None, "of_driver": None, "__notes__": None}
                self.notes.append((name, type(error), known))
        self.memory.refused = frozenset()
        self.notes.append(("close", [seen(block) for block in self.arena.close()]))
        return self.notes

    def allocate(self, number: int) -> Any:
        size = self.rng.choice([0, 1, 100, PAGE, 3 * PAGE + 7, PAGES * PAGE * 2])
        self.blocks.append(self.arena.allocate(size, f"b{number}"))
        return seen(self.blocks[-1])

    def reserve(self, number: int) -> Any:
        self.blocks.append(self.arena.reserve(self.rng.randint(1, 6 * PAGE)))
        return seen(self.blocks[-1])

    def map_range(self, number: int) -> Any:
        block, lo = self.rng.choice(self.blocks), self.rng.choice([0, 0, PAGE])
        self.arena.map_range(block, lo, self.rng.choice([PAGE, 2 * PAGE, block.requested_bytes]))
        return seen(block)

    def unmap_range(self, number: int) -> Any:
        block = self.rng.choice(self.blocks)
        self.arena.unmap_range(block, 0, PAGE, [Waited(f"{number}", self.notes)])
        return seen(block)

    def free(self, number: int) -> Any:
        block = self.rng.choice(self.blocks)
        self.arena.free(block, [Waited(f"{number} {n}", self.notes) for n in range(number % 3)])
        return seen(block)

    def foreign(self, number: int) -> None:
        self.arena.free(SimpleNamespace(**dict(zip(
            ("id", "address", "requested_bytes", "granted_bytes", "tag"),
            (99, PAGE, 100, PAGE, "x"), strict=True,
        ))))  # fmt: skip

    def stats(self, number: int) -> Any:
        found = asdict(self.arena.stats())
        return {**found, "waited_ns": found["waited_ns"] > 0}  # by the clock

    def snapshot(self, number: int) -> Any:
        return json.loads(json.dumps(self.arena.snapshot()))

    def check(self, number: int) -> Any:
        return self.arena.check(), self.stats(number)


@settings(max_examples=30)
@given(st.integers(0, 1 << 30), st.frozensets(st.integers(1, 60), max_size=4))
def test_an_allocator_from_afar_is_the_allocator(both, seed, refused):
    """Blocks, books, layouts, refusals, and all that it asks of its memory and waits for."""
    direct, remote, _ = both
    expected = Program(direct, seed, refused).run(25)
    assert Program(remote, seed, refused).run(25) == expected


def test_an_allocator_that_nobody_has_any_more_is_forgotten_with_the_next_question(both):
    _, remote, interview = both
    arena = remote(DryMemory(PAGES * PAGE))
    number = interview.asked[-1]["number"]
    arena.allocate(100)
    del arena
    other = remote(DryMemory(PAGES * PAGE))
    assert interview.asked[-1]["forget"] == [number]
    other.allocate(1)
    assert interview.asked[-1]["forget"] == []


ASKS = """
from ooctrain.alloc.best_fit import BestFit

class Mine(BestFit):
    name = "n" * 100 + "\\x1b"
    needs_virtual_memory = 1

    def snapshot(self):
        {body}
        return {{}}
"""


@pytest.mark.parametrize(("body", "kind"), [
    ("self.memory_.linear(1.5)", TypeError),
    ("self.memory_.call('reserve', [1 << 70])", TypeError),
    ("self.memory_.call('reserve', [True])", TypeError),
    ("self.memory_.call('size_bytes', [])", AttributeError),
    ("self.memory_.nothing()", AttributeError),
    ("self.memory_.call('wait', [7])", AttributeError),
    ("self.memory_.call('wait', [-1])", AttributeError),
    ("self.memory_.call('used_bytes', [])", AttributeError),
    ("self.memory_.reserve()", TypeError),
    ("raise LookupError('x')", LookupError),
    ("return 3", TypeError),
])  # fmt: skip
def test_what_a_memory_cannot_do_is_refused_from_afar(body, kind, tmp_path):
    text = ASKS.format(body=body) + (
        "    def __init__(self, memory):\n        super().__init__(memory)\n"
        "        self.memory_ = memory\n"
    )
    with in_one_process("allocator", submitted(tmp_path, text)) as interview:
        arena = AllocatorsOf(interview)(DryMemory(1 << 16))
        assert (arena.name, arena.needs_virtual_memory) == ("n" * 80, True)
        with pytest.raises(kind):
            arena.snapshot()
        assert arena.allocate(512).granted_bytes == 512  # it goes on


LIES = {
    "name = 3": None, "granule = None": AttributeError, "budget_bytes = -1": TypeError,
    "budget_bytes = True": TypeError, "budget_bytes = 1 << 70": TypeError,
    "def load_plan(self): pass": ConfigError, "check = property()": ConfigError,
    "def allocate(self, nbytes, tag=''): return None": TypeError,
    "def stats(self): return self": AttributeError,
    "def close(self): return []": None, "def close(self): return [3]": TypeError,
    "def close(self): return 3": TypeError,
}  # fmt: skip


@pytest.mark.parametrize("line", LIES)
def test_an_allocator_that_lies_about_itself_gets_an_error_and_ends_nothing(line, tmp_path):
    text = (
        "from ooctrain.alloc.best_fit import BestFit\n\nclass Mine(BestFit):\n"
        f"    {line}\n    budget_bytes = property(lambda s: 1 << 16, lambda s, v: None)\n"
    )
    if line.startswith("budget"):
        text = text.rpartition("    budget")[0].replace(
            line, f"budget_bytes = property(lambda s: {line[15:]}, lambda s, v: None)"
        )

    def used(interview: Any) -> None:
        arena = AllocatorsOf(interview)(DryMemory(1 << 16))
        arena.allocate(100)
        arena.stats()
        arena.close()

    with in_one_process("allocator", submitted(tmp_path, text)) as interview, ExitStack() as stack:
        if LIES[line] is not None:
            stack.enter_context(pytest.raises(LIES[line]))
        used(interview)


# Planners


#: One of each family, with and without parameters.
PLANNERS = ("naive", "window:size=2", "lru", "belady", "chen-sqrt", "keep-all")


@pytest.fixture(scope="module", params=PLANNERS)
def planners(request, tmp_path_factory):
    """(a planner, the same through a pipe)."""
    planner = get_planner(request.param)
    text = (
        "from ooctrain.sched.planners.registry import get_planner\n\n"
        f"class Mine:\n    name = {planner.name!r}\n\n    def plan(self, question):\n"
        f"        return get_planner({request.param!r}).plan(question)\n"
    )
    folder = tmp_path_factory.mktemp("own")
    with in_one_process("planner", submitted(folder, text)) as interview:
        yield planner, RemotePlanner(interview), interview


@settings(max_examples=24)
@given(
    st.integers(0, 1 << 30), st.sampled_from([Granule(1), Granule(8), Granule(4, True)]),
    st.sampled_from([None, 0, 40]),
)  # fmt: skip
def test_a_planner_from_afar_is_the_planner(planners, seed, granule, host):
    """The same plan, and the same least budget where there is none."""
    direct, remote, interview = planners
    rng = random.Random(seed)
    trace, machine = random_trace(rng, calls=6), random_machine(rng)
    assert remote.name == direct.name
    for budget in (1, rng.randint(20, 200), 1 << 20):
        found = []
        for planner in (direct, remote):
            try:
                asked = Question(trace, budget, machine, granule, host, seed)
                found.append(planner.plan(asked).to_json())
            except Infeasible as refusal:
                found.append({**vars(refusal), "line": None, "of_driver": None})
        for plan in found:
            plan.pop("lower_bound", None)
        assert found[0] == found[1]
    # The rows of a step travel once.
    assert [question["trace"] is None for question in interview.asked[-3:]] == [False, True, True]


@settings(max_examples=30)
@given(st.integers(0, 1 << 30), st.booleans())
def test_a_step_and_a_machine_arrive_as_they_are(seed, interferes):
    rng = random.Random(seed)
    trace = random_trace(rng, duration_ns=rng.choice([None, 50]))
    trace = replace(trace, threads=rng.choice([None, 2]), device=rng.choice(["cpu", "cuda"]))
    machine = random_machine(rng, interference=interferes)
    again = trace_of(json.loads(json.dumps(trace_data(trace))))
    assert machine_of(json.loads(json.dumps(machine_data(machine)))) == machine
    assert again.fingerprint == trace.fingerprint
    assert trace_data(again) == trace_data(trace)
    assert (again.variables, again.carries, again.outputs) == (
        trace.variables, trace.carries, trace.outputs,
    )  # fmt: skip
    for call, other in zip(trace.calls, again.calls, strict=True):
        assert replace(call, op=other.op) == other
        assert (str(other.op), other.op.name) == (str(call.op), call.op.name)


HARMS = "vars(question.trace)['calls'] = ()\n        raise Infeasible('no', minimum_bytes=7)"
#: {what `plan` does: what its error is, and of a refusal what it names}
PLAN_LIES = {
    "return 3": (ConfigError,), "raise Infeasible('no', minimum_bytes=-1)": (ConfigError,),
    "raise Infeasible('no', minimum_bytes=None)": (ConfigError,),
    "raise Infeasible('no', minimum_bytes=None, needs='device')": (ConfigError,),
    "raise Infeasible('no', minimum_bytes=None, needs='process')": (ConfigError,),
    "raise Infeasible('no', minimum_bytes=None, needs='host')": (Infeasible, None, "host"),
    "raise Infeasible('no', minimum_bytes=7, needs='host')": (Infeasible, 7, "host"),
    "raise Infeasible('no', minimum_bytes=7, needs='moon')": (Infeasible, 7, "device"),
    "raise Infeasible('no', minimum_bytes=7)": (Infeasible, 7, "device"),
    "raise ValueError('no')": (ValueError,), HARMS: (Infeasible, 7, "device"),
}  # fmt: skip


@pytest.mark.parametrize("body", PLAN_LIES)
def test_what_is_no_plan_is_an_error(body, tmp_path):
    text = (
        "from ooctrain.errors import Infeasible\n\nclass Mine:\n    name = 'mine'\n\n"
        f"    def plan(self, question):\n        {body}\n"
    )
    rng = random.Random(1)
    trace, machine = random_trace(rng), random_machine(rng)
    before = trace.fingerprint
    with in_one_process("planner", submitted(tmp_path, text)) as interview:
        planner = RemotePlanner(interview)
        kind, *named = PLAN_LIES[body]
        with pytest.raises(kind) as found:
            planner.plan(Question(trace, 10, machine))
        harmed = body == HARMS
        assert (trace.variable_by_name == {}) == harmed
        assert trace.fingerprint == before or harmed
        if kind is Infeasible:
            assert [found.value.minimum_bytes, found.value.needs] == named


@pytest.mark.parametrize(("kind", "text"), [
    ("planner", "class Mine:\n    name = 'x'\n"),
    ("planner", "class Mine:\n    plan = print\n"),
    ("planner", "class Mine:\n    plan, name = 3, 'x'\n"),
    ("bands", "class Mine:\n    name = 'x'\n"),
    ("bands", "class Mine:\n    rows = print\n"),
    ("law", "class Mine:\n    name = 'x'\n"),
    ("law", "class Mine:\n    check = print\n"),
])  # fmt: skip
def test_what_is_no_planner_no_bands_and_no_law_is_said_to_be_none(kind, text, tmp_path):
    with (
        in_one_process(kind, submitted(tmp_path, text)) as interview,
        pytest.raises(ConfigError) as error,
    ):
        name_in_answer(interview)
    assert error.value.code == "OOC-108"


@pytest.mark.parametrize(("name", "told"), [
    ("'fine'", "fine"), ("'x' * 90", "x" * 80), ("'a\\tb'", "a?b"), ("7", "7"),
])  # fmt: skip
@pytest.mark.parametrize(
    ("kind", "method"), [("planner", "plan"), ("bands", "rows"), ("law", "check")]
)
def test_each_kind_says_its_name(kind, method, name, told, tmp_path):
    text = f"class Mine:\n    name = {name}\n\n    def {method}(self, *given, **rest): pass\n"
    with in_one_process(kind, submitted(tmp_path, text)) as interview:
        assert name_in_answer(interview) == told


# Bands and laws


BANDS = """
class Mine:
    name = "mine"

    def rows(self, layers, cuts):
        assert all(isinstance(layer, tuple) for layer in layers)
        return {answer}
"""


@pytest.mark.parametrize(("answer", "right"), [
    ("[[list(layer), cut] for layer in layers for cut in cuts]", True), ("[]", True),
    ("3", False), ("[3]", False), ("None", False), ("float('nan')", False), ("{1}", False),
])  # fmt: skip
def test_bands_from_afar_are_the_bands(answer, right, tmp_path):
    layers, cuts = [(3, 1, 1), (2, 2, 0)], [4, 8]
    with in_one_process("bands", submitted(tmp_path, BANDS.format(answer=answer))) as interview:
        bands = RemoteBands(interview)
        if right:
            found = bands.rows(layers, cuts)
            assert found == eval(answer, {"layers": layers, "cuts": cuts})
            assert interview.asked[-1]["layers"] == [list(layer) for layer in layers]
        else:
            with pytest.raises((TypeError, ValueError)):
                bands.rows(layers, cuts)


LAW = '''
class Mine:
    """Two blocks do not overlap; and it asks what there is not."""

    name = "mine"

    def check(self, arena, rng):
        live = {}
        for _ in range(30):
            if live and rng.random() < 0.4:
                offset = rng.choice(sorted(live))
                arena.free(offset)
                del live[offset]
                continue
            size = rng.randint(1, arena.size // 3)
            offset = arena.allocate(size)
            if offset is not None:
                for other, extent in live.items():
                    assert offset + size <= other or other + extent <= offset, f"{offset}\\n{size}"
                live[offset] = size
        assert rng.random() < 0.9, "x" * 300
        assert rng.random() < 0.9
        {more}
'''


class Overlapping(HoleArena):
    """A broken arena: every fourth block lies where another does."""

    count = 0

    def allocate(self, size: int) -> int | None:
        offset = super().allocate(size)
        self.count += 1
        return offset // 2 if offset and self.count % 4 == 0 else offset

    def free(self, offset: int) -> None:
        with suppress(KeyError):
            super().free(offset)


def said(law: Any, arena: Any, seed: int) -> Any:
    try:
        law.check(arena, random.Random(seed))
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize(
    "more", ["", "arena.free(10 ** 6)", "arena.allocate(-1)", "arena.allocate('x')", "1 / 0"]
)
def test_a_law_from_afar_is_the_law(more, tmp_path):
    """It draws the same numbers, asks the same arena, and says the same, on one line and cut."""
    submission = submitted(tmp_path, LAW.replace("{more}", more))
    space: dict[str, Any] = {}
    exec(LAW.replace("{more}", more), space)
    with in_one_process("law", submission) as interview:
        remote = RemoteLaw(interview)
        assert remote.name == "mine"
        for seed in range(30):
            rng = (random.Random(seed) for _ in range(2))
            kind = (HoleArena, Overlapping)[seed % 2]
            direct, arena = (random_arena(r, kind) for r in rng)
            kind_of, words = said(space["Mine"](), direct, seed) or (None, "")
            again = said(remote, arena, seed) or (None, "")
            if kind_of is AssertionError:
                assert again == (kind_of, (words or "it is broken").replace("\n", " ")[:200])
            elif more.startswith("arena.allocate"):
                assert again[0] in (ValueError, TypeError)
            else:
                assert again[0] is kind_of
            assert vars(arena) == vars(direct) or more
