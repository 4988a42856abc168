"""Who is compared: kernel ids, the modules behind them, and whose config each one takes.

In: an id, `triton/auto@paper`. Out: the kernel, imported only now, its config and where that is from. The vendors'
kernels are `baselines/`, each behind the same protocol.
"""
