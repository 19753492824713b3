"""ThreadSafe: one allocator for several threads, and for frees that come from finalizers.

A lock lets one thread at a time into the allocator. Python may run a finalizer anywhere, also while
its own thread is inside the allocator; neither waiting for the lock nor entering a second time is
correct then. Such a free is deferred to the beginning of the next call. Sources: cupy issue 317 and
its like (a free from the garbage collector while the lock is held). Read next: `alloc/wrapper.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ooctrain.alloc.base import Allocator, Block, Reached
from ooctrain.alloc.wrapper import Wrapper


class ThreadSafe(Wrapper):
    """Serves several threads, and frees that come from finalizers.

    One thread at a time is inside. A finalizer may run anywhere, also while its own thread is
    inside the allocator: such a free is put off, not lost, and made at the beginning of the next
    call (which, if that free was none, raises its InvalidFree and does nothing).
    """

    def __init__(self, inner: Allocator):
        super().__init__(inner)
        self._lock = threading.RLock()
        self._inside = 0
        self._deferred: deque[tuple[Block, Sequence[Reached]]] = deque()

    def free(self, block: Block, after: Sequence[Reached] = ()) -> None:
        """Put off if this very thread is inside already."""
        with self._lock:
            if self._inside:
                self._deferred.append((block, after))
                return
        with self._around("free"):
            self.inner.free(block, after)

    @contextmanager
    def _around(self, method: str) -> Iterator[None]:
        """Behind the lock."""
        with self._lock:
            self._inside += 1
            try:
                while self._deferred and self._inside == 1:
                    self.inner.free(*self._deferred.popleft())
                yield
            finally:
                self._inside -= 1
