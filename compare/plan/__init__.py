"""What a run will do, before it does anything: situation, rows, kernels, cells, and what makes a cell the same cell.

In: the options of a command line. Out: a plan whose hash and fingerprints say which finished rows still count.
"""
