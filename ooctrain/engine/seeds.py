"""Seeds: one for all threads and tasks, of which each draws other numbers.

Threads and tasks have a tape each (`tensor.current_tape`), and would draw the same numbers if each
began with the same seed: the members of an ensemble that is made in a pool would be one model. So a
tape takes its seed from here when it first draws. Read next: `tensor.py`, which asks; `autograd.py`
for `manual_seed`.
"""

from __future__ import annotations

import contextvars
import threading

import numpy as np

_MASK_64 = (1 << 64) - 1


class Seeds:
    """One seed for all threads and tasks, of which each draws other numbers.

    The main thread draws from the seed itself. Another context draws from a seed that is a hash of
    it and of a number: 1 for the first context that draws anything since `set`, 2 for the next one.
    So the members of an ensemble differ, each thread's numbers follow from its place in that order,
    and after `set` all begin anew. A seed set in another thread is that thread's own, and of those
    that draw for the first time afterwards: tasks that each set a seed do not disturb each other.

    Attributes:
        round: another object since the main thread has set a seed.
    """

    def __init__(self) -> None:
        self.round, self._seed, self._others, self._has_main = object(), 0, 0, False
        self._lock = threading.Lock()

    def set(self, seed: int) -> None:
        """Seeds what draws from now on."""
        with self._lock:
            self._seed, self._others = int(seed), 0
            if _in_main_thread():
                self.round, self._has_main = object(), True

    def take(self) -> int:
        """The seed of a context that draws for the first time in this round."""
        with self._lock:
            if _in_main_thread() and not self._has_main:
                self._has_main = True
                return self._seed
            self._others += 1
            sequence = np.random.SeedSequence((self._seed & _MASK_64, self._others))
        return int(sequence.generate_state(1, np.uint64)[0])


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def generator_of(seed: int, stream: int) -> np.random.Generator:
    """The generator of one parameter. A function by name, so that what holds it can be pickled."""
    return np.random.default_rng((seed & _MASK_64, stream))


#: The same in all contexts that have no other: threads would make equal models without.
SEEDS: contextvars.ContextVar[Seeds] = contextvars.ContextVar(
    "ooctrain_seeds", default=Seeds()  # noqa: B039 - it has a lock
)  # fmt: skip
