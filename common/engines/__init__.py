"""Adapters that run our kernels inside vLLM, transformers and SGLang. None of these is imported unless it asks.

In: an engine's layers, metadata and caches. Out: plans of the DSL that DIPTYCH_KERNEL names over one workspace, and
refusals by name before the first request.
"""
