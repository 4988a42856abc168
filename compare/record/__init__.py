"""A finished cell, the folder of a run's cells, and the rules by which a time is taken.

In: what became of a cell. Out: one line of cells.jsonl, read back as a `Record`. A record whose status is not `ok`
cannot hold a time.
"""
