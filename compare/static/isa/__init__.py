"""A functional model of the CDNA instructions that our kernels compile to, for gfx942 and gfx950 (gfx90a for free).

It runs the assembly text that the compiler printed beside the code object, 64 lanes of all waves that stand at the same
instruction together, and refuses by name what it does not know. It says what the code computes, not how long it takes.
"""
