"""Grade a folder of candidates: each is judged by the kit in a process of its own, and timed where it is right.

In: files with one entry point each. Out: the verdict on each candidate, with the reason where it is not right.
"""
