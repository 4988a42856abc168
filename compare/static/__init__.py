"""What the compilers make of a launch, for a GPU that is here or absent; `isa/` executes AMD's code on the CPU.

In: a kernel, its config, a batch and a GPU. Out: code facts (registers, spills, loops) and an estimate that says it is
one.
"""
