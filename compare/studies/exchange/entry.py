"""A Solution under the arguments of the kit. Its text, with TASK, SUPPORTS, LIMITS and `run` behind it, is a candidate.

It imports torch alone: it runs beside a stranger's code. Pages of one token are the slots of the kit's pages.
"""

import importlib
import math

import torch

TASK = {}  # inputs: the Definition's, in its order; page: its page size; returned: whether outputs are returned


def load(module, name):
    return getattr(importlib.import_module(module), name)


def given(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, softmax_scale):
    """Each input of a Definition by its name."""
    page = key_cache.shape[1]
    columns = torch.arange(block_table.shape[1] * page, device=query.device)
    if TASK["page"] == 1:
        table = block_table[:, columns // page].long() * page + columns % page
        key_cache, value_cache = (cache.reshape(-1, 1, *cache.shape[2:]) for cache in (key_cache, value_cache))
        counts = seq_lens
    else:
        table, counts = block_table, (seq_lens + page - 1) // page
    indices = table[columns[: table.shape[1]] < counts[:, None]].int()
    indptr = torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    last = torch.where(seq_lens > 0, (seq_lens - 1) % page + 1, 0).int()
    caches = {"k_cache": key_cache, "v_cache": value_cache}
    lists = {"qo_indptr": query_start_loc, "kv_indptr": indptr, "kv_indices": indices, "kv_last_page_len": last}
    return {"q": query, "sm_scale": softmax_scale} | caches | lists


def paged_attention(
    query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale, return_lse=True
):
    """(output, LSE in base e) of `run`."""
    found = given(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, softmax_scale)
    arguments = [found[name] for name in TASK["inputs"]]
    if TASK["returned"]:
        output = run(*arguments)  # noqa: F821 - stands behind this text
        output = [output["output"], output["lse"]] if isinstance(output, dict) else output
    else:
        output = [torch.empty_like(query), query.new_empty(query.shape[:2], dtype=torch.float32)]
        run(*arguments, *output)  # noqa: F821
    if not isinstance(output, list | tuple) or len(output) != 2 or not isinstance(output[1], torch.Tensor):
        raise TypeError(f"run: found {type(output).__name__}, allowed (output, lse), or a dict of the two")
    return output[0], output[1] * math.log(2.0)
