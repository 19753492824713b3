"""Benchmarks of ooctrain: speed against torch, predictions, overheads, scale.

Each benchmark is a module with `main(arguments) -> dict`; `python -m benchmarks` runs them on this
machine and prints tables or writes JSON files. Read next: `__main__.py`, `README.md`.
"""

import sys
from pathlib import Path

# A benchmark tries what the tests try: `from support.op_samples import SAMPLES`.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
