"""Calls that this library lacks, written out in PyTorch's own words.

PyTorch defines most of its operations by others: `tile` by `repeat`, an einsum by permutations and
products of matrices. And what is under `torch.no_grad()` or in a disabled autocast is a list within
the list. Both are written out here, in place, as far as it leads to calls that are known. A call
whose definition leads elsewhere stays as it is: it is refused under the name that its user knows.
Read next: `exported.py`, which reads the list.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from ooctrain.interop.exported import ASSERTIONS, STANDS_FOR, operation_of, without_change

_UNDER_NO_GRAD, _IN_AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"
#: Definitions of definitions; PyTorch has no chain as long.
_DEEPEST = 8


def write_out(exported: Any, known: Container[str]) -> None:
    """Writes the list's inner lists and unknown calls out.

    Args:
        exported: a `torch.export.ExportedProgram`; its list is changed.
        known: names of operations, as `operation_of` has them.
    """
    writer = _Writer(exported.graph_module, known)
    for node in list(exported.graph.nodes):
        writer.write_out(node)


class _Writer:
    def __init__(self, module: Any, known: Container[str]):
        self._module, self._graph, self._known = module, module.graph, known

    def write_out(self, node: Any) -> None:
        """Writes an inner list, or a definition, where an unknown call was."""
        if node.op != "call_function" or self._has(node):
            return
        if operation_of(node) in (_UNDER_NO_GRAD, _IN_AUTOCAST):
            self._inline(node)
        elif not _is_constant(node) and (definition := self._definition(node, 0)) is not None:
            for each in definition.nodes:
                each.meta[STANDS_FOR] = node.meta.get(STANDS_FOR, operation_of(node))
            self._replace(node, definition, node.all_input_nodes)

    def _inline(self, node: Any) -> None:
        """The calls of an inner list, unless they are computed in another type."""
        place = next(i for i, value in enumerate(node.args) if _is_list(value))
        settings, (name, *inputs) = node.args[:place], node.args[place:]
        under_no_grad = operation_of(node) == _UNDER_NO_GRAD and settings == (False,)
        if operation_of(node) == _IN_AUTOCAST and settings[2]:
            return
        inner = getattr(self._module, name.target).graph
        results = self._replace(node, inner, inputs)
        if under_no_grad:
            self._cut_off(results)
        if not name.users:
            self._graph.erase_node(name)

    def _cut_off(self, results: Sequence[Any]) -> None:
        """Gradients do not go on into what was computed under `no_grad`."""
        import torch  # the user's own

        for result in results:
            with self._graph.inserting_after(result):
                cut = self._graph.call_function(torch.ops.aten.detach.default, (result,))
            cut.meta = dict(result.meta)
            result.replace_all_uses_with(cut, lambda user, cut=cut: user is not cut)

    def _replace(self, node: Any, graph: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        """Copies a list's calls to where a node is; returns what its results are now."""
        before = set(self._graph.nodes)
        holes = (n for n in graph.nodes if n.op == "placeholder")
        with self._graph.inserting_before(node):
            results = self._graph.graph_copy(graph, dict(zip(holes, inputs, strict=True)))
        made = [n for n in self._graph.nodes if n not in before]
        for each in made:
            each.meta.setdefault("nn_module_stack", node.meta.get("nn_module_stack"))
        if isinstance(results, tuple | list):
            for user in list(node.users):  # one that takes an item each
                user.replace_all_uses_with(results[user.args[1]])
                self._graph.erase_node(user)
        else:
            node.replace_all_uses_with(results)
            results = [results]
        self._graph.erase_node(node)
        for each in made:
            self.write_out(each)
        return results

    def _definition(self, node: Any, depth: int) -> Any:
        """A list of known calls that computes what a node does; None: PyTorch has none."""
        function = _function_of(node.target)
        if function is None or depth > _DEEPEST:
            return None
        graph = _list_of(function, node)
        if graph is None:
            return None
        for each in graph.nodes:
            if each.op == "get_attr":  # a tensor of the definition's own
                return None
            if each.op == "call_function" and not self._is_known(each, depth):
                return None
        return graph

    def _is_known(self, node: Any, depth: int) -> bool:
        if self._has(node) or operation_of(node).startswith(ASSERTIONS):
            return True
        return _is_constant(node) or self._definition(node, depth + 1) is not None

    def _has(self, node: Any) -> bool:
        return without_change(operation_of(node)) in self._known


def _is_list(value: Any) -> bool:
    return getattr(value, "op", None) == "get_attr"


def _is_constant(node: Any) -> bool:
    """Whether it is computed of no tensors, or of constants alone."""
    return node.op == "call_function" and all(map(_is_constant, node.all_input_nodes))


def _function_of(operation: Any) -> Callable[..., Any] | None:
    """PyTorch's definition of an operation by others."""
    import torch  # the user's own
    from torch._decomp import decomposition_table  # the user's own

    if not isinstance(operation, torch._ops.OpOverload) or operation._schema.is_mutable:
        return None
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return None
    return operation.decompose if operation._can_decompose() else decomposition_table.get(operation)


def _list_of(function: Callable[..., Any], node: Any) -> Any:
    """The calls of a function of a node's arguments; None where it cannot be followed."""
    from torch.fx.experimental.proxy_tensor import make_fx  # the user's own
    from torch.utils._pytree import tree_flatten, tree_unflatten  # the user's own

    leaves, form = tree_flatten((node.args, dict(node.kwargs)))
    places: dict[Any, list[int]] = {}
    for place, leaf in enumerate(leaves):
        if hasattr(leaf, "users"):
            places.setdefault(leaf, []).append(place)

    def of_inputs(*inputs: Any) -> Any:
        for each, value in zip(places.values(), inputs, strict=True):
            for place in each:
                leaves[place] = value
        args, options = tree_unflatten(leaves, form)
        return function(*args, **options)

    try:
        graph = make_fx(of_inputs)(*(leaf.meta["val"] for leaf in places)).graph
    except Exception:  # whatever a definition asks of its arguments
        return None
    for each in reversed(list(graph.nodes)):  # such as the places of a maximum, which nothing reads
        if each.op == "call_function" and not each.users and not _changes_something(each):
            graph.erase_node(each)
    return graph


def _changes_something(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
