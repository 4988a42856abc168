"""Who wins: verified, timed, explained head to head. Reaches kernels through registry.py only."""

__project__ = "diptych"

from compare.identity import ensure_own_packages

ensure_own_packages()  # here and not in an entry point: every module of compare imports common before it can ask
