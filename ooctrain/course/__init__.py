"""Courses: assignments that a program grades, with a reason for each missing point.

An assignment is a folder with a handout, tests and a rubric. A student's file gets points, and a
reason for each point that is missing. The student's code runs only in a process of its own, under a
time limit. Its quality is judged from data: the verifier proves the list that it returns, and the
simulator times that list, in a process which has never loaded that code. Read next: `rubric.py`,
`grade.py`.
"""
