"""Kernels for one vendor's GPUs alone, compared in columns of their own. Nothing portable imports them.

sm90_prefill.py has the config, the launch and the kernel that sets up shared memory; what its warps do then stands in
sm90_load.py (items, Q, K, V) and sm90_compute.py (products, softmax, the output). auto.py has the public calls that may
choose it: those of dsl_triton.
"""
