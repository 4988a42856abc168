"""Count what a launch does while the ISA model executes it: instructions, loads, waits, LDS banks, L2.

Nothing here is a time. `counting` joins the counts of one launch; each other file computes one of them.
"""
