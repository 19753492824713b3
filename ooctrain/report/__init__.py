"""Plans, timelines and experiments for readers: text, tables, SVG, HTML, traces for other viewers.

In: plans, timelines, rows of experiments. Out: texts, tables of rich, files as strings or bytes.
The one idea: a renderer is a pure function of data that is already there; nothing is planned, run
or written here. Read next: `text.py` for the terminal, `record.py` for what a step leaves in a
file, `charts.py` for pictures.
"""
