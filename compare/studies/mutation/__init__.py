"""How many wrong kernels the kit rejects: the emulation, changed in a thousand places.

In: operators over a source, the kit's levels. Out: a log of who died of what, a score, and the survivors.
"""
