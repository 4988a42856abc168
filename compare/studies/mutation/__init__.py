"""The mutation score: how many wrong kernels, made by changing the emulation, the kit rejects.

In: operators over a source, the kit's levels. Out: a log of who died of what, a score, and the survivors.
"""
