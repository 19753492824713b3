"""One forward pass of PyTorch, and what it leaves for backward.

Each tensor that autograd saves goes through a hook, which cannot know yet which call has made it:
an operation may save its own result. So the hook hands out a `Saved`, and after each call the new
ones are *settled*: the tensor stays, or a copy on the host stands for it, or a *region* of calls
that makes it again. Copies and regions live as long as autograd keeps a `Saved` that refers to
them, so nothing is left behind when a graph is freed, whatever was raised. Read next: `applied.py`,
which knows what the plan wants.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ooctrain.interop.exported import operation_of
from ooctrain.interop.graph import changed

if TYPE_CHECKING:
    import torch

#: Where batch norm has its running statistics among its arguments.
_STATISTICS_AT = (3, 4)


class PlannedList(Protocol):
    """A network's list of calls, and what a plan wants of it: `applied.PlannedCalls`."""

    nodes: list[Any]
    swapped: set[Any]
    regions: list[list[Any]]
    last_reads: dict[int, list[Any]]
    report: Any

    def given(self, x: torch.Tensor) -> dict[Any, torch.Tensor]:
        """What its placeholders stand for."""

    def result(self, leaves: list[Any]) -> Any:
        """The output in its own structure."""


class TensorSource(Protocol):
    """What a tensor can be fetched from."""

    def fetch(self) -> torch.Tensor:
        """The tensor, on its own device."""


class Saved:
    """What stands for a tensor that autograd saves: itself, or a source of it."""

    __slots__ = ("_source", "tensor")

    def __init__(self, tensor: torch.Tensor):
        self.tensor: torch.Tensor | None = tensor
        self._source: TensorSource | None = None

    def settle(self, source: TensorSource) -> None:
        """From now on the tensor comes from there."""
        self.tensor, self._source = None, source

    def fetch(self) -> torch.Tensor:
        """What backward reads."""
        if self._source is not None:
            return self._source.fetch()
        assert self.tensor is not None, "it is one of the two"
        return self.tensor


class HostCopy:
    """A tensor on the host. On a GPU it is pinned, copied on a stream of its own, and fetched one
    ahead of where backward is."""

    def __init__(self, tensor: torch.Tensor, before: HostCopy | None):
        import torch  # the user's own

        self._device = tensor.device
        self._fetched: torch.Tensor | None = None
        self._before = weakref.ref(before) if before is not None else None
        self._stream = _copy_stream(tensor.device) if tensor.is_cuda else None
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        if self._stream is None:
            self._host.copy_(tensor)
            return
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self._stream):
            self._host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)

    def fetch(self) -> torch.Tensor:
        import torch  # the user's own

        if self._stream is None:
            return self._host
        self._begin()
        here = torch.cuda.current_stream(self._device)
        here.wait_stream(self._stream)
        found, self._fetched = self._fetched, None
        assert found is not None, "it was begun"
        found.record_stream(here)
        before = self._before() if self._before is not None else None
        if before is not None:
            before._begin()  # backward reads what was saved before this next
        return found

    def _begin(self) -> None:
        """Starts the copy back, unless it is on its way."""
        import torch  # the user's own

        if self._fetched is None:
            with torch.cuda.stream(self._stream):
                self._fetched = self._host.to(self._device, non_blocking=True)


class GeneratorStates:
    """The states of the generators that a call may draw from: the CPU's and its device's."""

    def __init__(self, device: torch.device):
        import torch  # the user's own

        self._device = device
        self._cpu = torch.get_rng_state()
        self._own = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def set(self) -> None:
        """They are as they were."""
        import torch  # the user's own

        torch.set_rng_state(self._cpu)
        if self._own is not None:
            torch.cuda.set_rng_state(self._own, self._device)


class Autocast:
    """In which types calls compute; backward is usually outside of the block that says so."""

    def __init__(self, device: torch.device):
        import torch  # the user's own

        self._types = {
            kind: (torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in dict.fromkeys(("cpu", device.type))
        }

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within the block it is as it was."""
        import torch  # the user's own

        with ExitStack() as stack:
            for kind, settings in self._types.items():
                stack.enter_context(torch.autocast(kind, *settings))
            yield


class RerunRegion:
    """Calls that are computed again together, from what they read of others.

    Attributes:
        nodes: the calls.
        inputs: {what they read of others: where it comes from, or the value}.
        generators: {a call that draws: as they were before it}.
    """

    def __init__(self, this_pass: ForwardPass, nodes: list[Any]):
        self.nodes, self._pass = nodes, this_pass
        self.inputs: dict[Any, Any] = {}
        self.generators: dict[Any, GeneratorStates] = {}
        self._values: dict[Any, torch.Tensor] = {}

    def value(self, node: Any) -> torch.Tensor:
        """The result of a call. All results are computed, and stay until another region's are."""
        if node not in self._values:
            self._values = self._computed()
            self._pass.let_go_but(self)
        return self._values[node]

    def forget(self) -> None:
        """Lets its values go; they can be computed again."""
        self._values = {}

    def _computed(self) -> dict[Any, torch.Tensor]:
        import torch  # the user's own

        values: dict[Any, Any] = {}

        def given(value: Any) -> Any:
            if not hasattr(value, "users"):
                return value
            if value not in values:
                found = self.inputs[value]
                values[value] = found.fetch() if hasattr(found, "fetch") else found
            return values[value]

        before = GeneratorStates(self._pass.device)
        try:
            with torch.no_grad(), self._pass.autocast.again():
                for node in self.nodes:
                    args, options = changed((node.args, dict(node.kwargs)), given)
                    if node in self.generators:
                        self.generators[node].set()
                    if operation_of(node) == "batch_norm.default":  # statistics move but once
                        args = tuple(
                            a.clone() if i in _STATISTICS_AT and a is not None else a
                            for i, a in enumerate(args)
                        )
                    values[node] = node.target(*args, **options)
        finally:
            before.set()
        self._pass.calls.report.runs_again += len(self.nodes)
        return values


class OfRegion:
    """One result of a region."""

    def __init__(self, region: RerunRegion, node: Any):
        self._region, self._node = region, node

    def fetch(self) -> torch.Tensor:
        return self._region.value(self._node)


class ForwardPass:
    """One forward pass.

    Attributes:
        calls: what is run.
        device: that of the batch.
        autocast: in which types it computes.
        matched: calls whose result autograd has saved, and that did not stay.
    """

    def __init__(self, calls: PlannedList, device: torch.device):
        self.calls, self.device, self.autocast = calls, device, Autocast(device)
        self.matched: set[Any] = set()
        self._values: dict[Any, Any] = {}
        self._made: dict[int, Any] = {}  # {address of a storage: the last call that has written it}
        self._fresh: list[Saved] = []
        self._copies: weakref.WeakValueDictionary[Any, HostCopy] = weakref.WeakValueDictionary()
        self._last_copy: HostCopy | None = None
        self._regions = {
            node: region
            for region in (RerunRegion(self, nodes) for nodes in calls.regions)
            for node in region.nodes
        }
        self._computed: weakref.ref[RerunRegion] | None = None
        calls.report.moved_bytes = calls.report.runs_again = 0

    def run(self, x: torch.Tensor) -> Any:
        """The network's output."""
        import torch  # the user's own

        output: Any = None
        self._values = self.calls.given(x)
        with torch.autograd.graph.saved_tensors_hooks(self._pack, Saved.fetch):
            for number, node in enumerate(self.calls.nodes):
                if node.op == "output":
                    output = [self._values.get(n, n) for n in node.args[0]]
                elif node.op == "call_function":
                    self._values[node] = self._run(node)
                for read in self.calls.last_reads.get(number, ()):
                    self._values.pop(read, None)
        self._values, self._regions, self._made, self._last_copy = {}, {}, {}, None
        return self.calls.result(output)

    def let_go_but(self, region: RerunRegion) -> None:
        """Of all regions only this one keeps its values."""
        other = self._computed() if self._computed is not None else None
        if other is not None and other is not region:
            other.forget()
        self._computed = weakref.ref(region)

    def _run(self, node: Any) -> Any:
        import torch  # the user's own

        region = self._regions.get(node)
        if region is not None:
            self._note_inputs(node, region)
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                region.generators[node] = GeneratorStates(self.device)
        args, options = changed((node.args, dict(node.kwargs)), self._given)
        made = node.target(*args, **options)
        if isinstance(made, torch.Tensor):
            self._made[made.untyped_storage().data_ptr()] = node
            self._values[node] = made
        for saved in self._fresh:
            self._settle(saved)
        self._fresh.clear()
        return made

    def _given(self, value: Any) -> Any:
        return self._values[value] if hasattr(value, "users") else value

    def _pack(self, tensor: torch.Tensor) -> Saved:
        saved = Saved(tensor)
        self._fresh.append(saved)
        return saved

    def _settle(self, saved: Saved) -> None:
        """Decides what becomes of a saved tensor."""
        tensor = saved.tensor
        assert tensor is not None, "it is new"
        node = self._made.get(tensor.untyped_storage().data_ptr())
        made = self._values.get(node)
        if made is None or (tensor.shape, tensor.stride()) != (made.shape, made.stride()):
            return  # not a call's result, or a view of one
        source = self._source(node, tensor)
        if source is not None:
            self.matched.add(node)
            saved.settle(source)

    def _source(self, node: Any, tensor: torch.Tensor) -> TensorSource | None:
        """What the plan wants in place of a call's result; None: it stays."""
        if node in self._regions:
            return OfRegion(self._regions[node], node)
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        if node not in self.calls.swapped or not whole:
            return None
        key = node, tensor._version
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = HostCopy(tensor.detach(), self._last_copy)
            self._last_copy = copy
            self.calls.report.moved_bytes += tensor.numel() * tensor.element_size()
        return copy

    def _note_inputs(self, node: Any, region: RerunRegion) -> None:
        """Where a region will find what this call of it reads of others."""
        import torch  # the user's own

        for source in node.all_input_nodes:
            if source in region.nodes or source in region.inputs:
                continue
            value = self._values[source]
            if isinstance(value, torch.Tensor) and source.op == "call_function":
                value = self._source(source, value) or value.detach()
            region.inputs[source] = value


def _copy_stream(device: torch.device) -> Any:
    """A stream for copies, beside that of calls."""
    import torch  # the user's own

    return torch.cuda.Stream(device)
