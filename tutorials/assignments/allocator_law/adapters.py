"""The only file that the tests know: where your law is.

The law named here is tried when no `--law` is given. Read next: `law.py`.
"""

from pathlib import Path


def law():
    """Your law."""
    return f"{Path(__file__).with_name('law.py')}:Law"
