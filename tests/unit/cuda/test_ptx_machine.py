"""The PTX interpreter on kernels written by hand: ways that part, barriers, exchanges, faults."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from doubles import ptx_machine
from doubles.ptx_lanes import PtxLaunch
from doubles.ptx_machine import run
from doubles.ptx_memory import (
    Endless,
    GlobalMemory,
    Misaligned,
    NotForAll,
    OutOfBounds,
    Race,
    ReadOfUnwritten,
    UnknownInstruction,
)
from support.hand_ptx import module, run_by_hand

from ooctrain.errors import ConfigError

#: %rd10 = address of element %r9 (this thread of all) of array 0, %rd11 of array 1
OWN = """
    mov.u32 %r8, %ctaid.x;
    mov.u32 %r7, %ntid.x;
    mad.lo.s32 %r9, %r8, %r7, %r0;
    mul.wide.u32 %rd9, %r9, 4;
    add.s64 %rd10, %rd0, %rd9;
    add.s64 %rd11, %rd1, %rd9;
"""
TILE = ".shared .align 4 .b8 tile[256];\n.shared .align 4 .b8 other[64];"
#: %r20 = address of this thread's word of the tile, %r21 of the word of its mirror image
PLACES = """
    mov.u32 %r19, tile;
    shl.b32 %r20, %r0, 2;
    add.s32 %r20, %r19, %r20;
    sub.s32 %r21, 63, %r0;
    shl.b32 %r21, %r21, 2;
    add.s32 %r21, %r19, %r21;
"""
FILL = "ld.global.f32 %f1, [%rd10]; st.shared.f32 [%r20], %f1;"
TURN = "ld.shared.f32 %f2, [%r21]; st.global.f32 [%rd11], %f2;"
MIRROR = f"{OWN}{PLACES}{FILL} bar.sync 0; {TURN}"


def numbers(count):
    return np.arange(count, dtype=np.float32)


def mirror(body=MIRROR, threads=64, blocks=1):
    x, y = numbers(threads * blocks), np.zeros(threads * blocks, np.float32)
    run_by_hand(body, x, y, threads=threads, blocks=blocks, outside=TILE)
    np.testing.assert_array_equal(y, x.reshape(blocks, -1)[:, ::-1].ravel())


# Ways that part


def test_lanes_take_their_own_ways_and_meet_again():
    out = np.zeros(64, np.uint32)
    body = f"""{OWN}
    setp.lt.u32 %p1, %r0, 10;
    and.b32 %r1, %r0, 1;
    setp.eq.s32 %p2, %r1, 0;
    mov.u32 %r2, 1;
    @%p1 bra LOW;
    @!%p2 bra ODD;
    add.s32 %r2, %r2, 100;
    bra.uni DONE;
ODD:
    add.s32 %r2, %r2, 200;
    bra.uni DONE;
LOW:
    add.s32 %r2, %r2, 300;
    @%p2 add.s32 %r2, %r2, 5;
DONE:
    bar.warp.sync -1;
    add.s32 %r2, %r2, 1000;
    st.global.u32 [%rd10], %r2;
"""
    run_by_hand(body, out, np.zeros(64, np.uint32), threads=32, blocks=2)
    lane = np.arange(64) % 32
    want = np.where(lane < 10, 300 + 5 * (lane % 2 == 0), np.where(lane % 2 == 0, 100, 200))
    np.testing.assert_array_equal(out, want + 1001)


def test_each_lane_goes_round_a_loop_as_often_as_it_wants():
    """Collatz: how many steps from each number to 1; the inner branch differs in each round."""
    out = np.zeros(96, np.uint32)
    body = f"""{OWN}
    add.s32 %r1, %r9, 1;
    mov.u32 %r2, 0;
LOOP:
    setp.eq.s32 %p1, %r1, 1;
    @%p1 bra DONE;
    add.s32 %r2, %r2, 1;
    and.b32 %r3, %r1, 1;
    setp.eq.s32 %p2, %r3, 0;
    @%p2 bra EVEN;
    mad.lo.s32 %r1, %r1, 3, 1;
    bra.uni LOOP;
EVEN:
    shr.u32 %r1, %r1, 1;
    bra.uni LOOP;
DONE:
    bar.sync 0;
    st.global.u32 [%rd10], %r2;
"""
    run_by_hand(body, out, np.zeros(96, np.uint32), threads=48, blocks=2)

    def steps(n):
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert out.tolist() == [steps(n + 1) for n in range(96)]


def test_lanes_that_return_early_are_gone():
    out = np.zeros(32, np.uint32)
    body = f"""{OWN}
    setp.lt.u32 %p1, %r0, 5;
    @%p1 ret;
    st.global.u32 [%rd10], 7;
    setp.lt.u32 %p2, %r0, 20;
    @%p2 bra SOME;
    exit;
SOME:
    st.global.u32 [%rd10], 8;
"""
    run_by_hand(body, out, out.copy())
    np.testing.assert_array_equal(out, np.repeat([0, 8, 7], [5, 15, 12]))


@pytest.mark.parametrize("lanes", [1, 100, 2048])
def test_it_does_not_matter_how_many_blocks_run_at_once(lanes, monkeypatch):
    monkeypatch.setattr(ptx_machine, "LANES_AT_ONCE", lanes)
    mirror(blocks=7)


def test_special_registers_of_three_dimensions():
    out = np.zeros((24, 8), np.uint32)
    body = """
    mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y;
    mov.u32 %r5, %ctaid.z; mov.u32 %r6, %nctaid.z; mov.u32 %r7, %ntid.y; mov.u32 %r8, %laneid;
    mad.lo.s32 %r9, %r2, 2, %r1;
    mad.lo.s32 %r9, %r9, 3, %r0;
    mad.lo.s32 %r10, %r5, 1, %r4;
    mad.lo.s32 %r10, %r10, 12, %r9;
    mul.wide.u32 %rd5, %r10, 32;
    add.s64 %rd6, %rd0, %rd5;
    st.global.v4.u32 [%rd6], {%r0, %r1, %r2, %r3};
    st.global.v4.u32 [%rd6+16], {%r5, %r6, %r7, %r8};
"""
    text = module(body, 1)
    parameters = np.array([out.ctypes.data], np.uint64).tobytes()
    memory = GlobalMemory.of_arrays([out])
    run(text, "hand", PtxLaunch((1, 1, 2), (3, 2, 2), 0, parameters, memory))
    thread = np.arange(12)
    for block in (0, 1):
        rows = out[12 * block : 12 * block + 12]
        columns = [thread % 3, thread // 3 % 2, thread // 6, 0 * thread, 0 * thread + block,
                   0 * thread + 2, 0 * thread + 2, thread]  # fmt: skip
        np.testing.assert_array_equal(rows, np.stack(columns, axis=1))


# Lanes that meet


def test_a_block_turns_its_numbers_round():
    mirror()
    mirror(blocks=3)


@pytest.mark.parametrize(("how", "other", "limits", "want"), [
    ("idx", 5, 31, lambda lane: np.full(32, 5)), ("bfly", 3, 31, lambda lane: lane ^ 3),
    ("up", 2, 0, lambda lane: np.where(lane >= 2, lane - 2, lane)),
    ("down", 2, 31, lambda lane: np.where(lane < 30, lane + 2, lane)),
    ("down", 4, (24 << 8) | 7, lambda lane: np.where(lane % 8 < 4, lane + 4, lane)),
    ("idx", 1, (28 << 8) | 3, lambda lane: lane // 4 * 4 + 1),
])  # fmt: skip
def test_shuffles_read_the_lanes_that_the_manual_says(how, other, limits, want):
    out, inside = np.zeros((2, 64), np.uint32)
    body = f"""{OWN}
    mov.u32 %r1, %laneid;
    shfl.sync.{how}.b32 %r2|%p1, %r1, {other}, {limits}, -1;
    selp.u32 %r3, 1, 0, %p1;
    st.global.u32 [%rd10], %r2;
    st.global.u32 [%rd11], %r3;
"""
    run_by_hand(body, out, inside, threads=64)
    lane = np.arange(32)
    np.testing.assert_array_equal(out, np.tile(want(lane), 2))
    if how != "idx":
        np.testing.assert_array_equal(inside[:32] == 1, want(lane) != lane)


def test_a_warp_multiplies_matrices():
    """a (16 x 8) from shared memory by ldmatrix, b and c from where the manual puts them."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (16, 8)), rng.integers(-9, 9, (8, 8))
    c = rng.standard_normal((16, 8)).astype(np.float32)
    lane = np.arange(32)
    g, t = lane // 4, lane % 4
    held_b = np.stack([b[t, g], b[t + 4, g]], axis=1).astype(np.float32)
    places = [(g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1)]
    held_c = np.stack([c[place] for place in places], axis=1)
    found = np.zeros((32, 4), np.float32)
    body = """
    mul.wide.u32 %rd9, %r0, 16;  // four words of a into the tile, a row of a matrix each
    add.s64 %rd10, %rd0, %rd9;
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd10];
    mov.u32 %r19, tile;
    shl.b32 %r18, %r0, 4;
    add.s32 %r20, %r19, %r18;
    st.shared.v4.f32 [%r20], {%f1, %f2, %f3, %f4};
    bar.warp.sync 0xffffffff;
    // matrices: rows 0 to 7 left, rows 8 to 15 left, the same right; a row of 8 is 32 bytes
    and.b32 %r1, %r0, 15;
    shr.u32 %r2, %r0, 4;
    shl.b32 %r1, %r1, 5;
    shl.b32 %r2, %r2, 4;
    add.s32 %r3, %r1, %r2;
    add.s32 %r3, %r19, %r3;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4,%r5,%r6,%r7}, [%r3];
    mul.wide.u32 %rd11, %r0, 8;
    add.s64 %rd12, %rd1, %rd11;
    ld.global.v2.u32 {%r8, %r9}, [%rd12];
    add.s64 %rd13, %rd2, %rd9;
    ld.global.v4.f32 {%f5, %f6, %f7, %f8}, [%rd13];
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f9,%f10,%f11,%f12},
        {%r4,%r5,%r6,%r7}, {%r8,%r9}, {%f5,%f6,%f7,%f8};
    add.s64 %rd14, %rd3, %rd9;
    st.global.v4.f32 [%rd14], {%f9, %f10, %f11, %f12};
"""
    outside = ".shared .align 16 .b8 tile[512];"
    run_by_hand(body, a.astype(np.float32), held_b, held_c, found, outside=outside)
    want = (c.astype(np.float64) + a @ b).astype(np.float32)
    np.testing.assert_array_equal(found, np.stack([want[place] for place in places], axis=1))


def test_a_product_does_not_see_the_bits_that_tf32_lacks():
    out = np.zeros(32, np.float32)
    body = f"""{OWN}
    mov.b32 %r1, 0f3F800FFF;
    mov.f32 %f1, 0f00000000;
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {{%f2,%f3,%f4,%f5}},
        {{%r1,%r1,%r1,%r1}}, {{%r1,%r1}}, {{%f1,%f1,%f1,%f1}};
    st.global.f32 [%rd10], %f2;
"""
    run_by_hand(body, out, out.copy())
    np.testing.assert_array_equal(out, 8)


COPY = f"""{OWN}{PLACES}
    setp.gt.u32 %p1, %r0, 15;
    shl.b32 %r1, %r0, 4;
    add.s32 %r2, %r19, %r1;
    cvt.u64.u32 %rd20, %r1;
    add.s64 %rd21, %rd0, %rd20;
    and.b32 %r3, %r0, 1;
    shl.b32 %r3, %r3, 4;
    @!%p1 cp.async.cg.shared.global [%r2], [%rd21], 16, %r3;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
"""


def test_copies_arrive_and_those_of_no_bytes_bring_zeros():
    x, y = numbers(64), np.zeros(64, np.float32)
    run_by_hand(COPY + TURN, x, y, threads=64, outside=TILE)
    want = np.where(np.arange(64) // 4 % 2 == 1, x, 0)
    np.testing.assert_array_equal(y, want[::-1])


def test_memory_of_a_thread_and_dynamic_memory_of_a_block():
    out = np.zeros(32, np.float32)
    body = f"""{OWN}
    .local .align 4 .b8 mine[8];
    mov.u32 %r1, mine;
    cvt.rn.f32.u32 %f1, %r0;
    st.local.f32 [%r1+4], %f1;
    mov.u32 %r2, rest;
    shl.b32 %r3, %r0, 2;
    add.s32 %r2, %r2, %r3;
    st.shared.f32 [%r2], %f1;
    ld.local.f32 %f2, [%r1+4];
    ld.shared.f32 %f3, [%r2];
    add.f32 %f4, %f2, %f3;
    st.global.f32 [%rd10], %f4;
"""
    outside = ".extern .shared .align 4 .b8 rest[];"
    run_by_hand(body, out, out.copy(), outside=outside, shared_bytes=128)
    np.testing.assert_array_equal(out, 2 * numbers(32))
    with pytest.raises(OutOfBounds, match="shared"):
        run_by_hand(body, out, out.copy(), outside=outside, shared_bytes=124)


def test_variables_have_the_alignment_that_they_have_in_a_row():
    """16 bytes at the start of a variable that declares 4 are right by luck of what lies before."""
    body = """
    mov.u32 %r1, second;
    mov.f32 %f1, 0f00000000;
    st.shared.v4.f32 [%r1], {%f1, %f1, %f1, %f1};
"""
    outside = ".shared .align 4 .b8 first[{}];\n.shared .align {} .b8 second[64];"
    run_by_hand(body, threads=1, outside=outside.format(16, 4))
    run_by_hand(body, threads=1, outside=outside.format(20, 16))
    with pytest.raises(Misaligned, match="16 bytes"):
        run_by_hand(body, threads=1, outside=outside.format(20, 4))


def test_a_wide_register_is_made_of_two_and_taken_apart():
    out = np.zeros((32, 2), np.uint32)
    body = """
    mov.u32 %r1, 7;
    mov.b64 %rd5, {%r0, %r1};
    add.s64 %rd6, %rd5, 1;
    mov.b64 {%r2, %r3}, %rd6;
    mul.wide.u32 %rd7, %r0, 8;
    add.s64 %rd8, %rd0, %rd7;
    st.global.v2.u32 [%rd8], {%r2, %r3};
"""
    run_by_hand(body, out)
    np.testing.assert_array_equal(out, np.stack([np.arange(32) + 1, np.full(32, 7)], axis=1))


# Memory of raw addresses


def test_raw_memory_of_the_process_is_memory_too():
    x = (ctypes.c_float * 64)(*range(64))
    y = (ctypes.c_float * 64)()
    addresses = [ctypes.addressof(x), ctypes.addressof(y)]
    memory = GlobalMemory.of_ranges([(address, 256) for address in addresses])
    parameters = np.array(addresses, np.uint64).tobytes()
    run(module(MIRROR, 2, TILE), "hand", PtxLaunch((1, 1, 1), (64, 1, 1), 0, parameters, memory))
    assert list(y) == list(range(63, -1, -1))
    short = GlobalMemory.of_ranges([(addresses[0], 256), (addresses[1], 252)])
    with pytest.raises(OutOfBounds, match=r"thread \(63, 0, 0\)"):
        run(module(MIRROR, 2, TILE), "hand", PtxLaunch((1, 1, 1), (64, 1, 1), 0, parameters, short))


def test_the_parameters_must_be_all_there():
    launch = PtxLaunch((1, 1, 1), (32, 1, 1), 0, bytes(8), GlobalMemory([]))
    with pytest.raises(ConfigError, match="takes 16 bytes of parameters, got 8"):
        run(module("", 2), "hand", launch)


# Faults


def fails(fault, said, body, *, threads=64, blocks=1):
    x, y = numbers(threads * blocks), np.zeros(threads * blocks, np.float32)
    with pytest.raises(fault, match=said) as found:
        run_by_hand(body, x, y, threads=threads, blocks=blocks, outside=TILE)
    return str(found.value)


def without(piece, new="", body=MIRROR):
    assert body.count(piece) == 1
    return body.replace(piece, new)


def test_a_fault_names_kernel_line_block_and_thread():
    body = f"{OWN}\n    setp.eq.s32 %p1, %r9, 70;\n    @%p1 st.global.f32 [%rd11+1024], %f1;\n"
    said = fails(OutOfBounds, "out of bounds", body, blocks=2)
    line = module(body, 2, TILE).splitlines().index("    @%p1 st.global.f32 [%rd11+1024], %f1;") + 1
    assert f"hand, line {line}: @%p1 st.global.f32 [%rd11+1024], %f1" in said
    assert "block (1, 0, 0), thread (6, 0, 0)" in said
    assert "1304 bytes after the start of array 1, which has 512" in said


@pytest.mark.parametrize("line", [
    "atom.global.add.f32 %f1, [%rd10], %f2;", "add.rm.f32 %f1, %f2, %f3;", "mov.b32 %r1, %nobody;",
    "fma.rn.f64 %fd1, %fd2, %fd3, %fd4;", "bar.sync 0, 32;", "add.sat.s32 %r1, %r2, %r3;",
    "ld.param.u32 %r1, [elsewhere];", "mul.s32 %r1, %r2, %r3;",
])  # fmt: skip
def test_what_has_no_meaning_here_is_refused_before_anything_runs(line):
    said = fails(UnknownInstruction, "OOC-000", f"{OWN} st.global.f32 [%rd11+4096], %f1;\n{line}")
    assert line[:-1] in said


def test_addresses():
    fails(OutOfBounds, r"which has 256", without("[%rd10]", "[%rd10+4]"))
    fails(OutOfBounds, "out of bounds", without("[%rd10]", "[%rd9]"))
    fails(OutOfBounds, "out of bounds", without("[%rd10]", "[%rd10+-4]"))
    fails(OutOfBounds, "out of bounds", f"{OWN} neg.s64 %rd12, %rd10; ld.global.f32 %f1, [%rd12];")
    fails(OutOfBounds, "shared memory", without("[%r20]", "[%r20+4]"))
    fails(OutOfBounds, "shared memory", without("[%r20]", "[%r20+-4]"))
    fails(OutOfBounds, "shared memory", without("[%r20]", "[%r20+65536]"))
    fails(OutOfBounds, "local memory", f"{OWN} st.local.f32 [%rd9], %f1;")
    fails(Misaligned, "4 bytes at no multiple of 4", without("[%rd11]", "[%rd11+2]"))
    fails(Misaligned, "no multiple of 8", f"{OWN} ld.global.u64 %rd20, [%rd10];")
    read_only = numbers(64)
    read_only.flags.writeable = False
    with pytest.raises(OutOfBounds, match="only read"):
        run_by_hand(MIRROR, numbers(64), read_only, threads=64, outside=TILE)


def test_barriers():
    fails(NotForAll, "not reached by all", without("bar.sync 0;", "@%p1 bar.sync 0;",
          without(f"{FILL}", f"setp.lt.u32 %p1, %r0, 63; {FILL}")))  # fmt: skip
    fails(NotForAll, r"thread \(32, 0, 0\)", f"{OWN} setp.lt.u32 %p1, %r0, 32; @%p1 bra B;\n"
          "bra.uni C;\nB: bar.sync 0;\nC: mov.u32 %r1, 0;")  # fmt: skip
    fails(NotForAll, "within a warp", f"{OWN} setp.lt.u32 %p1, %r0, 31; @%p1 bar.warp.sync -1;")
    shuffle = "@%p1 shfl.sync.idx.b32 %r1, %r0, 1, 31, -1;"
    fails(NotForAll, "within a warp", f"{OWN} setp.eq.u32 %p1, %r0, 2; {shuffle}")
    fails(NotForAll, "not reached by all", f"{OWN} setp.eq.u32 %p1, %r0, 2; @%p1 ret; bar.sync 0;")


def test_races_in_shared_memory():
    fails((Race, ReadOfUnwritten), "race|before", without("bar.sync 0;"))
    # filled again while slower threads still read
    twice = f"{OWN}{PLACES}{FILL} bar.sync 0; {TURN} {FILL} bar.sync 0; {TURN}"
    fails(Race, "writes what another read", twice)
    fails(Race, "0 bytes after the start of tile; the other is thread 63 of block number 0",
          without("[%r20]", "[%r19]"))  # fmt: skip
    # a barrier of the warp does not order threads of another
    fails((Race, ReadOfUnwritten), "race|before", without("bar.sync 0;", "bar.warp.sync -1;"))
    mirror(f"{OWN}{PLACES}{FILL} bar.sync 0; {TURN} bar.sync 0; {FILL} bar.sync 0; {TURN}")


def test_within_a_warp_its_barrier_is_enough_and_needed():
    near = without("sub.s32 %r21, 63, %r0;", "xor.b32 %r21, %r0, 31;")

    def flip(body):
        x, y = numbers(64), np.zeros(64, np.float32)
        run_by_hand(body, x, y, threads=64, outside=TILE)
        np.testing.assert_array_equal(y, x.reshape(2, 32)[:, ::-1].ravel())

    flip(without("bar.sync 0;", "bar.warp.sync -1;", near))
    with pytest.raises(Race, match="reads what another wrote"):
        flip(without("bar.sync 0;", "", near))


def test_races_in_global_memory():
    """Threads read what those of the same block, or of another, write."""
    back = f"{OWN} st.global.f32 [%rd11], %f1; {{}} ld.global.f32 %f2, [{{}}];"
    run_by_hand(back.format("bar.sync 0;", "%rd1"), numbers(64), numbers(64), threads=64)
    fails(Race, "reads what another wrote", back.format("", "%rd1"))
    fails(Race, "block number", back.format("bar.sync 0;", "%rd1"), threads=32, blocks=2)
    # all write the same bits to one place: one of them wins, no matter which
    run_by_hand(f"{OWN} st.global.f32 [%rd1], 0f3F800000;", numbers(64), numbers(64), threads=64)
    fails(Race, "writes what another writes",
          f"{OWN} cvt.rn.f32.u32 %f1, %r0; st.global.f32 [%rd1], %f1;")  # fmt: skip


def test_shared_memory_is_not_read_before_it_is_written():
    said = fails(ReadOfUnwritten, "read before it was written", without(FILL))
    assert "252 bytes after the start of tile" in said
    fails(OutOfBounds, "variable", without("[%r21]", "[%r21+8]"))


def test_copies_are_waited_for():
    def spoiled(piece, new=""):
        return without(piece, new, COPY + TURN)

    before = "before the copy was waited for"
    fails(ReadOfUnwritten, before, spoiled("cp.async.wait_group 0;"))
    fails(ReadOfUnwritten, before, spoiled("wait_group 0", "wait_group 1"))
    fails(ReadOfUnwritten, before, spoiled("cp.async.commit_group;"))
    fails(Race, "reads what another wrote", spoiled("bar.sync 0;"))
    fails(Misaligned, "16 bytes", spoiled("[%r2]", "[%r2+4]"))
    fails(OutOfBounds, "out of bounds", spoiled("[%rd21]", "[%rd21+16]"))


def test_a_kernel_that_does_not_end(monkeypatch):
    monkeypatch.setattr(ptx_machine, "MOST_PIECES", 100)
    fails(Endless, "does not end", "LOOP: add.s32 %r1, %r1, 1;\nbra.uni LOOP;")
