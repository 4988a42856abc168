"""A functional model of the CDNA instructions that our kernels compile to, for gfx942 and gfx950, and gfx90a.

It runs the assembly text that the compiler printed with the code object, all waves at the same instruction together,
and refuses unknown instructions by name. It tells what the code computes, not how long it takes.
"""
