"""Code OOC-180: a part of the library is not in a course wheel.

A teacher hands out a wheel without the solution of an assignment (`ooctrain course strip`). What
was left out can be imported and named; using it raises this error. Read next: `../course/strip.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ooctrain.explain.explanation import Explanation

COURSES: Mapping[str, Explanation] = {
    "OOC-180": Explanation(
        "left out of a course wheel",
        "This ooctrain was made for an assignment, by `ooctrain course strip`. The planner, "
        "allocator or function that the assignment asks for is in it by name only.",
        "ooctrain plan lenet --budget 50% --planner lru    # in the wheel of lru_planner",
        "name your own as file.py:Class, or another of the library",
    ),
}
