"""Kernels for one vendor's machine alone, in a column of their own; nothing portable imports them."""
