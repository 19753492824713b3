"""The only file that the tests know: where your bands are.

The bands named here are tried when no `--bands` is given. Read next: `rows.py`.
"""

from pathlib import Path


def bands():
    """Your bands."""
    return f"{Path(__file__).with_name('rows.py')}:Bands"
