"""The emulator without a compiler: its rules of shared memory as Python, its texts as trees.

Compiled kernels meet few of the faults that the emulator is there to find, and a rule that is too
mild lets every right kernel pass. Here threads access words in random orders, with barriers between
them, and the rules answer as a definition does that remembers every access; lanes exchange values
as the manual says; blocks run over generators written by hand; and of a few kernels the text that
is made of them is known. `cuda/test_emulator.py` runs the compiled ones.
"""

from __future__ import annotations

import ast
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
from numba import int64, typeof
from numba.core.datamodel import default_manager
from support import known

from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cuda import every_kernel
from ooctrain.layers.kernels.cuda.runtime.shim import (
    Kernel,
    cuda,
    device,
    float32,
    int32,
    kernel,
    uint32,
)
from ooctrain.testing import emulator_block as block
from ooctrain.testing.emulator import (
    BARRIER,
    EXCHANGE,
    KINDS,
    WARP_BARRIER,
    Emulated,
    EmulatedKernel,
    EmulationError,
    flat,
    translate,
)

WORDS, THREADS = 6, 96


@pytest.fixture(autouse=True)
def without_the_compiler(monkeypatch):
    """What Numba would compile is called as Python."""
    for name, function in list(vars(block).items()):
        monkeypatch.setattr(block, name, getattr(function, "py_func", function))
    monkeypatch.setattr(block, "same_type", lambda like, value: type(like)(value))


class View(SimpleNamespace):
    """A thread's view of a shared array, indexed as in a kernel."""

    def __getitem__(self, index):
        return vars(block)["_getitem"](block.SharedType("words"), int)(self, index)

    def __setitem__(self, index, value):
        vars(block)["_setitem"](block.SharedType("words"), int, float)(self, index, value)


def views(threads=THREADS, size=WORDS, number=3):
    """(a view for each thread, the clock of their block, their array)."""
    shared = block.SharedArray(size, "float32", threads)
    shared.poison()
    clock = np.zeros(1 + -(-threads // 32), np.int64)
    names = "words", "log", "places", "values", "counts"
    arrays = dict(zip(names, shared.arrays, strict=True))
    made = [View(**arrays, clock=clock, number=number, thread=t) for t in range(threads)]
    return made, clock, shared


class Remembering:
    """The definition: every access since the last barrier of the block, with the barriers of warps
    that came after it."""

    def __init__(self):
        self.accesses, self.warps = [], {}

    def barrier(self):
        self.accesses.clear()

    def warp_barrier(self, warp):
        self.warps[warp] = self.warps.get(warp, 0) + 1

    def races(self, thread, word, writes):
        """Whether an access has no order to one before it; it is remembered."""
        warp = thread // 32
        found = any(
            at == word and other != thread and (writes or wrote)
            and not (other // 32 == warp and after < self.warps.get(warp, 0))
            for other, at, wrote, after in self.accesses
        )  # fmt: skip
        self.accesses.append((thread, word, writes, self.warps.get(warp, 0)))
        return found


@pytest.mark.parametrize("seed", range(12))
def test_two_accesses_without_an_order_are_a_fault_and_no_others_are(seed):
    rng, faults, fine = random.Random(seed), 0, 0
    for _ in range(40):
        threads, clock, _ = views()
        truth = Remembering()
        few = [rng.randrange(THREADS) for _ in range(3)] + [0, 1, 33]
        for _ in range(30):
            kind = rng.choice("rrrwwbB")
            if kind == "B":
                clock[0] += 1
                truth.barrier()
            elif kind == "b":
                warp = rng.randrange(3)
                clock[1 + warp] += 1
                truth.warp_barrier(warp)
            else:
                thread, word = rng.choice(few), rng.randrange(3)
                wrong = truth.races(thread, word, kind == "w")
                try:
                    if kind == "w":
                        threads[thread][word] = 1.0
                    else:
                        threads[thread][word]
                except block.Fault as fault:
                    found = fault.args[1:4]
                else:
                    found = None
                assert found == ((3, word, thread) if wrong else None), (seed, kind)
                if wrong:
                    faults += 1
                    break
                fine += 1
    assert faults > 10
    assert fine > 100


def test_a_fault_names_the_other_thread_or_several():
    def other(*accesses):
        threads, clock, _ = views()
        try:
            for thread, kind in accesses:
                if kind == "w":
                    threads[thread][2] = 1.0
                elif kind == "b":
                    clock[1 + thread] += 1
                else:
                    threads[thread][2]
        except block.Fault as fault:
            return fault.args[1:]
        return None

    assert other((5, "w"), (7, "r")) == (3, 2, 7, 5)
    assert other((5, "w"), (40, "w")) == (3, 2, 40, 5)
    assert other((5, "r"), (7, "w")) == (3, 2, 7, 5)
    assert other((5, "r"), (7, "r"), (40, "w")) == (3, 2, 40, -2)
    assert other((40, "r"), (41, "r"), (1, "w")) == (3, 2, 1, -3)
    assert other((5, "r"), (40, "r"), (7, "w")) == (3, 2, 7, -1)
    assert other((5, "r"), (7, "r"), (9, "r"), (0, "b"), (7, "w")) is None
    assert other((5, "r"), (40, "r"), (0, "b"), (7, "w")) == (3, 2, 7, -1)
    assert other((5, "w"), (0, "b"), (7, "w"), (7, "r"), (7, "w")) is None
    assert other((5, "r"), (0, "b"), (7, "r"), (7, "w")) is None  # each lane adds to its own word
    assert other((5, "r"), (0, "b"), (7, "r"), (40, "w")) == (3, 2, 40, 7)
    assert other((5, "w"), (1, "b"), (7, "r")) == (3, 2, 7, 5)


@pytest.mark.parametrize(("index", "inside"), [(-1, False), (0, True), (5, True), (6, False)])
def test_an_index_lies_within_its_array(index, inside):
    threads, _, _ = views()
    for access in (lambda: threads[4][index], lambda: threads[4].__setitem__(index, 1.0)):
        if inside:
            access()
            continue
        with pytest.raises(block.Fault) as caught:
            access()
        assert caught.value.args[1:] == (3, index, 4, -1)


def test_nothing_but_a_shared_array_is_watched():
    assert vars(block)["_getitem"](int, int) is None
    assert vars(block)["_setitem"](int, int, int) is None
    kind = vars(block)["_same_type"](np.float32, np.float64)
    assert callable(kind)
    assert block.SharedType("x").words == "x"
    assert block.SharedType("x").name == "EmulatedShared(x)"


def test_compiled_code_has_the_arrays_of_a_view_and_two_numbers():
    """And each by its name: they are told apart by their order alone."""
    _, clock, shared = views()
    names = "words", "log", "places", "values", "counts"
    kinds = [typeof(array) for array in (*shared.arrays, clock)]
    model = default_manager[block.SharedType(kinds[0])]
    expected = [*zip((*names, "clock"), kinds, strict=True), ("number", int64), ("thread", int64)]
    assert [(name, model.get_type(name)) for name, _ in expected] == expected
    assert model.field_count == len(expected)


def test_a_new_array_holds_nothing_that_can_be_used():
    threads, clock, shared = views()
    assert np.isnan(shared.words).all()
    whole = block.SharedArray(3, "int32", 2)
    whole.poison()
    assert (whole.words == np.iinfo("int32").max).all()
    assert whole.log.shape == (3, 7)
    assert [a.shape for a in whole.arrays] == [(3,), (3, 7), (2, 32, 2), (2, 32, 4), (2, 3)]
    block.copy_later(threads[1], 0, np.ones(9, np.float32), 4, True)
    shared.poison()
    clock[0] += 1
    threads[2][1] = 1.0  # no copy is under way any more
    assert not shared.arrays[4].any()
    found = block.local_array(3, np.float32)
    assert np.isnan(found).all()
    assert (block.local_array(2, np.int32) == -1).all()


# Copies that arrive later


def test_a_copy_arrives_when_its_thread_has_waited_for_its_group():
    threads, clock, shared = views(size=24)
    source = np.arange(40, dtype=np.float32)
    one, two = threads[1], threads[2]
    block.copy_later(one, 4, source, 8, True)
    block.commit(one)
    block.copy_later(one, 8, source, 20, True)
    block.commit(one)
    block.copy_later(two, 12, source, 3, False)  # what lies outside is zero, wherever it lies
    for index in (4, 7, 8, 11, 12, 15):
        with pytest.raises(block.Fault) as caught:
            one[index]
        assert caught.value.args[3:] == (1, 2 if index > 11 else 1)
    with pytest.raises(block.Fault) as caught:
        two[5] = 1.0
    assert caught.value.args[1:] == (3, 5, 2, 1)
    block.wait_but_one(one)
    assert [one[i] for i in range(4, 8)] == [8, 9, 10, 11]
    with pytest.raises(block.Fault):
        one[8]
    block.wait_all(one)
    assert [one[i] for i in range(8, 12)] == [20, 21, 22, 23]
    block.wait_all(one)
    with pytest.raises(block.Fault):
        one[12]
    block.wait_all(two)  # of a group that is still open
    with pytest.raises(block.Fault):
        two[12]
    block.commit(two)
    block.wait_but_one(two)
    with pytest.raises(block.Fault):
        two[12]
    block.wait_all(two)
    assert [two[i] for i in range(12, 16)] == [0, 0, 0, 0]
    with pytest.raises(block.Fault) as caught:
        threads[40][8]  # no barrier lies between them
    assert caught.value.args[1:] == (3, 8, 40, 1)
    clock[0] += 1
    assert threads[40][8] == 20
    assert shared.log[4:16, block.PENDING].sum() == 0


def test_a_word_that_two_copies_fill_is_not_there_before_both_are():
    threads, _, _ = views(size=8)
    one = threads[0]
    for place in (0, 4):
        block.copy_later(one, 0, np.arange(8, dtype=np.float32), place, True)
        block.commit(one)
    block.wait_but_one(one)
    with pytest.raises(block.Fault):
        one[0]
    block.wait_all(one)
    assert one[0] == 4


def test_copies_lie_at_multiples_of_four_words_and_are_few():
    threads, _, _ = views(size=400)
    one, source = threads[3], np.zeros(400, np.float32)
    for offset, place, valid, fine in (
        (2, 0, True, False), (4, 2, True, False), (4, 2, False, True), (8, 4, True, True),
    ):  # fmt: skip
        if fine:
            block.copy_later(one, offset, source, place, valid)
            continue
        with pytest.raises(block.Fault) as caught:
            block.copy_later(one, offset, source, place, valid)
        assert caught.value.args[1:] == (3, offset, 3, -1)
    for number in range(30):
        block.copy_later(one, 12 + 4 * number, source, 0, True)
    with pytest.raises(block.Fault) as caught:
        block.copy_later(one, 200, source, 0, True)
    assert caught.value.args[1:] == (3, 200, 3, -1)
    block.commit(one)
    block.wait_all(one)
    for number in range(32):  # the slots are used again
        block.copy_later(one, 200 + 4 * number, source + number, 0, True)
    block.commit(one)
    block.wait_all(one)
    assert [one[200 + 4 * number] for number in range(32)] == list(range(32))


# Exchanges


def exchanged(name, given, turn=1):
    """What each of 64 lanes gets, of what each of them gives."""
    table = np.full((2, 64, block.SLOTS), np.nan)
    for thread, own in enumerate(given):
        getattr(block, f"publish_{name}")(table, turn, thread, *own)
    assert np.isnan(table[1 - turn]).all()
    return [getattr(block, f"collect_{name}")(table, turn, t, *own) for t, own in enumerate(given)]


@pytest.mark.parametrize("by", [0, 1, 5, 31])
def test_lanes_read_the_lanes_that_the_manual_says(by):
    own = [100 + 3 * thread for thread in range(64)]
    given = [(value, by) for value in own]
    warp = [t // 32 * 32 for t in range(64)]
    lane = [t % 32 for t in range(64)]
    wanted = {
        "shfl": [own[w + by] for w in warp],
        "xor": [own[w + (n ^ by)] for w, n in zip(warp, lane, strict=True)],
        "down": [
            own[w + n + by if n + by < 32 else w + n] for w, n in zip(warp, lane, strict=True)
        ],
        "up": [own[w + n - by if n >= by else w + n] for w, n in zip(warp, lane, strict=True)],
    }
    for name, values in wanted.items():
        assert exchanged(name, given) == values, name
    assert exchanged("shfl", [(value, by + 32) for value in own], turn=0) == wanted["shfl"]
    assert [type(v) for v in exchanged("xor", [(np.float32(v), by) for v in own])] == [
        np.float32
    ] * 64


def test_matrices_are_distributed_as_the_manual_says():
    """Lane l gets word l % 4 of row l // 4 of each of four matrices, whose rows the lanes name."""
    rng = random.Random(1)
    tile = np.arange(4000)
    rows = [4 * rng.randrange(900) for _ in range(64)]
    found = exchanged("ldmatrix", [(tile, row) for row in rows])
    for thread, words in enumerate(found):
        warp, lane = thread // 32 * 32, thread % 32
        wanted = tuple(rows[warp + 8 * matrix + lane // 4] + lane % 4 for matrix in range(4))
        assert words == wanted
    with pytest.raises(ValueError, match="ldmatrix"):
        exchanged("ldmatrix", [(tile, 6)] * 64)


def test_products_are_those_of_the_matrices():
    rng = np.random.default_rng(2)
    a, b = rng.integers(-4, 5, (2, 16, 8)), rng.integers(-4, 5, (2, 8, 8))
    c = rng.integers(-4, 5, (2, 16, 8))
    given = []
    for thread in range(64):
        warp, group, inside = thread // 32, thread % 32 // 4, thread % 4
        of_a = [a[warp, group + 8 * (i % 2), inside + 4 * (i // 2)] for i in range(4)]
        of_b = [b[warp, inside + 4 * i, group] for i in range(2)]
        of_c = [c[warp, group + 8 * (i // 2), 2 * inside + i % 2] for i in range(4)]
        given.append((of_a, of_b, of_c))
    found = exchanged("mma", given)
    for thread, four in enumerate(found):
        warp, group, inside = thread // 32, thread % 32 // 4, thread % 4
        whole = c[warp] + a[warp] @ b[warp]
        wanted = [whole[group + 8 * (i // 2), 2 * inside + i % 2] for i in range(4)]
        assert list(four) == wanted


# Launches


def never(x):
    """Stands for a kernel's Python function."""


def by_hand(entry, shared=(), threads=64):
    """A kernel whose threads are generators written here."""
    made = Kernel(never, "void(f4[::1])", threads)
    return Emulated(made, EmulatedKernel("", True, tuple(shared)), entry)


def warp_barrier(site):
    return site * KINDS + WARP_BARRIER


def barrier(site):
    return site * KINDS + BARRIER


def test_blocks_and_threads_run_in_order_or_the_other_way_round():
    seen = []

    def entry(thread, x, y, z, gx, gy, gz, threads, table, clock, *rest):
        seen.append((x, y, z, thread, int(clock[0])))
        assert (gx, gy, gz, threads, rest) == (2, 3, 2, 40, ("own",))
        assert table.shape == (2, 40, block.SLOTS)
        yield barrier(1)
        seen.append((x, y, z, thread, int(clock[0])))
        yield warp_barrier(2)
        yield EXCHANGE
        yield barrier(0)

    for order in (1, -1):
        seen.clear()
        by_hand(entry, threads=40).run((2, 3, 2), ["own"], order)
        blocks = [(x, y, z) for z in range(2) for y in range(3) for x in range(2)][::order]
        wanted = []
        for number, place in enumerate(blocks):
            for late in (0, 1):
                warps = (range(32), range(32, 40))[::order]
                wanted += [
                    (*place, t, 2 * number + number + late) for w in warps for t in w[::order]
                ]
        assert [one[:4] for one in seen] == [one[:4] for one in wanted]
        times = [one[4] for one in seen]
        assert times == sorted(times)
        assert len(set(times)) == 2 * len(blocks)


def test_warps_have_clocks_of_their_own():
    seen = {}

    def entry(thread, x, y, z, gx, gy, gz, threads, table, clock, *rest):
        for _ in range(1 + thread // 32):
            yield warp_barrier(3)
        yield barrier(0)
        seen[thread] = clock.tolist()
        yield barrier(1)

    by_hand(entry, threads=96).run(1, [])
    assert seen[0] == seen[95] == [1, 1, 2, 3]


def test_threads_that_wait_at_different_places_are_an_error():
    def of_lanes(thread, *rest):
        yield warp_barrier(1 + thread % 2)

    def of_warps(thread, *rest):
        yield barrier(1 + thread // 32)

    def of_one_that_ends(thread, *rest):
        if thread < 32:
            yield barrier(1)

    for entry, where in ((of_lanes, ""), (of_warps, "(1, 0, 0)"), (of_one_that_ends, "(1, 0, 0)")):
        with pytest.raises(EmulationError) as caught:
            by_hand(entry).run(2, [], -1)
        assert where in caught.value.where
        assert bool(where) == bool(caught.value.where)
    with pytest.raises(EmulationError, match=r"warp 1 wait|warp 0 wait"):
        by_hand(of_lanes).run(1, [])


def test_a_fault_is_explained_by_its_place():
    for other, shown in ((7, "and thread 7"), (-1, ""), (0, "and thread 0"), (-3, "")):

        def entry(thread, *rest, other=other):
            yield barrier(0)
            if thread == 33:
                raise block.Fault("race: x", 1, 4, 33, other)
            yield barrier(1)

        with pytest.raises(EmulationError) as caught:
            by_hand(entry, [("a", 9, "float32"), ("b", 5, "int32")]).run((1, 4), [])
        assert caught.value.where == "block (0, 0, 0)"
        assert caught.value.numbers == f"b[4] of 5 words, thread 33 {shown}".strip()


def test_shared_memory_is_new_in_each_block():
    seen = []

    def entry(thread, x, y, z, gx, gy, gz, threads, table, clock, *rest):
        words, log = rest[0], rest[1]
        assert len(rest) == 10
        if thread == 0:
            seen.append(float(words[0]))
            words[0], log[0, block.PENDING] = 5.0, 1
        yield barrier(0)

    by_hand(entry, [("a", 3, "float32"), ("b", 2, "int32")], 3).run(2, [])
    assert np.isnan(seen).all()
    assert len(seen) == 2


def test_without_waits_a_kernel_is_one_call():
    asked = []
    made = Kernel(never, "void(f4[::1])", 64)
    Emulated(made, EmulatedKernel("", False, ()), lambda *given: asked.append(given)).run(3, ["a"])
    Emulated(made, EmulatedKernel("", False, ()), lambda *given: asked.append(given)).run(
        (3, 2), ["a"], -1
    )
    assert asked == [(1, 3, 1, 1, 64, "a"), (-1, 3, 2, 1, 64, "a")]

    def breaks(*given):
        raise IndexError("index 9")

    with pytest.raises(EmulationError, match="index 9"):
        Emulated(made, EmulatedKernel("", False, ()), breaks).run(3, [])


def test_an_array_that_is_read_only_is_copied():
    array = np.arange(6.0).reshape(2, 3)
    assert np.shares_memory(flat(array), array)
    array.flags.writeable = False
    assert not np.shares_memory(flat(array), array)
    assert flat(array).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(EmulationError) as caught:
        flat(array.T)
    assert caught.value.numbers == "(3, 2)"


# Texts


def tree(node):
    """A syntax tree that is the same in all versions of Python."""
    if isinstance(node, ast.AST):
        named = [(name, tree(value)) for name, value in ast.iter_fields(node)]
        return type(node).__name__, [(n, v) for n, v in named if v not in (None, [])]
    return [tree(one) for one in node] if isinstance(node, list) else repr(node)


@device
def twice(value):
    return 2 * value


@device
def partners(out, value, distance):
    lane = twice(cuda.shfl_xor_sync(0xFFFFFFFF, value, distance))
    out[cuda.threadIdx.x] += lane


ZERO, SIZES, HALF, COUNT = np.float32(0), (3, 4), 0.5, 7


def scaled_by(factor):
    """A device function with a number of its own."""

    @device
    def scaled(value):
        return value * factor

    return scaled


double, triple = scaled_by(2), scaled_by(3)


@kernel("void(f4[::1])", threads=64)
def of_every_global(out):
    i = uint32(cuda.grid(1))
    out[i] = max(ZERO, float32(math.sqrt(HALF))) + SIZES[0] + COUNT
    out[i + 1] = double(out[i]) + triple(out[i]) + double(1)


@kernel("void(i4[::1])", threads=64)
def of_every_kind(out):
    lane = int32(cuda.laneid)
    word = cuda.shared.array(64, float32)
    i = cuda.grid(1)
    while i < 9:
        i += cuda.gridsize(1)
        cuda.syncwarp()
    for k in range(cuda.shfl_up_sync(0xFFFFFFFF, lane, 1)):
        partners(out, lane, int32(1 + k))
    own = cuda.local.array(2, float32)
    own[0] = cuda.blockDim.x + cuda.gridDim.y + cuda.blockIdx.z
    word[lane] = own[0] if lane > 3 else own[1]
    cuda.syncthreads()
    twice = int32(4)
    partners(out, lane, twice)
    out[i] = word[cuda.shfl_down_sync(0xFFFFFFFF, lane, 2)]


@kernel("void(i4[::1])", threads=64)
def in_a_condition(out):
    out[0] = cuda.shfl_sync(0xFFFFFFFF, 1, 0) if out[1] else 2


@kernel("void(i4[::1])", threads=64)
def in_an_or(out):
    out[0] = out[1] or cuda.shfl_sync(0xFFFFFFFF, 1, 0)


@kernel("void(i4[::1])", threads=64)
def in_a_loop(out):
    while cuda.shfl_sync(0xFFFFFFFF, 1, 0):
        out[0] = 1


@kernel("void(i4[::1])", threads=64)
def unknown_call(out):
    out[0] = cuda.popc(3)


@kernel("void(i4[::1])", threads=64)
def unknown_number(out):
    out[0] = cuda.nothing


@device
def gives(value):
    cuda.shfl_sync(0xFFFFFFFF, value, 0)
    return value


@kernel("void(i4[::1])", threads=64)
def of_a_result(out):
    gives(1)


@device
def waits(out):
    cuda.syncthreads()


@kernel("void(i4[::1])", threads=64)
def waits_inside(out):
    out[0] = waits(out)


THING = object()


@kernel("void(i4[::1])", threads=64)
def of_a_thing(out):
    out[0] = THING


@pytest.mark.parametrize("wrong", [
    in_a_condition, in_an_or, in_a_loop, unknown_call, unknown_number, of_a_result, waits_inside,
    of_a_thing,
], ids=lambda kernel: kernel.function.__name__)  # fmt: skip
def test_what_cannot_be_emulated_is_refused(wrong):
    with pytest.raises(ConfigError) as caught:
        translate(wrong)
    if caught.value.where:
        inside = "gives" if wrong is of_a_result else wrong.function.__name__
        assert caught.value.where in (f"kernel {wrong.function.__name__}", f"kernel {inside}")


#: Tensor cores, twins of instructions, shared arrays, numbers and device functions of other files.
FEW = ("conv_tf32.", "sums.", "columns.", "dropout.")


def test_the_texts_of_kernels_are_what_they_were():
    rows = []
    chosen = [k for k in every_kernel.every_kernel() if k.name.startswith(FEW)]
    for made in (of_every_kind, of_every_global, *chosen):
        found = translate(made)
        lines = found.text.count("\n") if made not in chosen else ""
        rows.append((made.name, found.waits, len(found.shared), lines,
                     known.digest((found.shared, tree(ast.parse(found.text))))))  # fmt: skip
    known.check_rows("emulated", "texts", rows)
