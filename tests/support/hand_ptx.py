"""Kernels written in PTX by hand, and arrays to run them on.

A body of a few lines shows what one instruction does, and needs no compiler; the interpreter runs
it and returns the arrays. Parameters are `p0`, `p1`, ..., the addresses of the arrays; %rd0, %rd1,
... hold them, and %r0 the thread's number. Read next: `tests/doubles/ptx_machine.py`.
"""

from __future__ import annotations

import numpy as np
from doubles.ptx_lanes import PtxLaunch
from doubles.ptx_machine import run
from doubles.ptx_memory import GlobalMemory

HEAD = """.version 8.0
.target sm_90
.address_size 64
{outside}
.visible .entry hand(
{parameters}
)
{{
    .reg .pred %p<40>;
    .reg .b16 %rs<40>;
    .reg .b32 %r<40>;
    .reg .f32 %f<40>;
    .reg .b64 %rd<40>;
    .reg .f64 %fd<8>;
{loads}
    mov.u32 %r0, %tid.x;
"""


def module(body: str, arrays: int, outside: str = "") -> str:
    """The text of a module with the kernel `hand`."""
    head = HEAD.format(
        outside=outside,
        parameters=",\n".join(f"    .param .u64 p{i}" for i in range(arrays)),
        loads="\n".join(f"    ld.param.u64 %rd{i}, [p{i}];" for i in range(arrays)),
    )
    return f"{head}{body}\n    ret;\n}}\n"


def run_by_hand(body: str, *arrays: np.ndarray, threads: int = 32, blocks: int = 1,
                outside: str = "", shared_bytes: int = 0) -> None:  # fmt: skip
    """Runs a body on `blocks` blocks of `threads` threads."""
    parameters = np.array([a.ctypes.data for a in arrays], np.uint64).tobytes()
    text = module(body, len(arrays), outside)
    grid, block = (blocks, 1, 1), (threads, 1, 1)
    memory = GlobalMemory.of_arrays(arrays)
    run(text, "hand", PtxLaunch(grid, block, shared_bytes, parameters, memory))


def apply(instruction: str, *sources: np.ndarray, result: str = "f4") -> np.ndarray:
    """What one instruction makes of arrays, element by element.

    Args:
        instruction: with `d` for the result and `a`, `b`, `c` for the sources: "add.f32 d, a, b".
        sources: of one length; bool for predicates.
        result: NumPy's type of the result.
    """
    count = len(sources[0])
    out = np.zeros(count, result)
    lines, names = [], {}
    for i, (name, source) in enumerate(zip("abc", sources, strict=False)):
        lines += _load(name, i, source)
        names[name] = f"%{name}"
    lines += [f".reg .b{8 * out.itemsize if result != '?' else 32} %d; .reg .pred %q;"]
    words = instruction.replace(",", " , ").split()
    target = "%q" if result == "?" else "%d"
    text = " ".join({"d": target, **names}.get(word, word) for word in words)
    lines.append(f"{text};")
    if result == "?":
        lines.append("selp.u32 %d, 1, 0, %q;")
    out_place = len(sources)
    store = np.zeros(count, "u4") if result == "?" else out
    lines += _address(out_place, store.itemsize)
    lines.append(f"st.global.b{8 * store.itemsize} [%at{out_place}], %d;")
    arrays = [np.ascontiguousarray(s.view("u1") if s.dtype == bool else s) for s in sources]
    run_by_hand("\n".join(lines), *arrays, store, threads=count)
    return store.astype(bool) if result == "?" else out


def _address(number: int, itemsize: int) -> list[str]:
    return [
        f".reg .b64 %at{number}; .reg .b64 %by{number};",
        f"mul.wide.u32 %by{number}, %r0, {itemsize};",
        f"add.s64 %at{number}, %rd{number}, %by{number};",
    ]


def _load(name: str, number: int, source: np.ndarray) -> list[str]:
    lines = _address(number, source.itemsize)
    if source.dtype == bool:
        lines += [
            f".reg .pred %{name}; .reg .b16 %w{name};",
            f"ld.global.u8 %w{name}, [%at{number}];",
            f"setp.ne.s16 %{name}, %w{name}, 0;",
        ]
    else:
        bits = 8 * source.itemsize
        width = max(bits, 16)
        lines += [f".reg .b{width} %{name};", f"ld.global.b{bits} %{name}, [%at{number}];"]
    return lines
