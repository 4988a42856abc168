"""Which kernel and config a batch gets: what a choice knows, and a model that ranks what may serve it.

In: a shape, the host integers of a batch, a GPU, a file that was fitted to logs. Out: candidates, the best first.
"""
