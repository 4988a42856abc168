"""From candidate configs to times, from times to tables of winners; rankings where no time can be taken.

In: a GPU and rows. Out: logs of candidates, and a table of winners that a person reviews.
"""
