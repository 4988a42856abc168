"""From candidate configs to times, from times to measured winners and a fitted choice; rankings without times.

In: a GPU and rows. Out: logs of candidates, the user's winners, and the files that `--fit` makes of logs.
"""
