"""Models made in threads and tasks: members differ, one seed reaches them all, and a task that sets
a seed has what the main thread would have."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn


def build(_=None):
    return nn.Linear(3, 2).weight.numpy().sum().item()


def in_threads(count, work):
    """What each of some threads gives, which all begin before one ends."""
    found, together = [None] * count, threading.Barrier(count)

    def run(place):
        together.wait()
        found[place] = work(place)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def in_a_pool(count, work):
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def in_contexts(count, work):
    return [contextvars.Context().run(work, place) for place in range(count)]


def in_tasks(count, work):
    async def one(place):
        await asyncio.sleep(0)
        return work(place)

    async def every():
        return await asyncio.gather(*map(one, range(count)))

    return contextvars.Context().run(asyncio.run, every())


WAYS = {"threads": in_threads, "pool": in_a_pool, "contexts": in_contexts, "tasks": in_tasks}


@pytest.mark.parametrize("way", WAYS)
def test_members_differ_and_the_seed_reaches_them(way):
    found = []
    for seed in (1, 2, 1):
        oc.manual_seed(seed)
        found.append(WAYS[way](4, build))
        assert len(set(found[-1])) == 4
    assert not set(found[0]) & set(found[1])
    if way == "threads":  # one model each: the same members, in whatever order
        assert set(found[0]) == set(found[2])


def test_the_main_thread_has_the_same_whatever_threads_do():
    oc.manual_seed(5)
    alone = [build() for _ in range(3)]
    oc.manual_seed(5)
    here = [build()]
    others = in_threads(3, build)
    here += [build(), build()]
    assert here == alone
    assert not set(others) & set(alone)


@pytest.mark.parametrize("way", WAYS)
def test_a_task_that_seeds_itself_has_that_seed(way):
    wanted = []
    for seed in range(4):
        oc.manual_seed(seed)
        wanted.append(build())

    def seeded(seed):
        oc.manual_seed(seed)
        return build()

    assert WAYS[way](4, seeded) == wanted


def test_a_seed_set_in_the_main_thread_reaches_threads_of_a_pool_that_go_on():
    with ThreadPoolExecutor(1) as pool:
        found = []
        for _ in range(2):
            oc.manual_seed(3)
            found.append([pool.submit(build).result() for _ in range(2)])
    assert found[0] == found[1]
    assert len(set(found[0])) == 2


def test_masks_of_dropout_differ_from_thread_to_thread():
    x = oc.tensor(np.ones((4, 64), np.float32))
    masks = in_threads(4, lambda _: nn.Dropout(0.5)(x).numpy().tobytes())
    assert len(set(masks)) == 4


def test_seeds_below_zero():
    oc.manual_seed(-1)
    first = build()
    oc.manual_seed(-1)
    assert build() == first
    oc.manual_seed(0)
