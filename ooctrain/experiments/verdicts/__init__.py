"""What agrees with the papers and what differs, one file for each experiment: sentences and facts.

In: what an experiment found. Out: sentences whose figures come from this run. Read next:
`sentences.py`, then `table1.py`.
"""
