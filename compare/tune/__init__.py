"""From candidate configs to times, from times to the trees of `heuristics/`; rankings where no time can be taken.

In: a GPU and rows. Out: logs of candidates, and a Python module that a person reviews.
"""
