"""How Numba compiles kernels: its own steps, less what no kernel needs.

Numba makes three things of a function: LLVM code that others can have inlined, machine code, and an
entry that takes Python's objects apart. An `inner` function is only ever compiled into others: it
stays LLVM code, which is optimised once, within the kernel (a fifth of the time that all kernels
take). A range kernel is called by compiled code: in place of Numba's entry it gets one that reads
its arguments from memory (`entry.py`), a tenth of the instructions. Source: Numba's manual,
"Customizing the Compiler". Read next: `kernel_jit.py`, `entry.py`.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

from ooctrain.layers.kernels.cpu.runtime.entry import entry_name, write_entry


class _Library(JITCodeLibrary):
    """LLVM code that is optimised once, when all that it calls has been added."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Not each function alone, before."""
        ll_module.data_layout = self._codegen._data_layout


class InnerLibrary(_Library):
    """LLVM code that is linked into that of callers, and never made machine code by itself."""

    def finalize(self) -> None:
        """Adds what it calls."""
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(NativeLowering):
    """From typed code to a library of LLVM code."""

    _name = "ooctrain_inner_lowering"

    def run_pass(self, state: Any) -> bool:
        """As Numba's, without machine code. Callers find the function by its entry for Python, so
        it gets one, which leads nowhere."""
        codegen, name = state.targetctx.codegen(), state.func_id.func_qualname
        library = state.library = InnerLibrary(codegen, name)
        state.flags.no_compile = True
        super().run_pass(state)
        library.finalize()
        described, env = state["cr"].fndesc, state["cr"].env
        nowhere = _dynfunc.make_function(
            described.lookup_module(), name.rpartition(".")[-1], "", 0, env, (library,)
        )
        state.targetctx.insert_user_function(nowhere, described, [library])
        state["cr"] = state["cr"]._replace(cfunc=nowhere)
        return True


class _LowerKernel(Lower):
    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        """In its place: the entry that loops call."""
        call_conv, described = self.context.call_conv, self.fndesc
        module = self.library.create_ir_module(entry_name(described))
        kernel_type = call_conv.get_function_type(described.restype, described.argtypes)
        write_entry(module, entry_name(described), kernel_type)
        self.library.add_ir_module(module)


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(NativeLowering):
    """From typed code to machine code, with an entry for loops."""

    _name = "ooctrain_kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """As Numba's."""
        codegen, name = state.targetctx.codegen(), state.func_id.func_qualname
        state.library = _Library(codegen, name)
        state.library.enable_object_caching()
        return super().run_pass(state)

    @property
    def lowering_class(self) -> type[Lower]:
        """What writes LLVM code."""
        return _LowerKernel


class InnerCompiler(Compiler):
    """Compiles a function for callers that are compiled."""

    lowering: type[NativeLowering] = InnerLowering

    def define_pipelines(self) -> list[Any]:
        """Numba's steps, with another last one."""
        (pipeline,) = super().define_pipelines()
        pipeline.passes = [
            (self.lowering if step is NativeLowering else step, what)
            for step, what in pipeline.passes
        ]
        return [pipeline]


class KernelCompiler(InnerCompiler):
    """Compiles a range kernel."""

    lowering = KernelLowering
