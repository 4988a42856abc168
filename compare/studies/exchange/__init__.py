"""Exchange with flashinfer-bench: its Definitions, Workloads, Solutions and Traces of paged attention, both ways.

In: a run's folder, or a folder in its layout. Out: such a folder; rows, and verdicts of the kit on its Solutions.
"""
