"""Plans, timelines and experiments for readers: text, tables, SVG, HTML, traces for other viewers.

Each renderer turns a plan, a timeline or the rows of an experiment into text, a table of rich, or a
file as a string or bytes. It is a pure function of data that is already there: nothing is planned,
run or written here. Read next: `text.py` for the terminal, `record.py` for what a step leaves in a
file, `charts.py` for pictures.
"""
