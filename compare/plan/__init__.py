"""The plan of a run: situation, rows, kernels, cells, and the fingerprints that identify them.

In: the options of a command line. Out: a plan whose hash and fingerprints say which finished rows still count.
"""
