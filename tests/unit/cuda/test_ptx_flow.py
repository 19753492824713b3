"""Reading PTX: statements, operands, parameters; and where ways meet again, by the definition."""

from __future__ import annotations

import random

import pytest
from doubles.ptx_text import (
    Address,
    Number,
    Register,
    Several,
    Symbol,
    entries,
    find_flow,
    post_dominators,
    read_program,
)
from hypothesis import given
from hypothesis import strategies as st
from support.hand_ptx import module

from ooctrain.errors import ConfigError

TEXT = """
.visible .shared .align 4 .b8 tile[512];
.extern .shared .align 16 .b8 rest[];
.visible .entry two(.param .u64 .ptr .align 1 x, .param .u8 flag,
    .param .f32 rate, .param .align 8 .b8 many[12], .param .u64 y)
.maxntid 256, 1, 1
{
    .reg .pred %p<3>;  .reg .b32 %r<9>, %other;
    ld.param.u64 %rd1, [many+4]; // a comment; with a semicolon
$L__BB0_1:
    /* begin
       inline */ { .reg .b32 t;
    @!%p1 ld.global.v2.f32 {%f1, %f2}, [%rd1+-8]; }
    shfl.sync.down.b32 %r1|%p2, %r2, 0x10, 31, -1;
    mov.f32 %f3, 0fBF800000;
    @%p2 bra $L__BB0_1;
    ret;
}
"""


def test_everything_of_a_text_is_read():
    program = read_program(TEXT, "two")
    assert program.parameters == {
        "x": (0, 8), "flag": (8, 1), "rate": (12, 4), "many": (16, 12), "y": (32, 8),
    }  # fmt: skip
    assert [(v.name, v.size_bytes, v.is_dynamic) for v in program.variables] == [
        ("tile", 512, False), ("rest", 0, True),
    ]  # fmt: skip
    assert program.width_bytes("%p2") == 1
    assert program.width_bytes("%r7") == program.width_bytes("%other") == 4
    assert program.width_bytes("t") == 4
    assert program.width_bytes("%rd1") == 0
    first, second, third, fourth, jump, _ = program.instructions
    assert first.operands == (Register("%rd1"), Address(Symbol("many"), 4))
    assert second.guard == Register("%p1", negated=True)
    assert second.suffixes == ("global", "v2", "f32")
    pair = Several((Register("%f1"), Register("%f2")))
    assert second.operands == (pair, Address(Register("%rd1"), -8))
    assert third.operands[0] == Several((Register("%r1"), Register("%p2")))
    assert third.operands[2:] == (Number(16), Number(31), Number(-1))
    assert fourth.operands[1] == Number(0xBF800000, is_float=True)
    assert jump.operands == (Symbol("$L__BB0_1"),)
    assert program.labels == {"$L__BB0_1": 1}
    assert TEXT.splitlines()[second.line - 1].strip().startswith("@!%p1")


def test_an_entry_that_is_not_there():
    assert entries(TEXT) == ["two"]
    with pytest.raises(ConfigError, match="no entry 'three'"):
        read_program(TEXT, "three")


def test_the_ways_from_a_branch_meet_behind_the_second():
    body = """
    setp.eq.s32 %p1, %r0, 0;
    @%p1 bra B;
    mov.u32 %r1, 1;
    bra.uni C;
B:  mov.u32 %r1, 2;
C:  mov.u32 %r2, 3;
"""
    flow = find_flow(read_program(module(body, 0), "hand"))
    assert [piece.target for piece in flow.pieces] == [2, 3, None, flow.end]
    assert flow.meets[0] == 3
    assert flow.meets[3] == flow.end


def reaches_end(ways, start, without=None):
    seen, stack = set(), [start]
    while stack:
        node = stack.pop()
        if node in seen or node == without:
            continue
        seen.add(node)
        if node == len(ways):
            return True
        stack += ways[node]
    return False


def nearest_by_definition(ways, node):
    """Of all nodes that every way from `node` to the end passes, the one that comes first."""
    end = len(ways)
    if not reaches_end(ways, node):
        return end
    passed = [d for d in range(end) if d != node and not reaches_end(ways, node, d)] + [end]
    return next(
        d for d in passed
        if all(d == other or not reaches_end(ways, d, other) or other == end for other in passed)
    )  # fmt: skip


@given(st.integers(1, 9), st.integers(0, 2**32))
def test_the_meeting_place_is_the_nearest_node_on_every_way(count, seed):
    drawn = random.Random(seed)
    ways = [
        tuple(drawn.randrange(count + 1) for _ in range(drawn.choice([1, 2, 2])))
        for _ in range(count)
    ]
    found = post_dominators(ways)
    for node in range(count):
        assert found[node] == nearest_by_definition(ways, node), (ways, node)
