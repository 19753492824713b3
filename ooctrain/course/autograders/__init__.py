"""Grades for the platforms that courses use: Gradescope, Otter-Grader, nbgrader.

Read next: `gradescope.py`, `notebook_graders.py`.
"""
