"""Parameters of planners that cannot be: each is one error that names planner, parameter and value.

Read next: `planner.py`; `effort.py` for numbers of evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

from ooctrain.errors import ConfigError


def check_whole_numbers(planner: str, parameters: Mapping[str, object], least: int = 1) -> None:
    """Raises ConfigError for a planner's parameter that is not a whole number, or is too small.

    Args:
        parameters: {name: value}.
        least: the smallest value that is allowed.
    """
    for name, value in parameters.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise ConfigError(
                f"{planner}: {name}={value!r} is not a whole number of at least {least}",
                code="OOC-105",
                fix=f"such as {planner}:{name}={max(least, 1)}, or leave {name} out",
            )


def check_true_or_false(planner: str, parameters: Mapping[str, object]) -> None:
    """Raises ConfigError for a planner's switch that is neither true nor false.

    Args:
        parameters: {name: value}.
    """
    for name, value in parameters.items():
        if not isinstance(value, bool):
            raise ConfigError(
                f"{planner}: {name}={value!r} is neither true nor false",
                code="OOC-105",
                fix=f"such as {planner}:{name}=false, or leave {name} out",
            )
