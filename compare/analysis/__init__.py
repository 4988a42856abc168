"""What the rows say: who is faster and how surely, what changed between two runs, means over classes.

In: records of one run or of several. Out: verdicts, tables, differences; draws and prints nothing.
"""
