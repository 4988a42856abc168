"""The public call, and what an engine keeps between steps: plans, scratch, captured graphs.

In: a step's tensors and hints. Out: `out`, written by the kernel and config that `Family` chose, and nothing else.
"""
