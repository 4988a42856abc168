"""Workers that may die, hang or flood without taking the run along.

In: jobs. Out: an outcome a job, as they come: what the worker said, or how it was lost.
"""
