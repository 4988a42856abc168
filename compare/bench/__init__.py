"""The gate, then the clock: a kernel is timed only where the very callable that is timed gave the right answer.

In: a job in the worker's process. Out: verdicts and samples of its cells, as events.
"""
