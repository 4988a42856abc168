"""Ideas that were tried and lost, or that lose today; dsl_triton/ablations holds the same in Triton."""
