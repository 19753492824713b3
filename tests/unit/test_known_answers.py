"""What a grader makes of answers, whatever they are: a table of answers that are slightly wrong.

The process of a submission may answer anything. Here an answer that is right is changed in one
place at a time, and what comes of it, a value or the kind of an error, stands in a table, as do
sizes, times and errors in words. `support/known.py` says why they are written down; that no answer
ends a grader is a law (`../properties/test_graded_from_afar.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import known
from support.known_numbers import numbers_in

import ooctrain as oc
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.course.cage.serve import serve
from ooctrain.course.cage.serve_allocator import Shelf
from ooctrain.course.cage.wire import error_data, error_of, printable
from ooctrain.course.remote import (
    AllocatorsOf,
    RemoteBands,
    RemotePlanner,
    name_in_answer,
    plan_in_answer,
)
from ooctrain.errors import (
    ConfigError,
    DriverError,
    Infeasible,
    OoctrainError,
    OutOfDeviceMemory,
    ScheduleError,
    did_you_mean,
)
from ooctrain.sched.planning.question import Question
from ooctrain.units import (
    BYTES,
    Granule,
    format_bytes,
    format_clock,
    format_percent,
    format_rate,
    format_us,
    parse_budget,
    parse_bytes,
    rate_of,
)

ODD = (None, True, 0, -1, 1 << 62, 1 << 63, -(1 << 63), 1.5, "x", [], {}, [1, 2, 3])


class Scripted:
    """An interview whose answers are given."""

    processes = 1

    def __init__(self, *answers):
        self.answers, self.asked = deque(answers), []

    def ask(self, question, called=None):
        self.asked.append(question)
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        return answer(called) if callable(answer) else answer


def came(make):
    """What comes of a call: a value, or an error by its kind and its code."""
    try:
        return make()
    except Exception as error:
        return f"{type(error).__name__} {getattr(error, 'code', '')}".strip()


def changed(answer):
    """The answer with each of its values in turn replaced by odd ones, or left out."""
    for key in answer:
        yield key, "-", {name: value for name, value in answer.items() if name != key}
        for value in ODD:
            yield key, repr(value), {**answer, key: value}


# Allocators

MADE = {"granule": [16, False, 0], "name": "mine\x1b", "budget_bytes": 4096}
BLOCK = {"value": {"block": [1, 64, 10, 16, "t"], "number": 5}, "block": [1, 64, 10, 32, "t"]}


class Memory:
    """A memory that answers the questions of an allocator."""

    size_bytes, ranges = 4096, False

    def linear(self, nbytes):
        if nbytes == 7:
            raise DriverError("full", call="mmap", status=12)
        return nbytes + 1

    def used_bytes(self):
        raise KeyError("books")


def made(*answers, memory=None):
    interview = Scripted(MADE, *answers)
    return AllocatorsOf(interview)(memory or Memory()), interview


def test_what_an_allocator_says_of_itself():
    def seen(answer):
        found = AllocatorsOf(Scripted(answer))(Memory())
        granule = found.granule
        return (
            type(found).__name__, found.name, found.budget_bytes, found.needs_virtual_memory,
            granule.size_bytes, granule.ranges, granule.fixed_bytes,
        )  # fmt: skip

    rows = [(*where, came(lambda answer=answer: seen(answer))) for *where, answer in changed(MADE)]
    for granule in ([16, True, 3], [16, False], [16, 0, 0], [1, False, -1], [0, False, 0], (1, 2)):
        rows += [("granule", granule, came(lambda g=granule: seen({**MADE, "granule": g})))]
    for more in ({"foresees": True}, {"foresees": 0}, {"needs_virtual_memory": True}):
        rows += [(more, came(lambda more=more: seen({**MADE, **more})))]
    rows += [(repr(value), came(lambda value=value: seen(value))) for value in ODD]
    known.check_rows("slips", "allocators", rows)
    _, interview = made()
    question = interview.asked[0]
    assert question["memory"] == {"size_bytes": 4096, "ranges": False}
    assert (question["ask"], question["forget"], question["events"]) == ("make", [], [])


def test_blocks_that_are_given():
    def block_of(answer):
        allocator, interview = made(answer)
        block = allocator.allocate(10, "t")
        assert interview.asked[1]["values"] == [10, "t"]
        return (block.id, block.address, block.requested_bytes, block.granted_bytes, block.tag)

    rows = []
    for row in ([1, 64, 10, 16, "t"], [1, 64, 10, 16], [1, 64, 10, 16, 5], [1, 64, 10, 1.0, "t"],
                [True, 64, 10, 16, "t"], [1, 1 << 63, 10, 16, "t"], [1, (1 << 63) - 1, 10, 16, ""],
                (1, 64, 10, 16, "t"), [1, -5, 0, 0, ""],
                [1, -(1 << 63), 0, 0, ""], "12345"):  # fmt: skip
        for number in (5, -5, None, True, "5"):
            answer = {"value": {"block": row, "number": number}}
            rows.append((row, number, came(lambda answer=answer: block_of(answer))))
    known.check_rows("slips", "blocks", rows)


def test_what_an_allocator_answers_later():
    rows = []
    for found in ([], [5], [5, 5], [6], None, 5, {}, "5"):
        allocator, _ = made(BLOCK, {"value": found})
        allocator.allocate(10, "t")
        rows.append(("close", repr(found), came(lambda a=allocator: [b.id for b in a.close()])))
    for reply in ({"block": [1, 64, 10, 48, "t"]}, {"block": None}, {"block": [1, 2, 3, "x"]}, {}):
        allocator, interview = made(BLOCK, reply)
        block = allocator.allocate(10, "t")
        rows.append(("free", repr(reply), came(lambda a=allocator, b=block: a.free(b)),
                     block.granted_bytes))  # fmt: skip
        assert interview.asked[2]["block"] == 5
    for books in ({"reserved_bytes": 5}, 5, None):
        allocator, interview = made({**BLOCK, "books": books}, {"value": {}})
        allocator.allocate(10, "t")
        rows.append(("stats", repr(books), came(allocator.stats), len(interview.asked)))
        rows.append(("snapshot", came(allocator.snapshot), came(allocator.check)))
    foreign = SimpleNamespace(id=1, address=2, requested_bytes=3, granted_bytes=4, tag="f")
    allocator, interview = made({"value": None})
    allocator.free(foreign)
    assert interview.asked[1]["block"] == [1, 2, 3, 4, "f"]
    known.check_rows("slips", "later", rows)


def test_what_the_memory_of_an_allocator_is_asked():
    asked = (
        ("linear", [3]), ("linear", [7]), ("linear", [1.0]), ("linear", []), ("linear", [True]),
        ("linear", [1 << 62]), ("linear", [-(1 << 62)]), ("linear", [1 - (1 << 62)]),
        ("wait", [0]), ("wait", []), ("wait", [-1]), ("wait", [1]), ("map", [1]), ("close", []),
        ("used_bytes", []), ("size_bytes", []),
    )  # fmt: skip
    rows, waited = [], []
    for what, values in asked:
        found = []
        allocator, _ = made(
            BLOCK, lambda called, w=what, v=values, f=found: f.append(called(w, v)) or {"value": 0}
        )
        block = allocator.allocate(10, "t")
        event = SimpleNamespace(wait=lambda: waited.append(1))
        outcome = came(lambda a=allocator, b=block, e=event: a.free(b, [e]))
        error = found[0].get("error", {})
        rows.append((what, values, found[0].get("value", ""), error.get("kind", ""),
                     found[0].get("driver", ""), outcome))  # fmt: skip
    assert len(waited) == 1
    known.check_rows("slips", "memory", rows)

    def raising(called):
        called("linear", [7])
        error = ValueError("mine")
        error.of_driver = True
        raise error

    allocator, _ = made(BLOCK, raising)
    block = allocator.allocate(10, "t")
    with pytest.raises(DriverError):
        allocator.free(block)


# Plans, bands, names


def test_plans_that_are_claimed():
    step, machine = oc.equal_stages(4), oc.toy_machine()
    plan = oc.plan(step, 700, "lru", machine, rewrites=())
    data = plan.to_json()
    kept = {key: data[key] for key in ("peak_bytes", "host_peak_bytes", "makespan_us", "notes",
                                       "rewrites", "trace_fingerprint")}  # fmt: skip
    rows = [
        (*where, came(lambda a=answer: plan_in_answer({**data, **a}, step).makespan_us))
        for *where, answer in changed(kept) if where[1] != "-"
    ]  # fmt: skip
    rows += [("-", key, came(lambda k=key: plan_in_answer(
        {n: v for n, v in data.items() if n != k}, step).peak_bytes)) for key in data]  # fmt: skip
    rows += [("whole", repr(value), came(lambda v=value: plan_in_answer(v, step))) for value in ODD]
    rows += [("makespan", repr(value), came(
        lambda v=value: plan_in_answer({**data, "makespan_us": v}, step).makespan_us
    )) for value in (float("nan"), float("inf"), -5.0, 0, float(1 << 62))]  # fmt: skip
    known.check_rows("slips", "plans", rows)

    question = Question(step, 700, machine, Granule(1), 5000, 9)
    rows = []
    refusals = [
        {"refusal": error_data(error, "")} for error in (
            Infeasible("no", minimum_bytes=5), Infeasible("no", minimum_bytes=-1),
            Infeasible("no", minimum_bytes=None, needs="host"), ConfigError("what"), KeyError("k"),
        )
    ]  # fmt: skip
    for reply in ({"plan": data}, *refusals, {"plan": None}, 5, {}):
        interview = Scripted({"name": "p"}, reply)
        planner = RemotePlanner(interview)
        rows.append([came(lambda p=planner: p.plan(question).peak_bytes) for _ in range(2)])
        rows[-1].append([asked["trace"] is None for asked in interview.asked[1:]])
    known.check_rows("slips", "asked plans", rows)
    asked = interview.asked[1]
    assert (asked["budget_bytes"], asked["granule"], asked["host_budget_bytes"], asked["seed"]) == (
        700, [1, True, 0], 5000, 9,
    )  # fmt: skip


def test_names_and_rows():
    names = ("n", "\x1b" + "w" * 100, "", 5, None)
    rows = [(repr(name)[:20], name_in_answer(Scripted({"name": name}))) for name in names]
    rows += [(repr(value), name_in_answer(Scripted(value))) for value in ODD]
    for value in ([[1]], [[], []], [1], [[1], 2], None, "x", []):
        bands = RemoteBands(Scripted({"name": "b"}, {"rows": value}))
        rows.append((repr(value), came(lambda b=bands: b.rows([(3, 1, 1)], (0, 4)))))
    known.check_rows("slips", "names", rows)
    interview = Scripted({"name": "b"}, {"rows": []})
    RemoteBands(interview).rows([(3, 1, 1)], (0, 4))
    assert interview.asked[1] == {"ask": "rows", "layers": [[3, 1, 1]], "cuts": [0, 4]}


class Line:
    """A line to a grader: its questions, and what was sent."""

    def __init__(self, *questions):
        self.questions, self.sent = deque(questions), []

    def receive(self):
        if not self.questions:
            raise EOFError
        return {**self.questions.popleft(), "id": len(self.questions)}

    def send(self, data):
        self.sent.append(data)


BANDS = """
class Right:
    name = "right"
    def rows(self, layers, cuts):
        return [[layers, cuts]] if cuts[0] else {1, 2}
class NoRows:
    name = "none"
class NoName:
    def rows(self, layers, cuts):
        return []
"""


@pytest.mark.parametrize("name", ["Right", "NoRows", "NoName", "Nothing"])
def test_what_is_served_of_bands(name, tmp_path):
    (tmp_path / "b.py").write_text(BANDS)
    line = Line({"ask": "name"}, {"ask": "rows", "layers": [[1, 2, 3]], "cuts": [4, 5]},
                {"ask": "rows", "layers": [], "cuts": [0]}, {"ask": "name"})  # fmt: skip
    serve(line, "bands", f"{tmp_path / 'b.py'}:{name}")
    known.check_rows("slips", f"served {name}", [
        (sent["id"], *(sent.get("answer") or {"": ""}).items(),
         *(sent.get("error", {}).get(key, "") for key in ("kind", "code")))
        for sent in line.sent
    ])  # fmt: skip


# Errors as data, and in words


class Own(Exception):
    """Of a kind of its own."""


def test_errors_arrive_as_they_may():
    errors = [
        Own("o"), ValueError("a\nb"), KeyError("k"), Infeasible("i", minimum_bytes=5, fix="f"),
        OutOfDeviceMemory("m", granted_bytes=1, free_bytes=2, largest_bytes=3, arena="a"),
        ScheduleError("s", rule="R203", index=4), ConfigError("c", code="OOC-105", numbers="3"),
        DriverError("d", call="mmap"), ZeroDivisionError(),
        UnicodeDecodeError("utf8", b"", 0, 1, "r"),
    ]  # fmt: skip
    rows = []
    for error in errors:
        data = error_data(error, "")
        found, line = error_of(data)
        rows.append((type(error).__name__, *data.items(), type(found).__name__, line,
                     getattr(found, "code", "")))  # fmt: skip
        for key in [key for key, value in data.items() if isinstance(value, int)]:
            for value in (None, 1 << 63, -(1 << 63), (1 << 63) - 1, True, "5"):
                found, line = error_of({**data, key: value})
                rows.append((key, repr(value), type(found).__name__, len(line.split())))
    rows += [(repr(value), *map(str, error_of(value))) for value in ODD]
    known.check_rows("slips", "errors", rows)
    assert printable("a\nb\x1bc" + "x" * 5000) == "a\nb?c" + "x" * 3995


def test_errors_in_words():
    error = OoctrainError("w\x1b", code="OOC-1", where="here", numbers="known: a, b", fix="f")
    full = OutOfDeviceMemory("w", granted_bytes=4, free_bytes=4, largest_bytes=3, arena="a\nb")
    known.check_rows("slips", "words", [
        *((line,) for found in (error, full) for line in str(found).splitlines()),
        *((word, did_you_mean(word, ("window", "windows", "belady", "lru")))
          for word in ("windo", "lr", "x", "beladi", "")),
        *((granted, free, largest, OutOfDeviceMemory(
            "w", granted_bytes=granted, free_bytes=free, largest_bytes=largest).fragmented)
          for granted in (3, 4) for free in (3, 4) for largest in (3, 4)),
    ])  # fmt: skip


# Sizes and times

SIZES = ("1", "0", "12b", "1.5KiB", "1kb", "0.3kB", "2 GiB ", " 3TiB", "1e3", "", "5%", "-1", "1.",
         "4611686018427387904", "4611686018427387903", "4096PiB", "9tb", "0.5", "100%", "100.5%",
         "0%", "25.5 %", "-5%", "%", 5, 0, -3, True, 2.0, None)  # fmt: skip


def test_sizes_and_times_in_words():
    numbers = [
        0, 1, 9.5, 10, 99.4, 999, 1023, 1024, 1025, 10239, 10240, 102399, 999499, 999500,
        1 << 20, (1 << 20) - 1, 1 << 30, 15 << 30, 1 << 40, 1 << 51, 1.5e6, 2.5e6,
    ]  # fmt: skip
    rows = [
        (n, format_bytes(n), format_bytes(-n), format_us(n), format_us(-n), format_rate(n / 1e3),
         format_rate(n / 100), format_clock(n / 7), format_percent(n / 3e3, 1),
         format_percent(n / 9))
        for n in numbers
    ]  # fmt: skip
    for parse in (parse_bytes, parse_budget):
        rows += [
            (repr(text), least, came(lambda t=text, n=least, p=parse: p(t, least_bytes=n)))
            for text in SIZES
            for least in (0, 1, 6)
        ]
    for rate in (1, 1e-3, 0.9e-3, 0, -1, float("inf"), float("nan"), True, "5", 1e30):
        rows += [(repr(rate), came(lambda rate=rate: rate_of(rate, "link")))]
    rows += [(size, [Granule(size).granted(n) for n in (0, 1, 7, 8, 9, 64)]) for size in (1, 8, 12)]
    rows += [
        (repr(size), came(lambda s=size: Granule(s, True, 3))) for size in ("4KiB", 0, -1, None)
    ]
    rows += [
        (repr(size), came(lambda s=size: Granule(4, True, s))) for size in ("4KiB", 0, -1, None)
    ]
    assert Granule(1, True, 0) == BYTES
    known.check_rows("slips", "sizes", rows)


def test_the_books_of_an_allocator_come_with_an_answer_that_has_no_value(tmp_path):
    """Over a memory that is here: sizes go there, and what the allocator calls comes back."""
    (tmp_path / "mine.py").write_text("from ooctrain.alloc.best_fit import BestFit as Mine\n")
    memory, asked = DryMemory(1 << 16), []

    class Line:
        def send(self, message):
            asked.append((message["id"], message["call"]))
            self.reply = {"value": getattr(memory, message["call"])(*message["values"])}

        def receive(self):
            return self.reply

    shelf = Shelf(Line(), f"{tmp_path / 'mine.py'}:Mine")

    def do(method, *values, **more):
        return shelf({"ask": "do", "number": 3, "id": method, "method": method,
                      "values": values, **more})  # fmt: skip

    made = shelf({"ask": "make", "id": "m", "number": 3, "memory": {"size_bytes": 1 << 16},
                  "methods": ["allocate"]})  # fmt: skip
    assert (made["name"], made["granule"], made["foresees"]) == ("best-fit", [512, False, 0], False)
    first, second = (do("allocate", size, "x")["value"] for size in (100, 7000))
    assert [first["number"], second["number"]] == [0, 1]
    freed = do("free", block=0, events=[])
    assert set(freed) == {"value", "block"}
    for method in ("check", "snapshot"):
        assert do(method)["books"] == do("stats")["value"]
    assert do("close")["value"] == [1]
    assert ("m", "linear") in asked
    assert shelf({"ask": "name"}) == {"name": "best-fit"}
    shelf({"ask": "name", "forget": [3]})
    with pytest.raises(KeyError):
        do("stats")


# Laws as tests of one's own

ADAPTERS = '''
"""Parts that break what they promise, and an arena's law that stops right arenas."""
from ooctrain.alloc.bump import Bump
from ooctrain.sched.planners.registry import get_planner
from ooctrain.rewrite import apply_rewrites


class Slow:
    name = "liar"

    def plan(self, question):
        from dataclasses import replace
        plan = get_planner("belady").plan(question)
        return replace(plan, peak_bytes=plan.peak_bytes + 1)


class Bands:
    name = "b"

    def rows(self, layers, cuts):
        return []


class Law:
    name = "l"

    def check(self, arena, rng):
        raise AssertionError("always")


class Overlaps(Bump):
    def check(self):
        raise AssertionError("never right")


def split():
    return lambda model, *args, **more: model


def rewrite():
    return lambda trace: trace
'''


@pytest.mark.slow
def test_the_laws_of_parts_that_break_them(tmp_path):
    (tmp_path / "adapters.py").write_text(ADAPTERS)
    root = str(Path(oc.__file__).parents[1])
    laws = ["planner", "allocator", "bands", "law", "split", "rewrite"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "ooctrain.laws.plugin", "-p", "no:cacheprovider",
         *("--planner", "adapters.py:Slow", "--bands", "adapters.py:Bands"),
         *("--allocator", "adapters.py:Overlaps"),
         *("--law", "adapters.py:Law", "-q", "-rA", "--law-examples", "1"),
         "--law-seed", "5", "--law-briefly", "--tb=short",
         "--pyargs", *(f"ooctrain.laws.test_{law}" for law in laws)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    outcomes = sorted(
        f"{line.split('::')[-1].split(' - ')[0]} {line.split()[0]}"
        for line in lines
        if line.startswith(("PASSED ", "FAILED ", "ERROR "))
    )
    repeats = sorted({" ".join(line.split()) for line in lines if "repeat: pytest" in line})
    skipped = [numbers_in([line]) for line in lines if line.startswith("SKIPPED")]
    known.check_rows("slips", "laws", [
        *((line,) for line in outcomes), *((line,) for line in repeats), (len(skipped),),
    ])  # fmt: skip
