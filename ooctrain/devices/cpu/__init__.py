"""The cpu device: an accelerator made of CPU cores, with an arena of exactly the budget.

Read next: `device.py`, then `host_vm.py` (true virtual memory) and `copy_engine.py`.
"""
