"""The same launch two thousand times: whether the bits of kernels with P in registers ever change."""
