"""Many wrong attempts at each puzzle, and what each is worth.

What a student is shown of an answer that is nearly right is all that a puzzle teaches. So answers
are broken in every place: a line of a list is left out or moved, a number of a function is one too
large for some of its arguments, a page is forgotten. `support/known.py` says why the verdicts are
written down; the words of a message are counted, and its numbers compared.
"""

from __future__ import annotations

import contextlib
import io
import random
from types import SimpleNamespace

import numpy as np
import pytest
from support import known
from support.known_numbers import numbers_in, shapes_of
from support.puzzle_solutions import SOLUTIONS, WRONG

import ooctrain as oc
from ooctrain.course.puzzles import tape_puzzles
from ooctrain.course.puzzles.attempt import Attempt, Score, Wrong, reason_of, wanted
from ooctrain.course.puzzles.kernel_puzzles import accesses_picture, convolved, count, tasks
from ooctrain.course.puzzles.law_puzzles import ARENAS, FRONTIERS, NORMS, norm_backward
from ooctrain.course.puzzles.tape_puzzles import NamedTape, needed, slopes
from ooctrain.course.puzzles.tile_puzzles import (
    frontiers_of,
    rows_out,
    rows_read,
    true_frontier,
    true_kept,
    true_readers,
)
from ooctrain.errors import ConfigError
from ooctrain.step.rows import Window


def worth(name, answer):
    """A row: both numbers, the numbers and words of what is wrong, the hint, the picture."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        attempt = oc.puzzles.PUZZLES[name].check(answer)
    wrong = attempt.wrong
    raised = wrong.startswith("it raises")  # Python's words
    numbers = [
        " ".join(n for row in numbers_in(text.splitlines()) for n in row)[:60]
        for text in ("" if raised else wrong, attempt.hint)
    ]
    lengths = len(wrong.split()), len(attempt.hint.split()), len(said.getvalue().split())
    return (
        *("" if n.yours is None else f"{n.yours:.6g}" for n in attempt.numbers),
        attempt.solved, *numbers, *(["raised"] if raised else lengths),
        known.digest(shapes_of(attempt.picture)),
    )  # fmt: skip


# Lists


def broken_lists(text, rng, most):
    """A list with an instruction left out, said twice, or moved."""
    parts = [part.strip() for line in text.strip().splitlines() for part in line.split(";")]
    for _ in range(most):
        new, place = list(parts), rng.randrange(len(parts))
        part = new.pop(place)
        deed = rng.randrange(3)
        if deed:
            new.insert(rng.randrange(len(new)) if deed == 1 else place, part)
        if deed == 2:
            new.insert(place, part)
        yield "\n".join(new)


@pytest.mark.parametrize("name", ["a1", "a2", "a3", "a4", "a5", "a6"])
def test_lists_that_are_nearly_right(name):
    rng = random.Random(name)
    answers = [*broken_lists(SOLUTIONS[name], rng, 9), "", "run", 3, None]
    known.check_rows("attempts", f"lists {name}", [worth(name, answer) for answer in answers])
    assert str(oc.puzzles.PUZZLES[name]).startswith(f"{name} ")
    given = str(oc.puzzles.PUZZLES[name]).splitlines()
    known.check_rows("attempts", f"given {name}", [
        (len(line.split()), " ".join(n for row in numbers_in([line]) for n in row))
        for line in given
    ])  # fmt: skip


# Functions of numbers


def off(function, by, when):
    """The function, and another number for some of its arguments."""

    def other(*arguments):
        found = function(*arguments)
        if not when(*arguments):
            return found
        return tuple(f + b for f, b in zip(found, by, strict=True)) if isinstance(by, tuple) else (
            found + by
        )  # fmt: skip

    return other


WHENS = (
    lambda *a: True, lambda *a: a[0] == 0, lambda *a: a[0] > 9, lambda *a: sum(a) % 7 == 3,
    lambda *a: a[0] == a[-1],
)  # fmt: skip


@pytest.mark.parametrize(("name", "steps"), [
    ("c1", (1, -1, 3)), ("c2", ((1, 0), (-1, 0), (0, 1), (0, -1), (3, -3))),
    ("c3", ((1, 0), (-1, 0), (0, 1), (0, -1))),
])  # fmt: skip
def test_rows_that_are_nearly_right(name, steps):
    right = SOLUTIONS[name]
    answers = [off(right, by, when) for by in steps for when in WHENS]
    odd = [lambda *a: None, lambda *a: True, lambda *a: (0,), lambda *a: (1.0, 2), lambda: 0, None]
    known.check_rows("attempts", name, [worth(name, answer) for answer in (*answers, *odd)])


def test_rows_by_definition():
    rows = []
    for kernel, stride, pad in ((1, 1, 0), (3, 1, 1), (3, 2, 1), (4, 3, 2), (7, 2, 3)):
        window = Window(kernel, stride, 1, pad, pad)
        rows.append((
            kernel, stride, pad, [rows_out(window, n) for n in (7, 12)],
            [(r.start, r.stop) for r in (rows_read(window, n, 12) for n in range(4))],
            [true_frontier(window, n, 12) for n in range(13)],
            [true_kept(window, n, true_frontier(window, n, 12), 12) for n in range(1, 12)],
            [true_readers(window, n, 12) for n in range(12)],
        ))  # fmt: skip
    known.check_rows("attempts", "rows", rows)
    known.check_rows("attempts", "frontiers", frontiers_of(true_frontier))


CARRY, FINISH = SOLUTIONS["c4"]


@pytest.mark.parametrize(("number", "answer"), [*enumerate([
    (lambda state, rows: rows if state is None else np.concatenate([state, rows]),
     lambda rows, n: (rows.mean(0), rows.var(0))),
    (CARRY, lambda state, n: FINISH(state, n)[::-1]),
    (CARRY, lambda state, n: FINISH(state, n + 1)),
    (CARRY, lambda state, n: [*FINISH(state, n)]), (CARRY, lambda state, n: FINISH(state, n)[:1]),
    (CARRY, lambda state, n: tuple(part[:3] for part in FINISH(state, n))), (CARRY, None), CARRY,
    (lambda state, rows: {"a": rows[0], "b": [1.0, (2.0, None)]},
     lambda state, n: (state["a"],) * 2),
])])  # fmt: skip
def test_statistics_that_are_nearly_carried(number, answer):
    known.check_rows("attempts", f"carried {number}", [worth("c4", answer)])


# Allocators

CHOOSE, JOIN, PAGES, PACK = (SOLUTIONS[name] for name in ("b1", "b2", "b3", "b4"))


def last_that_fits(holes, size):
    return max((n for n, hole in enumerate(holes) if hole[1] >= size), default=None)


def largest(holes, size):
    fitting = [(hole[1], n) for n, hole in enumerate(holes) if hole[1] >= size]
    return max(fitting)[1] if fitting else None


def changed(function, change):
    """The function, and what a change makes of its result."""
    return lambda *arguments: change(function(*arguments))


def test_holes_that_are_nearly_right():
    chosen = [
        last_that_fits, largest, lambda holes, size: len(holes), lambda holes, size: -1,
        lambda holes, size: None, lambda holes, size: "first", lambda holes: 0,
    ]  # fmt: skip
    joined = [
        changed(JOIN, change) for change in (
            lambda holes: holes[::-1], lambda holes: holes[1:], lambda holes: holes[:-1],
            lambda holes: [*holes, (1, 2)], lambda holes: [(at + 1, n) for at, n in holes],
            lambda holes: [list(hole) for hole in holes], tuple, lambda holes: [1],
        )
    ]  # fmt: skip
    rows = [worth("b1", answer) for answer in chosen] + [worth("b2", answer) for answer in joined]
    known.check_rows("attempts", "holes", rows)


def test_pages_that_are_nearly_right():
    map_pages, unmap_pages, translate = PAGES

    asked = []

    def map_and_note(table, free, first, pages):
        asked.append((first, pages))
        map_pages(table, free, first, pages)

    def map_highest(table, free, first, pages):
        free.sort(reverse=True)
        map_pages(table, free, first, pages)

    def map_fewer(table, free, first, pages):
        map_pages(table, free, first, pages - (pages > 5))

    def keep_in_table(table, free, first, pages):
        before = dict(table)
        unmap_pages(table, free, first, pages)
        table.update({page: frame for page, frame in before.items() if page == first + 3})

    def free_twice(table, free, first, pages):
        unmap_pages(table, free, first, pages)
        free.append(free[0])

    def lose_one(table, free, first, pages):
        unmap_pages(table, free, first, pages)
        if first == 14:
            free.pop()

    def beyond(table, free, first, pages):
        unmap_pages(table, free, first, pages)
        free.append(24)

    answers = [
        (map_highest, unmap_pages, translate), (map_fewer, unmap_pages, translate),
        (map_pages, keep_in_table, translate), (map_pages, free_twice, translate),
        (map_pages, lose_one, translate), (map_pages, beyond, translate),
        (map_pages, unmap_pages, lambda table, address: translate(table, address) + address // 300),
        (map_pages, unmap_pages, lambda table, address: float(translate(table, address))),
        (map_pages, unmap_pages), map_pages,
    ]  # fmt: skip
    known.check_rows("attempts", "pages", [worth("b3", answer) for answer in answers])
    assert worth("b3", (map_and_note, unmap_pages, translate))[2]
    assert asked[0][0] == 0
    assert [first for first, _ in asked[1:]] == [first + pages for first, pages in asked[:-1]]


def test_packings_that_are_nearly_right():
    def in_a_row(blocks):
        ends, at = [], 0
        for size, _, _ in blocks:
            ends.append(at)
            at += size
        return ends

    answers = [
        in_a_row, changed(PACK, lambda offsets: [at + 1 for at in offsets]),
        changed(PACK, lambda offsets: offsets[:-1]),
        changed(PACK, lambda offsets: [-1, *offsets[1:]]),
        changed(PACK, tuple), changed(PACK, lambda offsets: [float(at) for at in offsets]),
        lambda blocks: None, lambda blocks: [at + at // 9 for at in in_a_row(blocks)],
    ]  # fmt: skip
    known.check_rows("attempts", "packings", [worth("b4", answer) for answer in answers])


# Kernels, without the emulator


@pytest.mark.slow
def test_what_kernels_ask_of_memory():
    rows, pictures = [], []
    kernels = [*SOLUTIONS.items(), *((name, answer) for name, answer, _ in WRONG)]
    for name, kernel in kernels:
        if name[0] != "d":
            continue
        task = tasks()[name]
        inputs = {key: value.reshape(-1).copy() for key, value in task.inputs().items()}
        right = task.result(*task.inputs().values())
        out = np.zeros(right.size, np.float32)
        # A race has another result each time, and asks the same of memory.
        try:
            found = count(kernel.function, task.blocks, task.threads, {**inputs, "y": out})
        except Wrong as stray:
            rows.append((name, len(str(stray).split()), len(numbers_in([str(stray)])[0])))
            continue
        same = (out == right.reshape(-1)).all() if name != "d5" else ""
        measured = [
            (what, target, bound, of(found, SimpleNamespace()))
            for what, of, target, bound in task.measured
            if what != "shared words"
        ]
        rows.append((name, found.sectors, found.conflicts, found.loads, found.busiest,
                     known.digest(found.accesses), same, *measured))  # fmt: skip
        pictures.append((name, known.digest(shapes_of(accesses_picture(name, found)))))
    known.check_rows("attempts", "kernels", rows)
    known.check_rows("attempts", "accesses", [
        *pictures, ("none", known.digest(shapes_of(accesses_picture("none", None)))),
    ])  # fmt: skip


def test_a_convolution_by_its_definition():
    x, w = tasks()["d6"].inputs().values()
    found = convolved(x, w)
    assert x.shape == (10, 10, 4)
    assert (x[0] == 0).all()
    assert (x[:, -1] == 0).all()
    for i, j, k in ((0, 0, 0), (7, 3, 15), (2, 7, 4)):
        assert found[i, j, k] == (x[i : i + 3, j : j + 3] * w[k]).sum()


# Gradients


def test_slopes_and_what_must_wait():
    rows = []
    for name, task in tape_puzzles.TASKS.items():
        inputs = task.inputs(0)
        found = slopes(task, inputs)
        assert {key: value.shape for key, value in found.items()} == task.shapes
        rows.append((name, *needed(task), *(f"{abs(v).sum():.5g}" for v in inputs.values()),
                     f"{abs(task.cotangent()).sum():.5g}",
                     *(f"{abs(v).sum():.4g}" for v in found.values())))  # fmt: skip
    a, b = tape_puzzles.TASKS["e1"].inputs(0).values()
    dy = tape_puzzles.TASKS["e1"].cotangent()
    found = slopes(tape_puzzles.TASKS["e1"], {"a": a, "b": b})
    np.testing.assert_allclose(found["a"], b * dy, atol=1e-7)
    known.check_rows("attempts", "slopes", rows)


def test_a_tape_names_its_lines_and_keeps_what_they_give():
    tape = NamedTape()
    assert tape.new("x", np.arange(3.0)) == "x"
    names = [tape.run(name, "x", "x") for name in ("add", "sub", "mul", "matmul")]
    assert names == ["v0", "v1", "v2", "v3"]
    assert [tape.values[name].tolist() for name in names] == [[0, 2, 4], [0, 0, 0], [0, 1, 4], 5]
    assert tape.lines[2] == ("mul", ("x", "x"), "v2")


def test_gradients_that_are_nearly_right():
    def through(change):
        return lambda tape, a, b, y, dy: change(tape, SOLUTIONS["e1"](tape, a, b, y, dy), y, dy)

    answers = [
        through(change) for change in (
            lambda tape, found, y, dy: found[::-1], lambda tape, found, y, dy: [*found],
            lambda tape, found, y, dy: (found[0], "none"), lambda tape, found, y, dy: found[:1],
            lambda tape, found, y, dy: (tape.new("n", np.full((3, 2), np.nan)), found[1]),
            lambda tape, found, y, dy: (tape.new("n", np.ones(6)), found[1]),
            lambda tape, found, y, dy: (tape.run("add", found[0], y), found[1]),
            lambda tape, found, y, dy: (tape.run("mul", dy, dy), found[1]),
            lambda tape, found, y, dy: (found[0], tape.new("n", tape.values[found[1]] + 1e-4)),
            lambda tape, found, y, dy: (found[0], tape.new("n", tape.values[found[1]] + 1e-12)),
        )
    ]  # fmt: skip
    answers += [None, 5, ({"mul": lambda a, b: a}, SOLUTIONS["e1"]), lambda tape: None]
    known.check_rows("attempts", "gradients", [worth("e1", answer) for answer in answers])


# Laws


def test_the_zoos_that_laws_are_tried_on():
    rows = []
    for args in (*ARENAS.right.values(), *ARENAS.bugs.values()):
        arena, said, live, rng = args[0](), [], [], random.Random(5)
        for _ in range(120):
            if live and rng.random() < 0.5:
                arena.free(live.pop(rng.randrange(len(live))))
            else:
                said.append(arena.allocate(rng.choice([1, 2, 3, 5, 8, 13, 30])))
                live += [said[-1]] if said[-1] is not None and said[-1] not in live else []
        rows.append((arena.size, known.digest(said)))
    for args in (*FRONTIERS.right.values(), *FRONTIERS.bugs.values()):
        asked = [(n, *shape) for shape in ((3, 1, 1), (5, 1, 2), (4, 2, 0)) for n in (0, 3, 8, 9)]
        rows += [[args[0](*numbers, 9) for numbers in asked]]
    x, dy = (np.random.default_rng(n).standard_normal((4, 3)) for n in (1, 2))
    for args in (*NORMS.right.values(), *NORMS.bugs.values()):
        rows += [[f"{value:.5g}" for value in args[1](x, dy)[0]]]
    known.check_rows("attempts", "zoos", rows)
    np.testing.assert_allclose(norm_backward(x, dy).sum(0), 0, atol=1e-12)


def law_for(which):
    """A law that stops one thing alone, the n-th that it sees; of 0 nothing, of None all."""
    seen = []

    def law(*arguments):
        seen.append(arguments)
        if which is None or len(seen) == which:
            raise AssertionError("stopped")

    return law


def test_laws_that_are_nearly_right():
    rows = [
        worth(name, law_for(which)) for name in ("f1", "f2", "f3") for which in (0, 1, 2, 9, None)
    ]
    known.check_rows("attempts", "laws", [*rows, worth("f1", None), worth("f3", lambda: 0)])


# Attempts by themselves


def test_an_attempt_in_words():
    near = Score("a", 10.0 + 1e-9, 10.0, 3.0)
    assert near.reached
    assert not Score("a", 10.1, 10.0).reached
    assert not Score("a", None, 10.0).reached
    rows = []
    for wrong in ("", "no"):
        for hint in ("", "so"):
            for second in (Score("b", 1.0, 1.0), Score("b", 2.5, 1.0, 0.5), Score("b", None, 1.0)):
                said = str(Attempt("t", (near, second), wrong, hint, "<svg/>")).splitlines()
                rows.append([(len(line), len(line.split())) for line in said])
    known.check_rows("attempts", "words", rows)
    for right in (3, True, "x"):
        if right == 3 and right is not True:
            assert wanted(right, int, "w") == 3
        else:
            with pytest.raises(Wrong):
                wanted(right, int, "w")
    assert reason_of(Wrong("why")) == "why"
    for text in ("\nFailed in a place\nwhy\nmore", "why"):
        assert reason_of(ValueError(text)) == "it raises ValueError: why"
    assert reason_of(NotImplementedError("b")) == "nothing is there yet: b"
    assert reason_of(ConfigError("c", fix="d")) == "[OOC-100] c\n    likely fix: d"
    with pytest.raises(AttributeError):
        oc.puzzles.z9  # noqa: B018
    assert {"a1", "f3", "copy", "PUZZLES"} <= {*dir(oc.puzzles)}
