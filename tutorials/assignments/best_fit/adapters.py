"""The only file that the tests know: where your allocator is.

The allocator named here is tried when no `--allocator` is given. Read next: `fit.py`.
"""

from pathlib import Path


def allocator():
    """Your allocator."""
    return f"{Path(__file__).with_name('fit.py')}:Fit"
