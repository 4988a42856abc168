"""Worker processes that may die, hang or flood their log without ending the run.

In: jobs. Out: one outcome for each job, as they come: what the worker said, or how it was lost.
"""
