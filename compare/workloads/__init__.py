"""The rows that are compared: lengths x shape x features, alone, in suites, or from a serving trace.

In: `32q1s2k~`, a suite's name, a trace's file. Out: `Workload`s, and the least bytes and FLOPs of each.
"""

from compare.workloads.workload import (
    DTYPE_NAMES,
    LLAMA_3_8B,
    NEW_KV,
    PLAIN,
    SPECULATIVE_MAX,
    Ask,
    GrammarError,
    Workload,
    parse_lens,
    parse_shape,
    vary,
)

__all__ = [
    "DTYPE_NAMES",
    "LLAMA_3_8B",
    "NEW_KV",
    "PLAIN",
    "SPECULATIVE_MAX",
    "Ask",
    "GrammarError",
    "Workload",
    "parse_lens",
    "parse_shape",
    "vary",
]
