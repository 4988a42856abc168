"""Kernels for one vendor's machine alone, in a column of their own; nothing portable imports them.

sm90_prefill.py has the config, the launch and the kernel that sets up shared memory, sm90_roles.py what its warps do:
two files of 260 lines where one of 250 was planned, for Gluon states every layout, barrier and wait.
"""
