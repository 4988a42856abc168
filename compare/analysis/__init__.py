"""What the rows say: who is faster and how certainly, what changed between two runs, means over classes.

In: records of one run or of several. Out: verdicts, tables, differences. Draws and prints nothing.
"""
