"""The emulator runs kernels as a GPU would: indices, barriers, shuffles, twins, both orders."""

from __future__ import annotations

import numpy as np
import pytest

from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cuda.runtime.intrinsics import ld4, st4
from ooctrain.layers.kernels.cuda.runtime.shim import cuda, device, float32, int32, kernel, uint32
from ooctrain.testing.emulator import EmulatedLauncher, EmulationError

THREADS = 64
ZERO = np.float32(0)
ORDERS = pytest.mark.parametrize("order", [1, -1])


@device
def positive(value):
    return value if value > ZERO else ZERO


@kernel("void(f4[::1], f4[::1], u4)", threads=THREADS)
def relu_by_fours(x, y, count):
    i = uint32(cuda.grid(1) * uint32(4))
    if i < count:
        a = ld4(x, i)
        st4(y, i, (positive(a[0]), positive(a[1]), positive(a[2]), positive(a[3])))


@kernel("void(f4[::1], f4[::1], u4)", threads=THREADS)
def block_sums(x, y, count):
    """One sum for each block: lanes by shuffles, warps by shared memory."""
    warps = cuda.shared.array(2, float32)
    thread = uint32(cuda.threadIdx.x)
    i = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + thread)
    total = x[i] if i < count else ZERO
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, distance)
    if thread % uint32(32) == uint32(0):
        warps[thread // uint32(32)] = total
    cuda.syncthreads()
    if thread == uint32(0):
        y[cuda.blockIdx.x] = warps[0] + warps[1]


@kernel("void(i4[::1])", threads=THREADS)
def shuffled(out):
    lane = int32(cuda.laneid)
    base = cuda.threadIdx.x * 4
    out[base] = cuda.shfl_sync(0xFFFFFFFF, lane, 5)
    out[base + 1] = cuda.shfl_xor_sync(0xFFFFFFFF, lane, 3)
    out[base + 2] = cuda.shfl_up_sync(0xFFFFFFFF, lane, 2)
    out[base + 3] = int32(
        cuda.shfl_down_sync(0xFFFFFFFF, lane, 2) + cuda.shfl_xor_sync(0xFFFFFFFF, lane, 1)
    )


@device
def twice(value):
    return 2 * value


@device
def add_partners(out, value, distance):
    lane = twice(cuda.shfl_xor_sync(0xFFFFFFFF, value, distance))
    out[cuda.threadIdx.x] += lane


@device
def partner(value):
    return cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)


@kernel("void(i4[::1])", threads=THREADS)
def shuffled_elsewhere(out):
    lane = int32(cuda.laneid)
    out[cuda.threadIdx.x] = 0
    for i in range(2):
        add_partners(out, lane, int32(1 + i))
    twice = int32(4)  # means something else there
    add_partners(out, lane, twice)


@kernel("void(i4[::1])", threads=THREADS)
def asks_for_a_result(out):
    out[cuda.threadIdx.x] = partner(int32(cuda.laneid))


@kernel("void(f4[::1], f4[::1])", threads=THREADS)
def reversed_in_warps(x, y):
    """Lanes of one warp meet at words with the warp's barrier between them."""
    words = cuda.shared.array(THREADS, float32)
    thread = cuda.threadIdx.x
    words[thread] = x[thread]
    cuda.syncwarp()
    y[thread] = words[thread ^ 31]
    cuda.syncwarp()
    words[thread ^ 1] = y[thread]


@kernel("void(f4[::1])", threads=THREADS)
def keeps_its_own(y):
    mine = cuda.local.array(2, float32)
    mine[0] = float32(cuda.threadIdx.x)
    cuda.syncthreads()
    y[cuda.threadIdx.x] = mine[0]
    y[cuda.threadIdx.x + THREADS] = mine[1]


@kernel("void(i4[::1])", threads=THREADS)
def places(out):
    block = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    out[block * cuda.blockDim.x + cuda.threadIdx.x] = block


def values(count):
    return np.random.default_rng(count).standard_normal(count).astype(np.float32)


@ORDERS
def test_vector_loads_and_device_functions(order):
    x, y = values(4 * 100), np.zeros(4 * 100, np.float32)
    EmulatedLauncher(order).launch(relu_by_fours, 2, x.reshape(20, 20), y, x.size)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


@ORDERS
def test_shuffles_and_shared_memory_sum_each_block(order):
    x = np.arange(150, dtype=np.float32)
    y = np.zeros(3, np.float32)
    EmulatedLauncher(order).launch(block_sums, 3, x, y, x.size)
    np.testing.assert_array_equal(y, [x[i : i + 64].sum() for i in (0, 64, 128)])


@ORDERS
def test_shuffles_read_the_lanes_that_the_manual_says(order):
    out = np.zeros((THREADS, 4), np.int32)
    EmulatedLauncher(order).launch(shuffled, 1, out)
    lane = np.arange(THREADS) % 32
    np.testing.assert_array_equal(out[:, 0], 5)
    np.testing.assert_array_equal(out[:, 1], lane ^ 3)
    np.testing.assert_array_equal(out[:, 2], np.where(lane >= 2, lane - 2, lane))
    np.testing.assert_array_equal(out[:, 3], np.where(lane < 30, lane + 2, lane) + (lane ^ 1))


@pytest.mark.slow  # the emulated tensor cores do it, too
@ORDERS
def test_lanes_exchange_in_device_functions(order):
    out = np.zeros(THREADS, np.int32)
    EmulatedLauncher(order).launch(shuffled_elsewhere, 1, out)
    lane = np.arange(THREADS) % 32
    np.testing.assert_array_equal(out, 2 * ((lane ^ 1) + (lane ^ 2) + (lane ^ 4)))


def test_a_device_function_with_an_exchange_gives_no_result():
    with pytest.raises(ConfigError, match="inside the device function partner"):
        EmulatedLauncher().launch(asks_for_a_result, 1, np.zeros(THREADS, np.int32))


@ORDERS
def test_the_barrier_of_a_warp_orders_its_lanes(order):
    x, y = values(THREADS), np.zeros(THREADS, np.float32)
    EmulatedLauncher(order).launch(reversed_in_warps, 1, x, y)
    np.testing.assert_array_equal(y, x.reshape(2, 32)[:, ::-1].ravel())


def test_local_arrays_belong_to_a_thread_and_start_as_nan():
    y = np.zeros(2 * THREADS, np.float32)
    EmulatedLauncher().launch(keeps_its_own, 1, y)
    np.testing.assert_array_equal(y[:THREADS], np.arange(THREADS))
    assert np.isnan(y[THREADS:]).all()


@ORDERS
def test_every_thread_of_every_block_runs_once(order):
    out = np.full((12, THREADS), -1, np.int32)
    EmulatedLauncher(order).launch(places, (2, 3, 2), out)
    np.testing.assert_array_equal(out, np.repeat(np.arange(12)[:, None], THREADS, axis=1))


def test_an_array_must_be_contiguous_and_every_argument_be_given():
    launcher, x = EmulatedLauncher(), values(128).reshape(8, 16)
    with pytest.raises(EmulationError, match="contiguous"):
        launcher.launch(relu_by_fours, 1, x.T, x.copy(), x.size)
    with pytest.raises(ConfigError, match="takes 3 arguments"):
        launcher.launch(relu_by_fours, 1, x, x)


def test_a_part_of_the_workspace_is_a_view_and_may_not_exceed_it():
    workspace = np.zeros(64, np.uint8)
    part = EmulatedLauncher().part(workspace, 16, 4, "float32")
    part[:] = 1
    assert workspace[:16].sum() == 0
    assert (workspace[16:32].view(np.float32) == 1).all()
    with pytest.raises(ConfigError, match="more workspace"):
        EmulatedLauncher().part(workspace, 56, 4, "float32")
