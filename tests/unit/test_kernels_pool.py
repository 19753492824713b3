"""The pool: every chunk once, in any order, whoever calls, whatever fails, and no thread left."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from ooctrain.devices.cpu.launches import BoundOperation
from ooctrain.layers.kernels import cpu
from ooctrain.layers.kernels.cpu.runtime.entry import recipe_of
from ooctrain.layers.kernels.cpu.runtime.kept import EveryTimeError, KernelRecorder
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import CpuKernel, kernel
from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool
from ooctrain.layers.kernels.signature import I8, I8s
from ooctrain.layers.relu import ReLU
from ooctrain.step.op import Spec
from ooctrain.step.presets import usable_cores

ROOT = Path(__file__).parents[2]


@kernel("void(i8[::1], i8[::1], i8, i8, i8)")
def count_items(hits, threads, lo, hi, thread):
    for item in range(lo, hi):
        hits[item] += 1
        threads[item] = thread


@kernel("void(i8[::1], i8, i8, i8, i8)")
def divide(out, by, lo, hi, thread):
    for item in range(lo, hi):
        out[item] = 100 // (item - by)


@kernel("void(i8[::1], i8[::1], i8, i8, i8)")
def divide_by(by, out, lo, hi, thread):
    for item in range(lo, hi):
        out[item] = 100 // (item - by[item])


@kernel("void(f4[::1], f8, u8, b1, f4, UniTuple(i8, 3), f4[:,:,:,::1], f8[::1], i8, i8, i8)")
def gather(a, double, whole, flag, single, three, cube, out, lo, hi, thread):
    for item in range(lo, hi):
        value = (
            a[item]
            + double
            + (whole >> np.uint64(60))
            + single
            + three[0]
            + 10 * three[1]
            + 100 * three[2]
        )
        out[item] = value + cube[item, 0, 0, 1] + (10000 if flag else 20000)


@kernel("void(f4[::1], i8, f4[::1], f4[::1], f4, f4[::1], f8[::1], f4[::1], i8, i8, i8)")
def weigh(a, by, b, c, single, d, out, e, lo, hi, thread):
    for item in range(lo, hi):
        out[item] = a[0] + by * b[1] + single * c[2] + 1000 * d[3] + 10000 * e[e.size - 1]


@kernel("void(i8[::1], i8[::1], i8, i8, i8)")
def sum_all(numbers, out, lo, hi, thread):
    for item in range(lo, hi):
        out[item] = 1000 * numbers.size + numbers.sum()


@kernel("void(f4[:,:,::1], f4[:,:,::1], i8, i8, i8)")
def copy_cube(cube, out, lo, hi, thread):
    for item in range(lo, hi):
        for row in range(cube.shape[1]):
            for column in range(cube.shape[2]):
                out[item, row, column] = cube[item, row, column]


@kernel("void(i8[::1], i8, i8[::1], i8, i8, i8)")
def add_number(numbers, by, out, lo, hi, thread):
    for item in range(lo, hi):
        out[item] = numbers[item] + by


class Pair(NamedTuple):
    first: int
    second: int


class Three(NamedTuple):
    a: int
    b: int
    c: int


class Both(NamedTuple):
    pair: Pair
    three: Three


@kernel
def of_both(both: Both, after: I8, out: I8s, lo, hi, thread):
    for item in range(lo, hi):
        digits = both.pair.first, both.pair.second, both.three.a, both.three.b, both.three.c, after
        value = 0
        for digit in digits:
            value = 10 * value + digit
        out[item] = value


@kernel("void(i8[::1], i8[::1], i8, i8, i8, i8)")
def busy(out, threads, rounds, lo, hi, thread):
    for item in range(lo, hi):
        value = item
        for step in range(rounds):
            value = (value * 6364136223846793005 + step) % 1000003
        out[item], threads[item] = value, thread


@pytest.fixture
def pool():
    made = ThreadPool(3)
    yield made
    made.close()


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_item_is_done_once(threads, seed):
    """Over many jobs in a row, for numbers of chunks below, at and above that of the threads."""
    pool = ThreadPool(threads, shuffle_seed=seed)
    for items, chunk in [(1, 1), (7, 3), (100, 1), (64, 64), (1000, 33), (2, 1)] * 50:
        hits, by = np.zeros(items, np.int64), np.zeros(items, np.int64)
        pool.run(count_items, items, chunk, hits, by)
        assert (hits == 1).all()
        assert (by >= 0).all()
        assert (by < threads).all()
    pool.close()


def test_workers_take_part(pool):
    """Chunks of a millisecond each are not all done by the caller."""
    out, by = np.zeros(60, np.int64), np.zeros(60, np.int64)
    for _ in range(20):
        pool.run(busy, 60, 1, out, by, 200_000)
        if len(set(by.tolist())) > 1:
            return
    assert usable_cores() == 1, "only the caller worked"


def test_arguments_of_every_kind_arrive(pool):
    """The block holds what the kernel is given, the largest unsigned number among it."""
    a, cube = np.arange(8, dtype=np.float32), np.full((8, 2, 2, 2), 0.25, np.float32)
    serial, parallel = np.zeros(8), np.zeros(8)
    arguments = a, 0.125, 2**64 - 1, True, 0.5, (1, 2, 3), cube
    gather(*arguments, serial, 0, 8, 0)
    pool.run(gather, 8, 1, *arguments, parallel)
    np.testing.assert_array_equal(serial, parallel)
    assert serial[3] == 3 + 0.125 + 15 + 0.5 + 321 + 0.25 + 10000


def test_flat_arrays_arrive_whatever_their_number(pool):
    """Between others and numbers."""
    a, b, c, d, e = (np.full(5 + n, n + 1, np.float32) for n in range(5))
    out = np.zeros(8)
    pool.run(weigh, 8, 1, a, 10, b, c, 100.0, d, out, e)
    assert (out == 54321).all()


def kept(pool, arrays, function, items, chunk, *args):
    """A call of a kernel that is kept, with these arrays as those of the operation."""
    recorder = KernelRecorder(pool.threads, pool.pack, arrays)
    recorder.run(function, items, chunk, *args)
    return recorder.kept[0]


@pytest.mark.parametrize("seed", [None, 7])
def test_a_kept_call_finds_its_arrays_at_other_addresses(seed):
    """Arguments of every kind; a part of an array; an array of nobody, which stays."""
    pool, three = ThreadPool(3, shuffle_seed=seed), (1, 2, 3)
    cube, whole = np.full((8, 2, 2, 2), 0.25, np.float32), np.arange(24, dtype=np.float32)
    out = np.zeros(8)
    args = whole[8:16], 0.125, 2**64 - 1, True, 0.5, three, cube, out
    call = kept(pool, [whole, out], gather, 8, 1, *args)
    assert not out.any()
    del args
    other, found = np.arange(24, dtype=np.float32) * 2, np.zeros(8)
    for _ in range(3):
        assert pool.repeat(call, (other.ctypes.data, found.ctypes.data)) is None
    expected = np.zeros(8)
    gather(other[8:16], 0.125, 2**64 - 1, True, 0.5, three, cube, expected, 0, 8, 0)
    np.testing.assert_array_equal(found, expected)
    assert not out.any()
    pool.close()


def test_a_kept_call_names_the_chunk_that_raised(pool):
    """Of the kernel that is kept nothing is lost: it runs again where it can."""
    out, fine = np.zeros(50, np.int64), np.zeros(50, np.int64)
    call = kept(pool, [out], divide, 50, 1, out, 7)
    assert pool.repeat(call, (fine.ctypes.data,)) == 7
    assert not out.any()


def test_what_cannot_be_packed_is_not_kept(pool):
    """A function that was not compiled; an argument of another type; a function that says so."""
    out = np.zeros(4, np.int64)
    for function, args in ((print, (out,)), (divide, (out.astype(np.float32), 1))):
        with pytest.raises(EveryTimeError):
            kept(pool, [out], function, 4, 1, *args)
    with pytest.raises(EveryTimeError):
        KernelRecorder(pool.threads, pool.pack, [out]).every_time()
    assert pool.every_time() is None


def test_a_bound_operation_raises_what_its_kernel_raised(pool, monkeypatch):
    """Wherever its arrays lie; the next call is done as ever."""
    monkeypatch.setattr(
        "ooctrain.layers.kernels.cpu.elementwise.relu",
        lambda pool, x, y: pool.run(divide_by, 25, 1, x.view(np.int64), y.view(np.int64)),
    )
    shape = Spec((50,))
    bound = BoundOperation(pool, ReLU(), [shape], [shape], 0)
    for by, failed in ((-1, False), (7, True), (60, False)):
        x, y = np.full(25, by), np.zeros(25, np.int64)
        with pytest.raises(ZeroDivisionError) if failed else nullcontext():
            bound((x.ctypes.data, y.ctypes.data, 0), {})
        if not failed:
            assert (y == 100 // (np.arange(25) - by)).all()


def test_an_exception_reaches_the_caller_and_spares_the_pool(pool):
    """The failed chunk raises its own exception, from Python, and the next job runs."""
    out, hits = np.zeros(50, np.int64), np.zeros(50, np.int64)
    for by in (0, 25, 49):
        with pytest.raises(ZeroDivisionError):
            pool.run(divide, 50, 1, out, by)
    pool.run(count_items, 50, 1, hits, np.zeros(50, np.int64))
    assert (hits == 1).all()


@pytest.mark.parametrize("shape", [(), (1,), (6,), (2, 3), (2, 3, 4), (1, 2, 3, 4, 5), (0, 3)])
def test_a_flat_argument_may_have_any_shape(pool, shape):
    """The kernel sees all elements in a row, and their number."""
    numbers = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    out, size = np.zeros(5, np.int64), int(numbers.size)
    pool.run(sum_all, 5, 1, numbers, out)
    assert out.tolist() == [1000 * size + size * (size - 1) // 2] * 5


def test_arrays_of_more_dimensions_arrive_as_they_are(pool):
    """Extents and strides of (2, 3, 4) and of a part of a larger array's first axis."""
    whole = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
    for cube in (whole[:2], whole[3:]):
        out = np.zeros(cube.shape, np.float32)
        pool.run(copy_cube, 2, 1, cube, out)
        np.testing.assert_array_equal(out, cube)


def odd_arguments() -> dict[str, tuple[np.ndarray, int]]:
    """Arguments of `add_number` that are right, but not quite what the fast way looks for."""
    array = np.arange(50, dtype=np.int64)
    return {
        "unpickled": (pickle.loads(pickle.dumps(array)), 7),
        "long long": (array.astype(np.longlong), 7),
        "memory map": (np.asarray(array).view(np.memmap), 7),
        "NumPy's number": (array, np.int64(7)),
        "truth": (array + 6, True),
    }


@pytest.mark.parametrize("name", odd_arguments())
def test_unusual_arguments_are_understood(pool, name):
    """Types that are equal without being the same object, subclasses, numbers of other types."""
    numbers, by = odd_arguments()[name]
    out = np.zeros(50, np.int64)
    pool.run(add_number, 50, 1, numbers, by, out)
    assert out.tolist() == list(range(7, 57))


WRONG = {
    "no array": ([1, 2], 7),
    "other elements, as large": (np.zeros(50), 7),
    "smaller elements": (np.zeros(50, np.int32), 7),
    "other byte order": (np.zeros(50, np.int64).byteswap().view(">i8"), 7),
    "gaps": (np.zeros(100, np.int64)[::2], 7),
    "gaps between rows": (np.zeros((50, 2), np.int64)[:, :1], 7),
    "no number": (np.zeros(50, np.int64), "7"),
    "nothing": (np.zeros(50, np.int64), None),
    "one too many": (np.zeros(50, np.int64), 7, 7),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("chunk", [1, 50])
def test_a_wrong_argument_is_refused_and_spares_the_pool(pool, name, chunk):
    out = np.zeros(50, np.int64)
    with pytest.raises((TypeError, ValueError)):
        pool.run(add_number, 50, chunk, *WRONG[name], out)
    assert not out.any()
    pool.run(add_number, 50, chunk, np.zeros(50, np.int64), 1, out)
    assert (out == 1).all()


def test_a_tuple_of_named_tuples_arrives_by_name(pool):
    out = np.zeros(5, np.int64)
    pool.run(of_both, 5, 1, Both(Pair(1, 2), Three(3, 4, 5)), 6, out)
    assert out.tolist() == [123456] * 5


TUPLES = {
    "flat": (1, 2, 3, 4, 5),
    "one group": ((1, 2),),
    "a group too many": ((1, 2), (3, 4, 5), (6,)),
    "the second too short": ((1, 2), (3, 4)),
    "the second too long": ((1, 2), tuple(range(3, 400))),
    "the first too long": (tuple(range(400)), (3, 4, 5)),
    "a number for a group": ((1, 2), 3),
    "no tuple": 7,
}


@pytest.mark.parametrize("name", TUPLES)
def test_a_wrong_tuple_is_refused_and_spares_the_pool(pool, name):
    out = np.zeros(5, np.int64)
    with pytest.raises((TypeError, ValueError)):
        pool.run(of_both, 5, 1, TUPLES[name], 6, out)
    assert not out.any()


def test_what_must_not_be_written_is_refused(pool):
    out = np.zeros(50, np.int64)
    out.flags.writeable = False
    with pytest.raises(TypeError):
        pool.run(add_number, 50, 1, np.zeros(50, np.int64), 1, out)


def test_arguments_are_released(pool):
    """A call holds none of its arguments afterwards, not those of a refused one either."""
    numbers, out = np.zeros(50, np.int64), np.zeros(50, np.int64)
    before = sys.getrefcount(numbers), sys.getrefcount(out)
    for wrong in (7, "7"):
        for _ in range(100):
            with suppress(TypeError):
                pool.run(add_number, 50, 1, numbers, wrong, out)
    assert (sys.getrefcount(numbers), sys.getrefcount(out)) == before


def test_any_function_is_run_by_the_caller(pool):
    """What was not compiled by `kernel_jit.kernel` has no entry; its chunks are the same."""
    chunks = []
    pool.run(lambda *range_: chunks.append(range_), 10, 4)
    assert chunks == [(0, 4, 0), (4, 8, 0), (8, 10, 0)]


def test_callers_at_once(pool):
    """Two Python threads on one pool, and others on pools of their own: nobody's items are lost."""
    wrong = []

    def call(shared: ThreadPool | None):
        mine = shared or ThreadPool(2)
        for _ in range(200):
            hits = np.zeros(97, np.int64)
            mine.run(count_items, 97, 5, hits, np.zeros(97, np.int64))
            wrong.extend([] if (hits == 1).all() else [hits])

    callers = [threading.Thread(target=call, args=(p,)) for p in (pool, pool, None, None)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not wrong
    assert not any(caller.is_alive() for caller in callers)


def test_interrupt_leaves_the_pool_whole(pool):
    """Ctrl-C is raised when the job is done; the next one runs."""
    out, hits = np.zeros(64, np.int64), np.zeros(64, np.int64)

    def run_until_interrupted():
        while True:
            pool.run(busy, 64, 1, out, out.copy(), 20_000)

    # A shell starts its background jobs with Ctrl-C ignored; such a run would never end.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            run_until_interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
    pool.run(count_items, 64, 1, hits, np.zeros(64, np.int64))
    assert (hits == 1).all()


def workers_of(pool: ThreadPool) -> list[threading.Thread]:
    return list(pool._team._workers)


def test_close_and_forgetting_end_the_workers():
    """`close` joins the threads and may be repeated; a pool that nobody holds ends them too."""
    pool, forgotten = ThreadPool(3), ThreadPool(2)
    closed, left = workers_of(pool), workers_of(forgotten)
    assert (len(closed), len(left)) == (2, 1)
    assert all(worker.is_alive() for worker in closed + left)
    pool.close()
    pool.close()
    assert not any(worker.is_alive() for worker in closed)
    hits = np.zeros(9, np.int64)
    pool.run(count_items, 9, 1, hits, np.zeros(9, np.int64))
    assert (hits == 1).all(), "a closed pool leaves the work to its caller"
    del forgotten
    gc.collect()
    left[0].join(60)
    assert not left[0].is_alive()


PROCESS = """
import os, sys, time
sys.path.insert(0, "tests/unit")
import numpy as np
from test_kernels_pool import ThreadPool, busy, count_items

def right(pool):
    hits = np.zeros(40, np.int64)
    pool.run(count_items, 40, 1, hits, np.zeros(40, np.int64))
    return (hits == 1).all()

pool = ThreadPool(3)
assert right(pool)
child = os.fork()
if child == 0:
    # No worker came along: the child's caller does everything, in old and in new pools.
    done = right(pool) and right(pool) and right(ThreadPool(2))
    os._exit(0 if done else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert right(pool)
pool.run(busy, 30, 1, np.zeros(30, np.int64), np.zeros(30, np.int64), 1000)
print("done", flush=True)
# The interpreter ends while workers still spin.
"""


@pytest.mark.slow
def test_fork_and_exit():
    """A forked child can use the pool, and the parent ends at once without closing it."""
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROCESS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "done"), ended.stderr
    assert time.monotonic() - started < 60


def test_idle_workers_sleep(pool):
    """After a job the workers watch for microseconds, not longer: a second costs no processor."""
    pool.run(busy, 60, 1, np.zeros(60, np.int64), np.zeros(60, np.int64), 1000)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


@pytest.mark.slow
def test_every_range_kernel_has_a_recipe():
    """No kernel falls back to one thread for an argument that the block cannot hold."""
    found = 0
    for module in pkgutil.walk_packages(cpu.__path__, f"{cpu.__name__}."):
        members = vars(importlib.import_module(module.name)).values()
        for member in members:
            if isinstance(member, CpuKernel) and member.is_range:
                assert recipe_of(member) is not None, member
                found += 1
    assert found > 40
