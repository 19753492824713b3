"""The three streams of a timeline, as pictures and texts call them.

In: nothing. Out: `STREAM_NAMES`, in the order in which they are drawn. Read next: `text.py` and
`svg.py`, which draw them; `../sched/timeline.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ooctrain.sched.ledger import Stream

STREAM_NAMES: Mapping[Stream, str] = MappingProxyType(
    {"C": "compute", "D": "swap out", "H": "swap in"}
)
