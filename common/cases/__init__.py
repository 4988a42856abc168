"""Batches that test a kernel: named, random, filled with values that break kernels, in every supported memory layout.

In: a name or a seed. Out: a `Case`, and its tensors on a device.
"""
