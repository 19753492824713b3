"""Experiments of the papers, one file each: from a question to a table of plain data.

In: nothing but parameters. Out: frozen dataclasses; `report/` draws them and `cli/reproduce.py`
prints them. Read next: `fragmentation.py`.
"""
