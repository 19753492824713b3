"""Courses: assignments that a program grades, with a reason for each missing point.

In: a folder with a handout, tests and a rubric; a student's file. Out: points, with a reason for
each that is missing. The one idea: a student's code is only ever run in a process of its own, with
a limit of time; how good it is is judged by data, a list that the verifier proves and the simulator
times in a process which that code has never seen. Read next: `rubric.py`, `grade.py`.
"""
