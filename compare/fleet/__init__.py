"""`run` with --fleet: its work on the GPUs and cores of other machines, through Ray.

In: the words of `run` and the address of a cluster. Out: what it writes on one machine, whatever is lost on the way.
Ray is imported by `cluster` alone; a seat runs the same child processes as a run on one machine.
"""
