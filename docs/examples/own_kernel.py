"""A kernel of your own meets the cases that break such kernels: the text of docs/running.md."""

import sys

import torch

SUPPORTS = {"causal"}  # cases that need more are left out, and counted
LIMITS = {"max_query_len": 1}  # decodes alone


def decode(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale, out):
    """A loop over sequences in torch: slow, and right."""
    page_size, group = key_cache.shape[1], query.shape[1] // key_cache.shape[2]  # query heads of a KV head
    for i, length in enumerate(seq_lens.tolist()):
        begin, end = query_start_loc[i : i + 2].tolist()
        pages = block_table[i, : -(-length // page_size)].long()
        k, v = (c[pages].flatten(0, 1)[:length].repeat_interleave(group, 1).double() for c in (key_cache, value_cache))
        scores = torch.einsum("qhd,khd->hqk", query[begin:end].double(), k) * softmax_scale
        out[begin:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(out.dtype)


if __name__ == "__main__":
    import os

    from diptych_check import main

    os.chdir(os.path.dirname(os.path.abspath(__file__)))  # as `diptych-check own_kernel:decode` in this folder
    raise SystemExit(main(["own_kernel:decode", *sys.argv[1:]]))  # --level first: a first word, in seconds
