"""The kernels inside a real server: latency by output length, and a trace of requests, with every token checked.

In: vLLM, where it is installed, and engines by name. Out: rows, appended as they come, figures and a page.
"""
