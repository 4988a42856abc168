"""The kernel family in Helion. Each file has a twin of the same name in dsl_triton."""
