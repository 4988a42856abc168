"""What is computed: the paged-attention spec, its float64 reference, and a checker that cannot be fooled.

Imports torch and numpy only, never a DSL.
"""

__project__ = "diptych"
