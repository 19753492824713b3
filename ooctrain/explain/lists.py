"""Codes OOC-200 to OOC-294: a list, a planner or a tiling breaks a rule or a law.

Each rule and each law has a name of its own (R203, P8), which the message carries; these codes are
their families. Read next: `training.py`; the rules themselves are in `../sched/rules/`, the laws in
`../testing/planner_laws.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ooctrain.explain.explanation import Explanation

LISTS: Mapping[str, Explanation] = {
    "OOC-200": Explanation(
        "an illegal schedule",
        "A list breaks a rule of the verifier. The code printed is the rule's own, such as R203.",
        "a Run whose input was freed",
        "`ooctrain explain R203`",
    ),
    "OOC-210": Explanation(
        "a plan for something else",
        "The plan was made for another trace, granule, allocator or device than it is used with.",
        "a plan of batch 64 executed with a batch of 32",
        "plan again with the same model, batch, optimizer, threads and allocator",
    ),
    "OOC-220": Explanation(
        "a list that cannot be read",
        "A list in text has a word, a name or a range that the grammar does not know. The message "
        "gives the line and the column, and repeats the line.",
        "oc.Schedule.parse('runn F0', trace)",
        'docs/schedule.md, "The list as text", has the whole grammar',
    ),
    "OOC-290": Explanation(
        "a list breaks a law",
        "The law-checker runs a list on bytes in random orders. This list is illegal, or "
        "two of its instructions that may overlap touch the same bytes.",
        "free x; run f, where f reads x",
        "`oc.verify` names the rule",
    ),
    "OOC-291": Explanation(
        "a planner breaks a law",
        "`oc.testing.check_planner` found a small trace on which the planner breaks a "
        "promise: a legal list within the budget, an honest minimum, the same plan when "
        "asked twice.",
        "a planner that forgets to round by the granule",
        "the message shows the trace, the list, the rule, and what the law says",
    ),
    "OOC-292": Explanation(
        "an allocator breaks a law",
        "`oc.testing.check_allocator` found a short list of requests after which the allocator "
        "breaks a promise: disjoint blocks that keep their bytes, honest books, a refused "
        "request changes nothing.",
        "an allocator that lets a block be freed twice",
        "the message shows the law's number, the requests, and how to repeat them; "
        "`ooctrain/testing/allocator_laws.py` states the laws",
    ),
    "OOC-293": Explanation(
        "a tiled step computes something else",
        "`oc.testing.check_tiled` ran a model untiled and in tiles on the same random numbers, and "
        "a result is not that of the untiled step: not to the bit where tilings promise that, or "
        "farther off than another order of addition explains. Or `check_bands` found a chain whose "
        "bands read rows that do not exist.",
        "an operation of one's own whose `window` says one row too few",
        "the message names the result, the place, both numbers and the bound; mend the rule of the "
        "operation (docs/tiling.md)",
    ),
    "OOC-294": Explanation(
        "a split breaks a law",
        "`oc.testing.check_split` tried a split on small random networks: sizes must add up, no "
        "row may reach two parts, chance is a function of seed and step, evaluation is whole.",
        "oc.testing.check_split(my_split)",
        "the message names the law and the network; laws: ooctrain/testing/check_split.py",
    ),
    "OOC-295": Explanation(
        "a broken law of allocators",
        "`pytest --pyargs ooctrain.laws --law` tried a law by hand on right arenas: it must let "
        "them pass, and say the same when it is asked twice.",
        "pytest --pyargs ooctrain.laws --law my.py:Law",
        "the message says what the law says of which arena; compare your books by hand",
    ),
}
