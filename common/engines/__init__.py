"""Our kernels inside the servers that people run: vLLM, transformers, SGLang. None is imported unless it asks.

In: an engine's layers, metadata and caches. Out: plans of the DSL that DIPTYCH_KERNEL names, one workspace for all of
them, and refusals by name before the first request.
"""
