"""The verb `run`: check every cell, time it where the GPU is here, report; and `doctor`: can this machine measure?

In: a command line. Out: a folder of rows and its report, and an exit code.
"""
