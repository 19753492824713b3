"""The undefined behaviour of a kernel's compiled form on a GPU, one class for each kind.

    PtxFault
    +-- UnknownInstruction   the interpreter has no meaning for it
    +-- OutOfBounds          an address outside the launch's memory, or that may only be read
    +-- Misaligned           an access of n bytes at no multiple of n
    +-- ReadOfUnwritten      shared or local memory read before it was written
    +-- NotForAll            a barrier or an exchange that some of its lanes do not reach
    +-- Race                 two threads at one word, one of them writing, and no order between them
    +-- Endless              far more steps than any kernel here takes

The code that detects a fault knows the thread; the machine adds kernel, line of PTX and block
(`where`). Read next: `ptx_machine.py`.
"""

from __future__ import annotations

from ooctrain.errors import OoctrainError

NOBODY = -1


class PtxFault(OoctrainError, AssertionError):
    """Base of all faults.

    Args:
        what: one sentence.
        thread: number of the thread in its launch (`ptx_lanes.Lanes.who`); NOBODY: none in
            particular.
        numbers: the address or word concerned.
    """

    def __init__(self, what: str, *, thread: int = NOBODY, numbers: str = ""):
        super().__init__(what, numbers=numbers)
        self.thread = int(thread)


class UnknownInstruction(PtxFault):
    """The interpreter has no meaning for an instruction, or for one of its suffixes."""


class OutOfBounds(PtxFault):
    """An address that belongs to no array, or to one that may only be read."""


class Misaligned(PtxFault):
    """An access whose address is no multiple of its size."""


class ReadOfUnwritten(PtxFault):
    """Shared or local memory is read before it was written, or before its copy was waited for."""


class NotForAll(PtxFault):
    """Some lanes of a block miss a barrier, or some of a warp an exchange."""


class Race(PtxFault):
    """Two threads meet at a word, one of them writes, and nothing orders them."""


class Endless(PtxFault):
    """A kernel that takes far more steps than any here."""
