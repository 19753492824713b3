"""Your own operation: a shape rule, a forward and a backward in NumPy.

    class Softplus(oc.Op):
        def shape(self, x):              # shapes in, shape out
            return x

        def forward(self, x):
            return np.logaddexp(x, 0)

        def backward(self, dy, x):       # first the gradients, then what it needs of forward()
            return dy / (1 + np.exp(-x))

    y = Softplus()(x)

Arrays come and go in logical layout, (N, C, H, W). The names of `backward`'s arguments say what is
kept for it: an argument of `forward` ("x"), or an output ("y"; "y0", "y1" where there are several).
A name that could mean both, such as the "y" of `forward(self, x, y)`, means the argument. So the
tape, the planners and the executor know what this operation saves, as for all others. Attributes
that set it up belong into a frozen dataclass or into `__init__`. Check it with
`oc.testing.check_op(Softplus(), x)`. Read next: `step/op.py` for the tile rule (`window`) and the
cost (`flops`), which may be given as well.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ooctrain.engine.tensor import Tensor, current_tape
from ooctrain.errors import AutogradError, ConfigError
from ooctrain.layers.combine import Constant
from ooctrain.step import op as base
from ooctrain.step.op import Spec, require, to_logical
from ooctrain.step.trace import Kind
from ooctrain.step.user_values import as_numbers


class Op(base.Op):
    """Base of a user's own operation. Subclasses give `shape`, `forward` and, to be trained,
    `backward`.

    Memory that `forward` or `backward` allocate on the way is not part of a plan; state it with
    `workspace_bytes` if it is large. The same arguments must give the same bits. To run on a GPU it
    needs a method `cuda(launcher, ins, outs, workspace, scalars)`, which queues what `cpu` does
    (`layers/kernels/kernel_table.py` says with what arrays), and for its workspace
    `cuda_workspace_bytes(ins, outs)`.
    """

    #: arguments of `backward` that are gradients: as many as there are outputs
    outputs: ClassVar[int] = 1
    #: its code may raise at any time
    may_fail = True

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        kind: Kind = "activation"
        cls.out_names = tuple(_output_names(cls.outputs, "out"))
        cls.out_kinds = (kind,) * cls.outputs

    def shape(self, *shapes: tuple[int, ...]) -> Any:
        """Shape of the output (several: a tuple of shapes) from those of the inputs."""
        raise ConfigError(
            f"{type(self).__name__} lacks shape()", code="OOC-108",
            fix="def shape(self, x): return x, if the output has the shape of the input",
        )  # fmt: skip

    def forward(self, *arrays: np.ndarray) -> Any:
        """The output (several: a tuple) for logical arrays."""
        raise ConfigError(
            f"{type(self).__name__} lacks forward()", code="OOC-108",
            fix="def forward(self, x): arrays in, array out",
        )  # fmt: skip

    def backward(self, *arrays: np.ndarray) -> Any:
        """Gradients of the inputs (None for one that has none), from those of the outputs."""
        raise AutogradError(
            f"{type(self).__name__} has no backward()", fix="define it to train through it"
        )

    def __call__(self, *tensors: Any) -> Any:
        """Records one call; returns its output, or a tuple of several."""
        outs = current_tape().call(self, tensors)
        return outs[0] if self.outputs == 1 else outs

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        shapes = self.shape(*(spec.shape for spec in ins))
        several = (shapes,) if self.outputs == 1 else shapes
        fits = isinstance(several, tuple | list) and all(map(_is_shape, several))
        require(
            fits and len(several) == self.outputs,
            f"{self.name}: shape() gives {shapes!r}, not "
            + ("a shape" if self.outputs == 1 else f"{self.outputs} shapes"),
            *ins, fix="a tuple of whole numbers for each output, such as (2, 3)",
        )  # fmt: skip
        return tuple(Spec(tuple(int(n) for n in shape)) for shape in several)

    def reference(self, *arrays, scalars):
        return _several(self.forward(*arrays))

    def cpu(self, pool, ins, outs, workspace, scalars):
        """Writes `outs` from `ins`, physical arrays."""
        _run(self.forward, ins, outs, self.name)

    def workspace_bytes(self, ins: Sequence[Spec], outs: Sequence[Spec], threads: int) -> int:
        """Scratch of `cpu` in bytes, known from shapes and the number of threads."""
        return 0

    def vjp(self, tape, ins, outs, grads):
        saved = [_find(name, self.forward, ins, outs) for name in self.saved_names()]
        dys = [_or_zeros(tape, grad, out) for grad, out in zip(grads, outs, strict=True)]
        floats = [tensor for tensor in ins if _is_float(tensor)]
        call = UserGrad(self, tuple(tensor.spec for tensor in ins))
        found = iter(tape.call(call, (*dys, *saved), of=floats))
        # By position: one tensor may be several of the inputs.
        return [next(found) if _is_float(tensor) else None for tensor in ins]

    def saved_names(self) -> list[str]:
        """What `backward` needs of the forward call: its arguments after the gradients."""
        names = list(inspect.signature(self.backward).parameters)
        if not names:
            raise AutogradError(
                f"backward() of {type(self).__name__} takes no gradient",
                fix="def backward(self, dy, ...): the gradients of the outputs come first",
            )
        return names[self.outputs :]

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in sorted(vars(self).items()))
        return f"{type(self).__name__}({settings})"


@dataclass(frozen=True, slots=True)
class UserGrad(base.Op):
    """The backward call of a user's operation. Reads the gradients, then what was saved.

    Args:
        op: whose gradient it is.
        inputs: inputs of that operation; those of floating-point numbers have gradients.
    """

    op: Op
    inputs: tuple[Spec, ...]
    verb: ClassVar[str] = "grad"
    may_fail: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Of the operation, with "_grad"."""
        return f"{self.op.name}_grad"

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        return tuple(filter(_is_float, self.inputs))

    def reference(self, *arrays, scalars):
        given = _several(self.op.backward(*arrays))
        floats = self.infer()
        if len(given) == len(self.inputs):
            both = zip(given, self.inputs, strict=True)
            given = tuple(grad for grad, spec in both if _is_float(spec))
        require(
            len(given) == len(floats),
            f"{self.name}: backward() gives {len(given)} gradients for {len(self.inputs)} inputs",
            *self.inputs, fix="one for each input, None for one that has none",
        )  # fmt: skip
        nothing = all(grad is None for grad in given)
        require(not nothing, f"{self.name}: backward() returns nothing", fix="return dx")
        return tuple(
            np.zeros(spec.shape, arrays[0].dtype) if grad is None else grad
            for grad, spec in zip(given, floats, strict=True)
        )

    def cpu(self, pool, ins, outs, workspace, scalars):
        _run(lambda *arrays: self.reference(*arrays, scalars=scalars), ins, outs, self.name)

    def flops(self, ins, outs):
        return 2 * sum(spec.size for spec in outs)


def _is_float(value: Spec | Tensor) -> bool:
    return value.dtype.startswith("float")


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple | list) and all(
        isinstance(n, int | np.integer) and n >= 0 for n in shape
    )


def _run(
    function: Callable, ins: Sequence[np.ndarray], outs: Sequence[np.ndarray], name: str
) -> None:
    """Calls a NumPy function on logical arrays and copies what it returns into the outputs."""
    results = _several(function(*(to_logical(array) for array in ins)))
    require(
        len(results) == len(outs), f"{name}: gives {len(results)} arrays, {len(outs)} were wanted"
    )
    for result, out in zip(results, outs, strict=True):
        target = to_logical(out)
        fits = np.shape(result) == target.shape
        require(fits, f"{name}: gives shape {np.shape(result)}, its shape rule says {target.shape}")
        kind = np.asarray(result).dtype
        castable = np.can_cast(kind, target.dtype, "same_kind")
        require(castable, f"{name}: gives {kind}, which is no {target.dtype}")
        np.copyto(target, as_numbers(result, f"{name}: its result"), casting="same_kind")


def _find(name: str, forward: Callable, ins: Sequence[Any], outs: Sequence[Any]) -> Any:
    """The tensor that an argument of `backward` names; arguments of `forward` go before outputs."""
    named = dict(zip(_output_names(len(outs), "y"), outs, strict=True))
    parameters = list(inspect.signature(forward).parameters.values())
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        named |= {f"{parameters[-1].name}{i}": tensor for i, tensor in enumerate(ins)}
    else:
        named |= dict(zip((p.name for p in parameters), ins, strict=False))
    if name not in named:
        raise AutogradError(
            f"backward() requests {name!r}, which forward() does not have",
            numbers=f"it can have {', '.join(named)}",
        )
    return named[name]


def _or_zeros(tape: Any, grad: Any, out: Any) -> Any:
    """The gradient of an output; zeros where the output is not used."""
    return tape.call(Constant(0.0, out.shape), (), of=(out,))[0] if grad is None else grad


def _output_names(count: int, stem: str) -> list[str]:
    return [stem] if count == 1 else [f"{stem}{i}" for i in range(count)]


def _several(result: Any) -> tuple:
    return tuple(result) if isinstance(result, tuple | list) else (result,)
