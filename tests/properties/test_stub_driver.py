"""Laws of the stub driver: it answers as the strict fake does, and keeps arguments as C lays them.

The stub is a library in C (`tests/doubles/stub/`); the rules are the fake's.
"""

from __future__ import annotations

import ctypes

import pytest
from doubles.stub_driver import Stub, why_no_stub
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.two_drivers import NAMES, TwoDrivers, check_alike

from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.errors import DriverError

pytestmark = pytest.mark.skipif(bool(why_no_stub()), reason=why_no_stub())

NUMBER = st.integers(0, 23)
ACTIONS = st.lists(st.tuples(st.sampled_from(NAMES), NUMBER, NUMBER, NUMBER), max_size=40)
#: What a mapping's life needs, so that random lists are not all refusals.
MAPPED = (
    ("reserve", 3, 0, 0), ("create", 1, 0, 0), ("map", 0, 0, 1), ("set_access", 0, 0, 1),
    ("create_stream", 0, 0, 0), ("create_event", 1, 0, 0), ("host_alloc", 1, 0, 0),
)  # fmt: skip
C_TYPES = {
    "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "f32": ctypes.c_float,
    "s64": ctypes.c_int64, "u64": ctypes.c_uint64, "f64": ctypes.c_double,
}  # fmt: skip


@pytest.fixture(scope="module")
def stub():
    return Stub()


@settings(max_examples=150)
@given(actions=ACTIONS)
@example(actions=[("fill", 0, 0, 1), ("unmap", 0, 0, 1)])
@example(actions=[("copy_in", 0, 0, 1), ("synchronize", 0, 0, 0), ("unmap", 0, 0, 1)])
def test_the_stub_answers_as_the_fake_does(stub, actions):
    check_alike(stub, [*MAPPED, *actions])


def test_a_stale_address_that_is_given_out_again_is_the_new_block_s(stub, monkeypatch):
    both = TwoDrivers(stub)
    both.do(("host_alloc", 3, 0, 0))
    ((again, _),) = both.known["host"]
    both.do(("host_free", 0, 0, 0))
    monkeypatch.setattr(both.fake, "host_alloc", lambda nbytes: again)
    both.do(("host_alloc", 1, 0, 0))
    assert [fake for fake, _ in both.known["host"]] == [again]


@given(kinds=st.lists(st.sampled_from(sorted(C_TYPES)), max_size=12), data=st.binary(min_size=96))
def test_a_launch_keeps_its_arguments_as_a_struct_of_c_holds_them(stub, kinds, data):
    stub.reset()
    stub.open()
    fields = [(f"p{i}", C_TYPES[kind]) for i, kind in enumerate(kinds)]
    struct = type("Arguments", (ctypes.Structure,), {"_fields_": fields})
    values = struct.from_buffer_copy(data.ljust(ctypes.sizeof(struct), b"\0"))
    given_one_by_one = [kind(getattr(values, name)) for name, kind in fields]
    pointers = (ctypes.c_void_p * len(fields))(*map(ctypes.addressof, given_one_by_one))
    launch(stub, ptx(kinds), pointers)
    (kept,) = stub.launches()
    for (name, kind), value in zip(fields, given_one_by_one, strict=True):
        at = getattr(struct, name).offset
        assert kept.arguments[at : at + ctypes.sizeof(kind)] == bytes(value)
    last = fields and getattr(struct, fields[-1][0])
    assert len(kept.arguments) == (last.offset + last.size if fields else 0)


@pytest.mark.parametrize("status", [*sorted(abi.LOST), 1, 2, 400, 600, 701, 712, 999])
def test_errors_that_last_are_those_of_the_table(stub, status):
    stub.reset()
    driver = stub.open()
    stub.fail(0, status, "cuMemGetInfo_v2")
    with pytest.raises(DriverError) as caught:
        driver.memory_info()
    assert caught.value.status == status
    lasts = status in abi.LOST - {3, 4, 201, 709}  # those say that there is no context at all
    assert stub.number("sticky") == (status if lasts else 0)
    if lasts:
        with pytest.raises(DriverError, match=rf"\({status}\)"):
            driver.create_stream()
    else:
        assert driver.create_stream()


def ptx(kinds: list[str]) -> bytes:
    parameters = ",\n".join(f"  .param .{kind} k_param_{i}" for i, kind in enumerate(kinds))
    head = ".version 8.0\n.target sm_75\n.address_size 64\n"
    return f"{head}.visible .entry k(\n{parameters}\n)\n{{\n ret;\n}}\n".encode()


def launch(stub: Stub, image: bytes, pointers: ctypes.Array) -> None:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver = stub.library
    assert driver.cuModuleLoadData(ctypes.byref(module), image) == 0, stub.why
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"k") == 0, stub.why
    grid = [ctypes.c_uint(n) for n in (2, 1, 1, 32, 1, 1, 0)]
    assert driver.cuLaunchKernel(function, *grid, None, pointers, None) == 0, stub.why
