"""What lanes of a warp tell each other: shuffles, as publish and collect.

In: a thread's arguments. Out: what the instruction gives it. The one idea: an exchange is two plain
functions with a pause of the whole warp between them; the first writes what this lane offers into
its row of the exchange table, the second reads the rows that the hardware would read. Source: PTX
ISA, "shfl.sync". Read next: `emulator_source.py`, which puts them into a kernel's place.
"""

from __future__ import annotations

from types import MappingProxyType

from numba.core import types
from numba.extending import overload

from ooctrain.layers.kernels.cpu.jit import inner

WARP = 32
#: values that a lane may publish at once
SLOTS = 8


def same_type(like, value):
    """`value`, stored as float64, as the type of `like`; exact for 32-bit numbers."""


@overload(same_type)
def _same_type(like, value):
    cast = types.unliteral(like)
    return lambda like, value: cast(value)


@inner
def publish_value(table, turn, thread, mask, value, lane):
    """Offers one value."""
    table[turn, thread, 0] = value


publish_shfl = publish_up = publish_down = publish_xor = publish_value


@inner
def collect_shfl(table, turn, thread, mask, value, lane):
    """cuda.shfl_sync: the value of lane `lane`."""
    return same_type(value, table[turn, thread - thread % WARP + lane % WARP, 0])


@inner
def collect_xor(table, turn, thread, mask, value, lane):
    """cuda.shfl_xor_sync: the value of this lane's partner."""
    return same_type(value, table[turn, thread ^ lane, 0])


@inner
def collect_down(table, turn, thread, mask, value, delta):
    """cuda.shfl_down_sync: the value of the lane `delta` further; its own beyond the warp."""
    inside = thread % WARP + delta < WARP
    return same_type(value, table[turn, thread + delta if inside else thread, 0])


@inner
def collect_up(table, turn, thread, mask, value, delta):
    """cuda.shfl_up_sync: the value of the lane `delta` before; its own beyond the warp."""
    inside = thread % WARP >= delta
    return same_type(value, table[turn, thread - delta if inside else thread, 0])


#: name in a kernel's source -> ending of the two functions here
SHUFFLES = MappingProxyType({
    "cuda.shfl_sync": "shfl", "cuda.shfl_xor_sync": "xor",
    "cuda.shfl_down_sync": "down", "cuda.shfl_up_sync": "up",
})  # fmt: skip
#: the same for intrinsics
EXCHANGES: MappingProxyType = MappingProxyType({})
