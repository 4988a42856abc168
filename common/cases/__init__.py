"""Batches worth asking: named, random, filled with values that break kernels, laid out in every supported way.

In: a name or a seed. Out: a `Case`, and the tensors that it means on a device.
"""
