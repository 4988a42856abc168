"""A stranger's kernel, judged against the spec in a process of its own.

In: the name of a callable. Out: a `Result` a case, whatever that process does. Trusts nothing that comes back.
"""
