"""Users' rewrites, named "file.py:name" or by entry points, and how much each of them keeps.

Such a name gives a `NamedRewrite`. The author of a rewrite states how much of a step's results it
keeps, and the laws hold it to that. "bits": every output to the bit. "bound": to the bit where sums
are exact, else up to rounding. "meaning changed": another network, with the same inputs and
outputs. The statement is an attribute `keeps` of its function or class, by default "bits". Read
next: `rewrite/__init__.py` for our own; `testing/check_rewrite.py` for the laws.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from ooctrain import plugins as specs
from ooctrain.errors import ConfigError
from ooctrain.step.trace import Trace

ENTRY_POINTS = "ooctrain.rewrites"
Keeps = Literal["bits", "bound", "meaning changed"]
KEEPS: tuple[Keeps, ...] = get_args(Keeps)
#: What each means, in words.
KEPT: Mapping[Keeps, str] = MappingProxyType(
    {
        "bits": "every output of the step to the bit",
        "bound": "every output to the bit where sums are exact, else up to the rounding of sums",
        "meaning changed": "inputs, parameters and outputs; it is another network",
    }
)


@dataclass(frozen=True, slots=True)
class NamedRewrite:
    """A rewrite by name.

    Args:
        name: with parameters, as in a plan.
        run: makes the new trace.
        keeps: what of the results.
    """

    name: str
    run: Callable[[Trace], Trace]
    keeps: Keeps

    def __call__(self, trace: Trace) -> Trace:
        """The trace after it. Raises ConfigError: what it returned is not a trace."""
        found = self.run(trace)
        if not isinstance(found, Trace):
            raise ConfigError(
                f"rewrite {self.name!r} returned {type(found).__name__}, not a Trace",
                code="OOC-108", fix="a rewrite takes a trace and returns another one",
            )  # fmt: skip
        return found


def plugged_rewrite(name: str) -> NamedRewrite | None:
    """The rewrite of a file or of another package; None where neither has one of this name.

    Raises:
        ConfigError: there is no such file, or nothing of this name in it, or a parameter is wrong.
    """
    spec = specs.parse_spec(name)
    if not spec.file and spec.name not in specs.names((), ENTRY_POINTS):
        return None
    factory, options = specs.locate(name, {}, group=ENTRY_POINTS, what="rewrite")
    return as_named(name, factory, **options)


def as_named(name: str, factory: Callable[..., Any], **options: Any) -> NamedRewrite:
    """A rewrite from a function of (trace, **options), or a class that takes the options and whose
    objects are called with a trace.

    Raises:
        ConfigError: it cannot be called like that, or its `keeps` has an unknown value.
    """
    keeps = getattr(factory, "keeps", "bits")
    if keeps not in KEEPS:
        raise ConfigError(
            f"rewrite {name!r} has an unknown value of keeps: {keeps!r}", code="OOC-106",
            fix=f"keeps = one of {', '.join(map(repr, KEEPS))}",
        )  # fmt: skip
    if inspect.isclass(factory):
        specs.check_call(factory, (), options, name, "rewrite")
        made: Any = factory(**options)
        return NamedRewrite(name, made, keeps)
    specs.check_call(factory, (None,), options, name, "rewrite")
    return NamedRewrite(name, lambda trace: factory(trace, **options), keeps)
