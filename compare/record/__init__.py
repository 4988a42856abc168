"""A finished cell, the folder that keeps a run's cells, and the rules under which a time was taken.

In: what became of a cell. Out: one line of cells.jsonl, read back as a `Record`. A record without the status `ok`
cannot hold a time.
"""
