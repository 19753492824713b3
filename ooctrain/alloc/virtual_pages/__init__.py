"""Parts of virtual addressing: physical chunks, and mappings of them into addresses.

Read next: `chunks.py`, `mappings.py`, then `../virtual.py`, which is the allocator.
"""
