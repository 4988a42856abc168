"""Who wins: verified, timed, explained head to head. Reaches kernels through registry.py only."""

__project__ = "diptych"
