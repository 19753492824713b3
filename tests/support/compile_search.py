"""Compiles the search of the planners: without signatures, it is compiled by its first call.

Half a dozen tests search, and each worker would compile for as long as a hundred tests run. So
`../conftest.py` starts this file before the workers. Read next: `ooctrain/sched.search.search.py`.
"""

from __future__ import annotations

import gc

from ooctrain.sched.search.search import compile_search

if __name__ == "__main__":
    gc.set_threshold(50_000)
    compile_search()
    # Late, for it loads kernels. Whoever promises memory then starts no process to compile it.
    from ooctrain.execution import compile_apart as apart

    apart.write_down([apart.SEARCH], apart.search_folder() / apart.list_name(apart.PACKAGE))
