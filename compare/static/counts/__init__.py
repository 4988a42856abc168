"""What a launch does, counted while the ISA model executes its machine code: instructions, loads, waits, LDS banks, L2.

Nothing here is a time. `counting` joins the counts of one launch; each other file has one of them.
"""
