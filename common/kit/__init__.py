"""Judge a kernel from outside against the spec, in a process of its own.

In: the name of a callable. Out: a `Result` for each case, whatever that process does. Trusts nothing that comes back.
"""
