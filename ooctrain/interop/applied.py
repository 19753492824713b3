"""A plan applied to a training loop of PyTorch: its swaps and its recomputations.

    plan = oc.plan(oc.trace(oc.from_torch(net, x.shape), x.shape), "25%", rewrites=())
    with oc.interop.torch.applied(plan, net) as report:
        loss = criterion(net(x), y)
        loss.backward()

Within the block the network runs call by call, as `torch.export` has listed it, with PyTorch's own
operations on its own parameters. What autograd saves for backward is looked up in the plan under
the name of the call that made it: what the plan keeps stays, what it swaps is copied to the host
and fetched when backward asks for it, and what it computes again is let go and computed again from
what is there. So gradients, buffers and random numbers have the bits of the loop without a plan.
What is not known for certain (a view, a tensor that is changed later) stays. Read next:
`saved_tensors.py`, one forward pass; `graph.py`, which knows the names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ooctrain.errors import ConfigError, PlanMismatch
from ooctrain.interop.exported import VIEWS, operation_of
from ooctrain.interop.importing import exported_list, from_torch
from ooctrain.interop.saved_tensors import ForwardPass
from ooctrain.sched.instructions import Run, SwapOut
from ooctrain.sched.schedule import Plan
from ooctrain.units import format_bytes

if TYPE_CHECKING:
    import torch


@dataclass
class Report:
    """What a plan did in the last step of a loop.

    Attributes:
        planned_bytes: of tensors of the forward pass that the plan swaps.
        moved_bytes: that were copied to the host.
        runs_again: calls that were computed again.
        not_matched: activations that the plan swaps or computes again, and that stayed, or that
            autograd does not save. (Parameters and statistics always stay.)
    """

    planned_bytes: int
    moved_bytes: int = 0
    runs_again: int = 0
    not_matched: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"planned {format_bytes(self.planned_bytes)}, moved {format_bytes(self.moved_bytes)}, "
            f"{self.runs_again} calls computed again; "
            f"not matched: {', '.join(self.not_matched) or 'none'}"
        )


@contextmanager
def applied(plan: Plan, net: torch.nn.Module) -> Iterator[Report]:
    """Within the block, what `net(x)` leaves for backward is what the plan keeps.

    Args:
        plan: of a trace of `from_torch(net, shape)`. Without rewrites (`rewrites=()`) it has a name
            for each call of PyTorch; with them, for fewer.
        net: in the mode in which it is trained, on the CPU or on a GPU.

    Raises:
        PlanMismatch: a plan of another network.
        ConfigError: as `from_torch`; in a call of the network, a batch of another shape.

    Cost: `torch.export` three times (seconds).
    """
    calls = PlannedCalls(plan, net)
    net.forward = calls.forward
    try:
        yield calls.report
    finally:
        del net.forward


class PlannedCalls:
    """A network's list of calls, with what a plan wants of their results.

    Attributes:
        nodes: PyTorch's list.
        swapped: calls whose result is swapped.
        regions: runs of calls that are computed again together.
        last_reads: {number of a call: results that no later one reads}.
    """

    def __init__(self, plan: Plan, net: torch.nn.Module):
        (shape,) = (v.shape for v in plan.trace.variables if v.name == "input")
        self._net, self._shape = net, tuple(shape)
        model = from_torch(_on_cpu(net), self._shape)
        self._exported = exported_list(net, self._shape, net.training)
        self.nodes = list(self._exported.graph.nodes)
        names = model.variable_names(self._shape[0])
        known = {variable.name: variable for variable in plan.trace.variables}
        if known.keys().isdisjoint(names.values()):
            raise PlanMismatch(
                "the plan is of another network",
                fix="oc.plan(oc.trace(oc.from_torch(net, shape), shape), ..., rewrites=())",
            )
        #: {call: the variable that its result is}
        self.names = {n: names[n.name] for n in self.nodes if names.get(n.name) in known}
        moved, again = moved_and_again(plan)
        self.swapped = {node for node, name in self.names.items() if name in moved}
        kinds = {name for name, variable in known.items() if variable.kind == "activation"}
        self._wanted = (moved | again) & kinds
        self.regions = self._regions({n for n, name in self.names.items() if name in again - moved})
        self.last_reads = self._last_reads()
        self.report = Report(sum(known[self.names[node]].nbytes for node in self.swapped))

    def forward(self, x: torch.Tensor) -> Any:
        """One forward pass of the network."""
        if tuple(x.shape) != self._shape:
            raise ConfigError(
                "the plan is for another batch", code="OOC-106",
                numbers=f"got {tuple(x.shape)}, planned for {self._shape}",
                fix="a plan for each shape; DataLoader(drop_last=True)",
            )  # fmt: skip
        this_pass = ForwardPass(self, x.device)
        output = this_pass.run(x)
        matched = {self.names[node] for node in this_pass.matched}
        self.report.not_matched = sorted(self._wanted - matched)
        return output

    def given(self, x: torch.Tensor) -> dict[Any, torch.Tensor]:
        """{node: the input, parameter, buffer, constant or inner list that it stands for}."""
        specs = {spec.arg.name: spec for spec in self._exported.graph_signature.input_specs}
        found = {
            node: self._value(specs[node.name], x)
            for node in self.nodes if node.op == "placeholder"
        }  # fmt: skip
        for node in self.nodes:
            if node.op == "get_attr":
                found[node] = getattr(self._exported.graph_module, node.target)
        return found

    def _value(self, spec: Any, x: torch.Tensor) -> Any:
        if spec.kind.name == "USER_INPUT":
            return x
        if spec.target in self._exported.constants:
            return self._exported.constants[spec.target]
        path, _, name = spec.target.rpartition(".")
        return getattr(self._net.get_submodule(path), name)

    def result(self, leaves: list[Any]) -> Any:
        """The network's output, in its own structure."""
        from torch.utils import _pytree  # the user's own

        return _pytree.tree_unflatten(leaves, self._exported.call_spec.out_spec)

    # What can be computed again

    def _regions(self, wanted: set[Any]) -> list[list[Any]]:
        """Runs of calls that can be computed again from what is there.

        Memory that is changed in place must have been made, and changed, within one region only:
        then a region makes it anew, and no other tensor is touched.
        """
        memory: dict[Any, Any] = {}  # {result: the first one in its memory}
        changed: dict[Any, set[Any]] = {}  # {first one: calls that change it in place}
        for node in self.nodes:
            name, sources = operation_of(node).partition(".")[0], node.all_input_nodes
            in_place = node.op == "call_function" and name.endswith("_")
            shares = bool(sources) and (in_place or name in VIEWS or name == "dropout")
            memory[node] = memory[sources[0]] if shares else node
            if in_place:
                changed.setdefault(memory[node], set()).add(node)

        def can_run_again(node: Any, region_of: dict[Any, int]) -> bool:
            touched = {memory[each] for each in (node, *node.all_input_nodes)}
            return all(
                first in region_of
                and {region_of.get(change) for change in changed[first]} == {region_of[first]}
                for first in touched if first in changed
            )  # fmt: skip

        while True:
            regions = self._runs_of(wanted)
            region_of = {node: i for i, region in enumerate(regions) for node in region}
            kept = {node for node in wanted if can_run_again(node, region_of)}
            if kept == wanted:
                return regions
            wanted = kept

    def _runs_of(self, wanted: set[Any]) -> list[list[Any]]:
        """The calls among these that follow each other; counting a batch is no call between."""
        found: list[list[Any]] = [[]]
        for node in self.nodes:
            if node in wanted:
                found[-1].append(node)
            elif found[-1] and not _counts(node):
                found.append([])
        return [region for region in found if region]

    def _last_reads(self) -> dict[int, list[Any]]:
        """A region's inputs are there until its end."""
        number = {node: i for i, node in enumerate(self.nodes)}
        end = {node: number[region[-1]] for region in self.regions for node in region}
        found: dict[int, list[Any]] = {}
        for node in self.nodes:
            last = max((end.get(user, number[user]) for user in node.users), default=number[node])
            found.setdefault(last, []).append(node)
        return found


def moved_and_again(plan: Plan) -> tuple[set[str], set[str]]:
    """Names of the variables that a plan swaps out, and of the results of calls of the forward pass
    that it runs more than once."""
    variables, calls = plan.trace.variables, plan.trace.calls
    runs = Counter(i.call for i in plan.schedule if isinstance(i, Run))
    again = [call for call, n in runs.items() if n > 1 and calls[call].phase == "forward"]
    return (
        {variables[i.var].name for i in plan.schedule if isinstance(i, SwapOut)},
        {variables[out].name for call in again for out in calls[call].outs},
    )


def _on_cpu(net: torch.nn.Module) -> torch.nn.Module:
    """The network itself, or a copy of one that is on a GPU."""
    return net if all(p.device.type == "cpu" for p in net.parameters()) else deepcopy(net).cpu()


def _counts(node: Any) -> bool:
    """Whether a call only counts a batch."""
    return operation_of(node) == "add_.Tensor" and node.args[0].op == "placeholder"
