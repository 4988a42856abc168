"""GPUs and cores of other machines, through Ray: seats that do shares of a work as one machine would.

In: a work, cut into shares, and the address of a cluster. Out: what every seat finds, as it comes, whatever is lost on
the way. Ray is imported by `cluster` alone; a seat runs the same child processes as a run on one machine.
"""
