"""Grade a folder of candidates: each is judged by the kit in a process of its own, and timed where it is right.

In: files with one entry point each. Out: a line a candidate with its verdict, and the reason where it is not right.
"""
