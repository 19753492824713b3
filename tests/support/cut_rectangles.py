"""Problems of packing whose answer is known: a rectangle of time and bytes that is cut to pieces.

The pieces fill it again without a gap, so the least extent is its height, however they are ordered.
Read next: `../unit/test_exact_places.py`.
"""

from __future__ import annotations

import random

#: Bytes and moments of the rectangle.
SIDE = 12


def cut(seed, count):
    """Blocks that fill SIDE bytes for SIDE moments."""
    drawn, boxes = random.Random(seed), [(0, SIDE, 0, SIDE)]
    while len(boxes) < count:
        boxes.sort(key=lambda box: (box[1] - box[0]) * (box[3] - box[2]) * drawn.uniform(0.5, 1))
        begin, end, low, high = boxes.pop()
        if drawn.random() < 0.5 and end - begin > 1:
            time = drawn.randint(begin + 1, end - 1)
            boxes += [(begin, time, low, high), (time, end, low, high)]
        elif high - low > 1:
            place = drawn.randint(low + 1, high - 1)
            boxes += [(begin, end, low, place), (begin, end, place, high)]
        else:
            boxes.append((begin, end, low, high))
    drawn.shuffle(boxes)
    return [(high - low, (begin, end)) for begin, end, low, high in boxes]
