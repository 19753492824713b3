"""Your law. It lets every right arena pass, but a broken one has to be very broken to be stopped.

It gets a fresh arena and a generator of random numbers, and raises an AssertionError that says
which promise the arena has broken. Yours to write: ask for many kinds of blocks, keep books of your
own, and compare. `arena.size` are its bytes; `arena.allocate(size)` gives the offset
of a block, or None where no free range takes it; `arena.free(offset)` gives the block back. Read
next: README.md.
"""


class Law:
    """One block, and back."""

    name = "my-law"

    def check(self, arena, rng):
        """Raises AssertionError where the arena breaks a promise. Your work."""
        offset = arena.allocate(1)
        assert offset is not None, "a block of 1 byte is refused by an empty arena"
        arena.free(offset)
