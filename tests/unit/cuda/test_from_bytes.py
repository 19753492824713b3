"""Bytes to floats: the same bits by definition, on cores, in the emulator and from PTX."""

from __future__ import annotations

import numpy as np
import pytest
from doubles.ptx_machine import PtxLauncher
from support.quick import quick

import ooctrain as oc
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.arithmetic import BytesToFloat
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx
from ooctrain.testing.check_cuda import check_cuda, cpu_bits

EVERY_BYTE = np.arange(256, dtype=np.uint8)
#: Differences and quotients that are not whole numbers.
OP = BytesToFloat(123.675, 58.395)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("shape", quick([(1, 9, 5, 7), (16, 16), (1, 4, 8, 33), (2, 3, 5, 5)], 0))
def test_the_bits_of_the_definition_on_each_device(shape: tuple[int, ...], each: bool) -> None:
    pixels = np.resize(EVERY_BYTE, shape)
    numbers = tuple(range(shape[1])), tuple(0.7 + c for c in range(shape[1]))
    op = BytesToFloat(*numbers) if each else OP
    (found,) = check_cuda(op, pixels, tolerance=0)
    (defined,) = op.reference(pixels, scalars={})
    assert found.tobytes() == cpu_bits(op, pixels)[0].tobytes()
    physical = defined.transpose(0, 2, 3, 1) if defined.ndim == 4 else defined
    assert found.tobytes() == np.ascontiguousarray(physical).tobytes()


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_from_ptx(channels: int) -> None:
    pixels, launchers = EVERY_BYTE.reshape(1, channels, 16, -1), [PtxLauncher()]
    check_cuda(OP, pixels, tolerance=0, launchers=launchers)
    each = BytesToFloat(tuple(range(channels)), tuple(0.7 + c for c in range(channels)))
    check_cuda(each, pixels, tolerance=0, launchers=launchers)


def test_what_is_no_byte_is_refused() -> None:
    with pytest.raises(ShapeError, match="wants uint8, got float32"):
        oc.functional.from_bytes(oc.tensor(np.zeros((1, 3, 2, 2), np.float32)))
    with pytest.raises(ConfigError, match="std 0"):
        oc.functional.from_bytes(oc.tensor(EVERY_BYTE), std=0)
