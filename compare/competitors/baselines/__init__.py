"""Public kernels behind the protocol of `common.spec.kernel`, for comparison.

RELEASE of a module: its package, the version that was run last, that version's month (empty: not looked up), licence,
language, and logical lines of the functions in its kernel files (`study sizes`; 0: not counted, as of CUDA).
"""
