"""The float64 answer, how far a kernel's output is from it, and what a kernel may not have touched.

In: a batch and a kernel's output. Out: the expected rows, a `Verdict` per tolerance rule, the damage outside of `out`.
"""
