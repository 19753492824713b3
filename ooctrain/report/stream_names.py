"""The streams of a timeline, as pictures and texts call them, and the network between ranks.

A list has three streams, which are the lanes to draw. A step that several ranks share also has
messages on their way, which are drawn as a fourth lane. Read next: `text.py` and `svg.py`, which
draw them; `../sched/timeline.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ooctrain.sched.ledger import Stream
from ooctrain.sched.timeline import Timeline

STREAM_NAMES: Mapping[Stream, str] = MappingProxyType(
    {"C": "compute", "D": "swap out", "H": "swap in", "N": "network"}
)


def streams_of(timeline: Timeline) -> Mapping[Stream, str]:
    """Names of the lanes of a timeline in the order in which they are drawn; the network's only
    where messages were sent."""
    messages = any(event.stream == "N" for event in timeline.events)
    return {stream: name for stream, name in STREAM_NAMES.items() if stream != "N" or messages}
