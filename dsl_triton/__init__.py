"""The kernel family in Triton. Each file has a twin of the same name in dsl_helion."""
