"""What ooctrain is measured by: speed beside torch, predictions, overheads, scale.

In: nothing but this machine. Out: tables, and JSON files. Each benchmark is a module with
`main(arguments) -> dict`; `python -m benchmarks` runs them. Read next: `__main__.py`, `README.md`.
"""
