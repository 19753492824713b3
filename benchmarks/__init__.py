"""What ooctrain is measured by: speed beside torch, predictions, overheads, scale.

In: nothing but this machine. Out: tables, and JSON files. Each benchmark is a module with
`main(arguments) -> dict`; `python -m benchmarks` runs them. Read next: `__main__.py`, `README.md`.
"""

import sys
from pathlib import Path

# A benchmark tries what the tests try: `from support.op_samples import SAMPLES`.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
