"""Experiments of the papers, a folder for each paper: from a question to a table of plain data.

An experiment turns parameters into frozen dataclasses, the tables printed of them, and their
pictures. For each paper, three things stand side by side: what it prints, what is computed here,
and how both are shown. docs/papers.md says what agrees and what does not. Read next:
`reproducing.py`, then `paper_000/table1.py`; `compare.py`, which compares planners.
"""
