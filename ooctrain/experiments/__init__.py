"""Experiments of the papers, a folder for each paper: from a question to a table of plain data.

In: nothing but parameters. Out: frozen dataclasses, what is printed of them, and their pictures.
The one idea: what a paper prints, what is computed here and how it is shown stand side by side;
what agrees and what does not is said in docs/papers.md. Read next: `reproducing.py`, then
`paper_000/table1_shown.py`; `compare.py` for planners beside each other.
"""
